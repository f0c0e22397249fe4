"""What was accepted in the last 24 hours: an index in Redis by event id, so that a retry is told.

A mark is set after the event is durable and never before, so what was never written is never
answered as a duplicate (openmeter#5118, langfuse#16017). Redis is expendable: without it events are
accepted, say that they may repeat, and the folds decide.

`{org}/seen/` and 16 bytes of the event id, the org in braces so that a cluster keeps a batch's keys
together; the value is a `Mark`.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from turnlog.keys import Locator

logger = logging.getLogger(__name__)

KEPT_S = 24 * 3600
# A batch waits so long for Redis, and then no batch does for a while.
ANSWER_S = 0.5
SILENCE_S = 2.0

T = TypeVar("T")

# Nearly always nothing is found: an empty answer costs the client 100 µs less than 100 nils.
_LOOK = """
local found = {}
for at, key in ipairs(KEYS) do
  local held = redis.call('GET', key)
  if held then found[#found + 1] = at - 1; found[#found + 1] = held end
end
return found
"""
# The first one stays: two that were written at once are one event and a repeat of it.
_MARK = """
for at, key in ipairs(KEYS) do
  redis.call('SET', key, ARGV[at + 1], 'EX', ARGV[1], 'NX')
end
return #KEYS
"""


class Mark(NamedTuple):
    """What is remembered of an accepted event, about 70 bytes.

    Attributes:
        said: digest of what the event says, its content as its MAC; 16 bytes.
        locator: under which that MAC was made.
        position: `topic/partition/offset`, -1 for an event in the spool.
    """

    said: bytes
    locator: Locator
    position: str

    def packed(self) -> bytes:
        """Return its bytes."""
        tree, day, gen = self.locator
        return self.said + tree + bytes((day, gen)) + self.position.encode()

    @classmethod
    def of(cls, packed: bytes) -> "Mark":
        """Return what `packed` gave."""
        locator = Locator(packed[16:32], packed[32], packed[33])
        return cls(packed[:16], locator, packed[34:].decode())


class Patient:
    """Asks Redis; once it does not answer, it is left alone for two seconds."""

    def __init__(self) -> None:
        self._silent_until = 0.0

    async def ask(self, asking: "Awaitable[T]") -> T | None:
        """Return the answer, None where there is none."""
        if time.monotonic() < self._silent_until:
            cast(Any, asking).close()
            return None
        try:
            async with asyncio.timeout(ANSWER_S):
                return await asking
        except (RedisError, OSError, TimeoutError) as error:
            self._silent_until = time.monotonic() + SILENCE_S
            logger.warning("redis does not answer: %s", type(error).__name__)
            return None


class Seen:
    """The index.

    Args:
        redis: bytes in, bytes out.
        patient: shared by all that ask the same Redis.
    """

    def __init__(self, redis: Redis, patient: Patient | None = None) -> None:
        self._patient = patient or Patient()
        self._look = redis.register_script(_LOOK)
        self._mark = redis.register_script(_MARK)

    async def look(self, org: str, ids: Sequence[bytes]) -> dict[bytes, Mark] | None:
        """Return what is known of some events; None where Redis does not answer."""
        if not ids:
            return {}
        found = await self._patient.ask(_call(self._look, _keys(org, ids), ()))
        if found is None:
            return None
        pairs = zip(found[::2], found[1::2], strict=True)
        return {ids[at]: Mark.of(packed) for at, packed in pairs}

    async def mark(self, org: str, marks: Mapping[bytes, Mark]) -> bool:
        """Remember events that are durable; say whether Redis took them."""
        if not marks:
            return True
        values = [KEPT_S, *(mark.packed() for mark in marks.values())]
        taken = await self._patient.ask(_call(self._mark, _keys(org, list(marks)), values))
        return taken is not None


async def _call(script: Any, keys: Sequence[bytes], values: Sequence[Any]) -> Any:
    return await script(keys=keys, args=values)


def _keys(org: str, ids: Sequence[bytes]) -> list[bytes]:
    prefix = f"{{{org}}}/seen/".encode()
    return [prefix + event_id for event_id in ids]
