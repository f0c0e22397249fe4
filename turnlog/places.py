"""Errors told by their type and place: a message may quote what was sent.

The parsers of aiohttp quote the header line that they refuse, its client the URL with its query,
asyncio the arguments of the callback that failed. A process that takes requests calls
`log_places_only` before it takes the first.
"""

import asyncio
import logging
import traceback
from typing import Any

logger = logging.getLogger(__name__)

QUOTING = (
    "aiohttp.access",
    "aiohttp.client",
    "aiohttp.internal",
    "aiohttp.server",
    "aiohttp.web",
    "aiohttp.websocket",
    "asyncio",
)
"""Loggers whose texts may hold what was sent. A filter of a parent does not see their records."""


def where(error: BaseException | None) -> str:
    """Return an error's type and place; its message might hold content."""
    if error is None:
        return "no error"
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(frames))
    return f"{type(error).__name__} at {places}" if places else type(error).__name__


class PlacesOnly(logging.Filter):
    """Puts in the place of a record's text where it was logged and where its error was raised."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Take the text out; the record goes on."""
        error = record.exc_info[1] if record.exc_info else None
        record.msg = "said something at %s:%d: %s"
        record.args = (record.filename, record.lineno, where(error))
        record.exc_info = record.exc_text = record.stack_info = None
        return True


_PLACES_ONLY = PlacesOnly()


def log_places_only() -> None:
    """Keep what was sent out of this process's log; called once its event loop runs."""
    for name in QUOTING:
        logging.getLogger(name).addFilter(_PLACES_ONLY)
    asyncio.get_running_loop().set_exception_handler(_tell)


def _tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # Behind a bracket stand the arguments of the callback that failed.
    what = str(context["message"]).partition("(")[0]
    logger.error("in the event loop: %s: %s", what, where(context.get("exception")))
