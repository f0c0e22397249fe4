"""JSON of events: strict as everywhere, but that halves of surrogate pairs are let through.

Providers send them, cut in the middle of an emoji, and frames keep them as they are. Whether one
may stand where it stands is each event's own question: its neighbours are not refused for it.
"""

import re
from typing import Any

from serve.appending.values import plain
from serve.doors.strict_json import checked, decode, refused
from turnlog.errors import UsageError

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_events(data: bytes) -> Any:
    """Return what a JSON text says.

    Raises:
        Problem: 400, as `strict_json.parse`, halves of pairs excepted.
    """
    value = decode(data)
    if not _HALF.search(data):
        return checked(value)
    try:
        return plain(value)
    except (UsageError, RecursionError):
        raise refused() from None
