"""The unit of work of a worker: folds records as they come, writes them a few at a time."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Protocol

from streams.conversations.unit import Partition, Source, Step
from streams.conversations.writer import Table as Written
from turnlog.errors import Unavailable

# How long a folded event may wait to be written: its writer waits for the outcome.
LINGER_S = 0.05


class Table(Written, Protocol):
    """One of the two tables."""

    def fetch(self, partition: int, key: bytes) -> bytes | None:
        """Return a stored value."""


class Writes(Protocol):
    """What writes steps."""

    def write(self, steps: Mapping[int, Step], heads: Written, turns: Written) -> None:
        """Make steps durable."""


class PartitionTables:
    """The two tables as one partition sees them."""

    def __init__(self, number: int, heads: Table, turns: Table) -> None:
        self._number = number
        self._heads = heads
        self._turns = turns

    def head(self, key: bytes) -> bytes | None:
        """Return a stored head."""
        return self._heads.fetch(self._number, key)

    def row(self, key: bytes) -> bytes | None:
        """Return a stored turn or decision."""
        return self._turns.fetch(self._number, key)


class Work:
    """Folds records of the partitions that this worker owns, and writes what they change.

    All methods belong to one event loop; only the writing itself runs in a thread beside it, while
    the fold goes on.

    Args:
        writer: writes a step.
        partitions: how many the topic has; see `Partition`.
    """

    def __init__(self, writer: Writes, partitions: int = 0) -> None:
        self._writer = writer
        self._count = partitions
        self._partitions: dict[int, Partition] = {}
        self._waiting = asyncio.Event()
        self._writing = asyncio.Lock()
        self._whole = True
        self._heads: Table
        self._turns: Table

    def attach(self, heads: Table, turns: Table) -> None:
        """Say where the rows are."""
        self._heads, self._turns = heads, turns

    def own(self, numbers: Iterable[int]) -> None:
        """Fold the records of these partitions from now on."""
        for number in numbers:
            tables = PartitionTables(number, self._heads, self._turns)
            self._partitions[number] = Partition(tables, self._count)

    def expect(self, number: int, position: int) -> None:
        """Hear at which offset a partition is read; some records may have come before."""
        if number in self._partitions:
            self._partitions[number].expect(position)

    def forget(self, numbers: Iterable[int]) -> None:
        """Give partitions up; what was folded of them and not written is folded again."""
        for number in numbers:
            self._partitions.pop(number, None)

    async def take(self, source: Source) -> None:
        """Fold one record; returns at once unless too much waits to be written.

        A record of a partition that is not owned is left alone: whoever owns it reads it.

        Raises:
            Unavailable: a store does not answer, or records before this one were not handed over.
        """
        partition = self._partitions.get(source.partition)
        if partition is None:
            return
        partition.fold(source)
        self._waiting.set()
        if partition.step.full:
            await self.flush()

    async def flush(self) -> None:
        """Write everything that was folded.

        Raises:
            Unavailable: a store does not answer. What was folded later leans on what was not
                written, so this object then writes nothing any more.
        """
        async with self._writing:
            if not self._whole:
                raise Unavailable("an earlier step was not written")
            self._waiting.clear()
            owned = {n: part for n, part in self._partitions.items() if part.step.events}
            steps = {number: partition.cut() for number, partition in owned.items()}
            if steps:
                await self._write(steps)
            for number, partition in owned.items():
                partition.written(steps[number])

    async def flush_often(self) -> None:
        """Write soon after something was folded, for ever.

        Raises:
            Unavailable: a store does not answer.
        """
        while True:
            await self._waiting.wait()
            await asyncio.sleep(LINGER_S)
            await self.flush()

    def durable(self, number: int) -> int | None:
        """Return the offset of a partition up to which everything is written, None if unknown."""
        partition = self._partitions.get(number)
        return None if partition is None else partition.durable

    def positions(self) -> dict[int, int]:
        """Return the durable offsets of all owned partitions."""
        return {number: part.durable or 0 for number, part in self._partitions.items()}

    async def _write(self, steps: Mapping[int, Step]) -> None:
        self._whole = False
        await asyncio.to_thread(self._writer.write, steps, self._heads, self._turns)
        self._whole = True
