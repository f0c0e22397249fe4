"""Which events are being written and which were accepted in the last day: an index in Redis by id.

Before an event is written its id is reserved, so that of two requests with one id, at two servers
and at the same moment, one writes and the other waits for what becomes of it. A mark takes the
reservation's place after the event is durable and never before, so what was never written is never
answered as a duplicate (openmeter#5118, langfuse#16017). A reservation whose writer says nothing
more lapses after 5 s: the next one takes the id, and its event says that it may repeat. Redis is
expendable: without it events are accepted, say that they may repeat, and the folds decide.

`{org}/seen/` and 16 bytes of the event id, the org in braces so that a cluster keeps a batch's keys
together; the value is a `Mark`, or a reservation: 16 bytes of who writes and 13 digits, the
millisecond of Redis's clock at which it lapses.
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
# A writer renews its reservations twice in this time: who says nothing for so long is dead.
RESERVED_MS = 5_000
# A batch waits so long for Redis, and then no batch does for a while.
ANSWER_S = 0.5
SILENCE_S = 2.0

T = TypeVar("T")

_RESERVED_BYTES = 29
# Nearly always nothing is found: an empty answer costs the client 100 µs less than 100 nils.
_RESERVE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local mine = ARGV[1]
local own = mine .. string.format('%013.0f', now + ARGV[2])
local found = {}
for at, key in ipairs(KEYS) do
  local held = redis.call('GET', key)
  local is_mine = held and #held == 29 and string.sub(held, 1, 16) == mine
  local lapsed = held and #held == 29 and tonumber(string.sub(held, 17)) < now
  if not held or is_mine or lapsed then
    redis.call('SET', key, own, 'EX', ARGV[3])
    if lapsed and not is_mine then found[#found + 1] = at - 1; found[#found + 1] = '' end
  else
    found[#found + 1] = at - 1; found[#found + 1] = held
  end
end
return found
"""
# The first mark stays: two that were written at once are one event and a repeat of it.
_MARK = """
for at, key in ipairs(KEYS) do
  local held = redis.call('GET', key)
  if not held or #held == 29 then redis.call('SET', key, ARGV[at + 1], 'EX', ARGV[1]) end
end
return #KEYS
"""
# What may have been written stays reserved by nobody, so that the next one says it may repeat.
_RELEASE = """
for at, key in ipairs(KEYS) do
  local held = redis.call('GET', key)
  if held and #held == 29 and string.sub(held, 1, 16) == ARGV[1] then
    if ARGV[at + 2] == '1' then
      redis.call('SET', key, ARGV[1] .. '0000000000000', 'EX', ARGV[2])
    else
      redis.call('DEL', key)
    end
  end
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


class Looked(NamedTuple):
    """What the index says of some events; those that are not in it are reserved now.

    Attributes:
        marks: of those that are durable.
        pending: those that another one writes now.
        doubtful: reserved now, after one who may have written them.
    """

    marks: Mapping[bytes, Mark]
    pending: frozenset[bytes]
    doubtful: frozenset[bytes]


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
        self._reserve = redis.register_script(_RESERVE)
        self._mark = redis.register_script(_MARK)
        self._release = redis.register_script(_RELEASE)

    async def reserve(self, org: str, ids: Sequence[bytes], writer: bytes) -> Looked | None:
        """Reserve events for a writer, or renew that; None where Redis does not answer.

        All in one step, so that no two batches wait for each other.

        Args:
            org: whose events.
            ids: of the events, 16 bytes each.
            writer: 16 random bytes.
        """
        if not ids:
            return _NOTHING
        values = [writer, RESERVED_MS, KEPT_S]
        found = await self._patient.ask(_call(self._reserve, _keys(org, ids), values))
        if found is None:
            return None
        held = {ids[at]: said for at, said in zip(found[::2], found[1::2], strict=True)}
        return Looked(
            {id: Mark.of(said) for id, said in held.items() if len(said) > _RESERVED_BYTES},
            frozenset(id for id, said in held.items() if len(said) == _RESERVED_BYTES),
            frozenset(id for id, said in held.items() if not said),
        )

    async def release(self, org: str, ids: Mapping[bytes, bool], writer: bytes) -> None:
        """Give back what was reserved and is not durable.

        Args:
            org: whose events.
            ids: of the events, each with whether it may have been written.
            writer: who had reserved them.
        """
        if ids:
            values = [writer, KEPT_S, *map(int, ids.values())]
            await self._patient.ask(_call(self._release, _keys(org, list(ids)), values))

    async def mark(self, org: str, marks: Mapping[bytes, Mark]) -> bool:
        """Remember events that are durable; say whether Redis took them."""
        if not marks:
            return True
        values = [KEPT_S, *(mark.packed() for mark in marks.values())]
        taken = await self._patient.ask(_call(self._mark, _keys(org, list(marks)), values))
        return taken is not None


_NOTHING = Looked({}, frozenset(), frozenset())


async def _call(script: Any, keys: Sequence[bytes], values: Sequence[Any]) -> Any:
    return await script(keys=keys, args=values)


def _keys(org: str, ids: Sequence[bytes]) -> list[bytes]:
    prefix = f"{{{org}}}/seen/".encode()
    return [prefix + event_id for event_id in ids]
