"""What the processes of a server tell each other of remote clients' runs, through Redis.

One record a run: who holds it, what it began with, how it ended. Ids, numbers and digests; content
is in none of it. Without Redis a process knows its own runs and nothing of the others'.
"""

from typing import Any, NamedTuple, cast

import msgpack
from redis.asyncio import Redis

from serve.appending.known import Begun
from serve.appending.seen import Patient

KEPT_S = 3 * 24 * 3600
RUNNING = "running"


class Life(NamedTuple):
    """One run of a remote client.

    Attributes:
        holder: id of the process that holds it.
        producer_id: under which its events are numbered there.
        epoch: its writer epoch.
        began_us: when it began, UTC microseconds.
        status: running, or how it ended.
        created: digest of what its client asked for when creating it, 16 bytes.
        ended: digest of the call that ended it; of a running one, of the call that may have.
        position: `topic/partition/offset` of its last accepted event.
        begun: its key locator, user, conversation and turn.
        common: fields that all its events share.
        describes: provider, model and the like, in their shapes.
    """

    holder: str
    producer_id: str
    epoch: int
    began_us: int
    status: str
    created: bytes
    ended: bytes
    position: str
    begun: Begun
    common: dict[str, Any]
    describes: dict[str, Any]

    def packed(self) -> bytes:
        """Return its bytes."""
        plain = self._replace(begun=self.begun.packed())  # type: ignore[arg-type]
        return cast(bytes, msgpack.packb(list(plain)))

    @classmethod
    def of(cls, packed: bytes) -> "Life":
        """Return what `packed` gave."""
        made = cls(*msgpack.unpackb(packed))
        return made._replace(begun=Begun.of(cast(bytes, made.begun)))


class Lives:
    """Reads and writes the records.

    Args:
        redis: bytes in, bytes out.
        patient: shared by all that ask the same Redis.
    """

    def __init__(self, redis: Redis, patient: Patient) -> None:
        self._redis = redis
        self._patient = patient

    async def find(self, org: str, run: str) -> tuple[Life | None, bool]:
        """Return the record of a run, and whether Redis answered."""
        # A list, because None is what an answer that did not come looks like.
        found = await self._patient.ask(self._find(org, run))
        if found is None:
            return None, False
        return (None if found[0] is None else Life.of(found[0])), True

    async def _find(self, org: str, run: str) -> list[bytes | None]:
        return cast(list[bytes | None], await self._redis.mget([_key(org, run)]))

    async def begin(self, org: str, run: str, life: Life) -> bool:
        """Write a new record; False where another process had begun the same run before."""
        found = await self._patient.ask(self._begin(org, run, life))
        return found is not False

    async def _begin(self, org: str, run: str, life: Life) -> bool:
        key = _key(org, run)
        return bool(await self._redis.set(key, life.packed(), ex=KEPT_S, nx=True))

    async def write(self, org: str, run: str, life: Life) -> None:
        """Write a record over what is there."""
        await self._patient.ask(self._write(_key(org, run), life.packed(), KEPT_S))

    async def alive(self, holder: str, for_s: float) -> None:
        """Say that a process lives; unless it says so again in time, it is lost."""
        await self._patient.ask(self._write(_holder_key(holder), b"1", for_s))

    async def _write(self, key: bytes, value: bytes, kept_s: float) -> bool:
        return bool(await self._redis.set(key, value, px=int(1000 * kept_s)))

    async def is_alive(self, holder: str) -> bool:
        """Tell whether a process said lately that it lives; True where Redis does not answer."""
        found = await self._patient.ask(self._alive(holder))
        return found is not False

    async def _alive(self, holder: str) -> bool:
        return bool(await self._redis.exists(_holder_key(holder)))


def _key(org: str, run: str) -> bytes:
    return f"{{{org}}}/life/{run}".encode()


def _holder_key(holder: str) -> bytes:
    return f"doors/{holder}".encode()
