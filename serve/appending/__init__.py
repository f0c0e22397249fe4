"""Appending events that another program wrote: read, judged, sealed, answered one by one.

`turnlog append` and the HTTP door share it.
"""

from serve.appending.answers import Answer
from serve.appending.batch import Appender
from serve.appending.given import Scope

__all__ = ["Answer", "Appender", "Scope"]
