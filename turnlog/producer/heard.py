"""What became of events, as far as somebody or nobody waits for it."""

import asyncio
import logging

from turnlog.errors import TurnlogError
from turnlog.producer.transport import Position

logger = logging.getLogger(__name__)


async def trouble_of(future: asyncio.Future[Position]) -> TurnlogError | None:
    """Wait for an acknowledgement; return why it did not come, None where it did."""
    try:
        await future
    except TurnlogError as error:
        return error
    return None


def warn_if_lost(run: str, future: asyncio.Future[Position]) -> None:
    """Say that output of a run, or a sign of its life, did not become durable."""
    if not future.cancelled() and (error := future.exception()) is not None:
        logger.warning("run %s: output or a sign of life is not in the log: %s", run, error)


def unheard(future: asyncio.Future[Position]) -> None:
    """Take note of an outcome that nobody waits for."""
    if not future.cancelled() and (error := future.exception()) is not None:
        logger.warning("an event that nobody waits for is not in the log: %s", error)
