"""Importing recorded provider traffic: a file of exchanges into the log, once."""

from serve.importer.report import Report
from serve.importer.run import import_file

__all__ = ["Report", "import_file"]
