"""Runs that have begun: under which key locator, for whom, in which conversation.

A run's later events are sealed under the locator that its beginning chose. Asked are this process,
Redis, and then the runs view. What Redis holds has no content: ids and numbers.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgpack
from redis.asyncio import Redis

from serve.appending.seen import Patient
from sinks.clickhouse.client import ClickHouse
from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.keys import Locator

# A grant holds the keys of three days: nothing is sealed for a run that is older.
KEPT_S = 3 * 24 * 3600
MAX_REMEMBERED = 20_000

_FIND = """
SELECT run, argMin((project, user, conversation, turn, hex(key_tree), key_day, key_gen),
    (partition, offset))
FROM {table} WHERE org = {{org:String}} AND run IN {{runs:Array(String)}} AND type = 'run.created'
GROUP BY run
"""


class Begun(NamedTuple):
    """A run as its beginning made it.

    Attributes:
        locator: where its keys sit.
        project: the project that it belongs to.
        user: who acts, "" for nobody.
        conversation: "" for none.
        turn: id of the answer's turn, "" outside a conversation.
    """

    locator: Locator
    project: str
    user: str
    conversation: str
    turn: str

    def packed(self) -> bytes:
        """Return its bytes."""
        return cast(bytes, msgpack.packb([*self.locator, *self[1:]]))

    @classmethod
    def of(cls, packed: bytes) -> "Begun":
        """Return what `packed` gave."""
        tree, day, gen, *rest = msgpack.unpackb(packed)
        return cls(Locator(tree, day, gen), *rest)


class Found(NamedTuple):
    """What is known of some runs.

    Attributes:
        runs: those that have begun.
        sure: whether the others have not; False where a part did not answer.
    """

    runs: Mapping[str, Begun]
    sure: bool


class KnownRuns:
    """Finds runs, and remembers those that begin here.

    Args:
        config: where the runs view is.
        redis: bytes in, bytes out.
        patient: shared by all that ask the same Redis.
    """

    def __init__(self, config: Config, redis: Redis, patient: Patient | None = None) -> None:
        self._config = config
        self._redis = redis
        self._patient = patient or Patient()
        self._here: dict[tuple[str, str], Begun] = {}
        self._clickhouse: ClickHouse | None = None

    def here(self, org: str, run: str) -> Begun | None:
        """Return what this process knows of a run."""
        return self._here.get((org, run))

    def remember(self, org: str, run: str, begun: Begun) -> None:
        """Take a run in; those that were met first are forgotten."""
        self._here[org, run] = begun
        while len(self._here) > MAX_REMEMBERED:
            del self._here[next(iter(self._here))]

    async def share(self, org: str, runs: Mapping[str, Begun]) -> None:
        """Tell the other processes of runs whose beginning is durable."""
        if runs:
            await self._patient.ask(self._share(org, runs))

    async def _share(self, org: str, runs: Mapping[str, Begun]) -> Any:
        pipeline = self._redis.pipeline(transaction=False)
        for run, begun in runs.items():
            pipeline.set(_key(org, run), begun.packed(), ex=KEPT_S)
        return await pipeline.execute()

    async def find(self, org: str, runs: Iterable[str]) -> Found:
        """Return what is known of some runs anywhere."""
        wanted = set(runs)
        found = {run: begun for run in wanted if (begun := self.here(org, run))}
        left = sorted(wanted - found.keys())
        if not left:
            return Found(found, sure=True)
        shared = await self._patient.ask(self._shared(org, left))
        found |= shared or {}
        left = [run for run in left if run not in found]
        viewed = await self._viewed(org, left) if left else {}
        found |= viewed or {}
        for run, begun in found.items():
            self.remember(org, run, begun)
        # The view is seconds behind: only together they know that there is no such run.
        return Found(found, sure=shared is not None and viewed is not None)

    async def _shared(self, org: str, runs: Sequence[str]) -> dict[str, Begun]:
        values = await self._redis.mget([_key(org, run) for run in runs])
        pairs = zip(runs, values, strict=True)
        return {run: Begun.of(cast(bytes, value)) for run, value in pairs if value is not None}

    async def _viewed(self, org: str, runs: Sequence[str]) -> dict[str, Begun] | None:
        try:
            return await asyncio.to_thread(self._query, org, runs)
        except Unavailable:
            return None

    def _query(self, org: str, runs: Sequence[str]) -> dict[str, Begun]:
        if self._clickhouse is None:
            self._clickhouse = ClickHouse(self._config)
        sql = _FIND.format(table=f"{self._clickhouse.database}.runs")
        rows = self._clickhouse.rows(sql, {"org": org, "runs": list(runs)})
        return {run: _begun(*values) for run, values in rows}


def _begun(
    project: str, user: str, conversation: str, turn: str, tree: str, day: int, gen: int
) -> Begun:
    return Begun(Locator(bytes.fromhex(tree), day, gen), project, user, conversation, turn)


def _key(org: str, run: str) -> bytes:
    return f"{{{org}}}/run/{run}".encode()
