"""The disk spool under a producer: segments, lanes, adoption of what dead processes left."""

from turnlog.spool.records import Spooled
from turnlog.spool.spool import CHUNKS, LANES, MAX_BYTES, Read, Spool, Stream

__all__ = ["CHUNKS", "LANES", "MAX_BYTES", "Read", "Spool", "Spooled", "Stream"]
