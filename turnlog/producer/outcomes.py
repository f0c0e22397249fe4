"""What becomes of a record that was handed on, as the ladder hears and tells it."""

import asyncio

from turnlog.errors import InDoubt, TooLarge, TurnlogError
from turnlog.producer.transport import Position, Rung
from turnlog.spool import CHUNKS, LANES


def lane_of(topic: str) -> str:
    """Return the lane of the spool in which a topic's records wait."""
    name = topic.removeprefix("turnlog.")
    return name if name in LANES else LANES[0]


def refusing(lane: str) -> Rung:
    """Return the rung on which a lane finds no room."""
    return "shedding" if lane == CHUNKS else "refusing"


def in_doubt(error: BaseException) -> InDoubt:
    """Return the error for a record that the disk refused and Kafka had been given."""
    return InDoubt(f"{error}; Kafka was given the event before and may still write it")


def heard(future: asyncio.Future[Position]) -> None:
    """Take note of an outcome that nobody has to hear of."""
    if not future.cancelled():
        future.exception()


async def arrived(future: asyncio.Future[Position]) -> bool:
    """Wait for a record of the spool; say whether it is done with."""
    try:
        await future
    except TooLarge:
        return True  # it never will; said by who refused it
    except TurnlogError:
        return False
    return True
