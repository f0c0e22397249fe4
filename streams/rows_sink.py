"""The sink of a ClickHouse table with one row an event: moves bodies, decodes only in trouble.

In order, for each batch:

1. Records that are in the table already (after a crash) are left out, by set difference of offsets.
2. Repeats: an event id of the last 8 days of append time, or one that says `may_repeat` and is in
   the table, is looked at closely. The same identity and content: dropped. Other content or other
   numbers of tokens under the same id: a conflict, which goes to the dead letters and is never
   merged; the first one stays.
3. One Avro container per schema fingerprint is inserted as it is.
4. Where the engine refuses one, its records are decoded one by one: the bad ones go to the dead
   letters, values outside their shape are stored as `other`, and the rest is inserted.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from confluent_kafka import Message

from processors import runs, usage
from processors.common import IDENTITY, identity, shaped
from sinks.clickhouse.client import ClickHouse, InsertRefused
from sinks.clickhouse.container import (
    LANES,
    Batch,
    Builder,
    Built,
    Container,
    event_id,
    joined,
    may_repeat,
)
from sinks.clickhouse.recovery import (
    WINDOW_US,
    Recent,
    identities,
    query_id,
    recent,
    stop_others,
    stored_offsets,
)
from sinks.clickhouse.tables import DAY_US, Table
from streams.batch import Partition, Sink
from streams.dead import Dead
from turnlog.errors import DecodeError, Unavailable
from turnlog.events import decode, encode, key_prefixes
from turnlog.events.schema import HEADER_BYTES
from turnlog.kafka import partition_of

logger = logging.getLogger(__name__)

MISPLACED = "partition_mismatch"
CONFLICT = "conflict: another event has this event_id"
SHAPE = "an id has not the form of one, or a number is out of bounds"

Refused = tuple[int, str]

# By topic, what belongs to the identity of its events besides IDENTITY.
_NUMBERS = {runs.TOPIC: runs.NUMBERS, usage.TOPIC: usage.NUMBERS}


class Seen:
    """What is known of one partition.

    Attributes:
        offsets: of records that are in the table although they are not committed.
        ids: event ids within the window: about 100 bytes each.
        older: whether the table holds rows from before the window.
    """

    def __init__(self, offsets: set[int], recent: Recent) -> None:
        self.offsets = offsets
        self.older = recent.older
        self.ids: set[bytes] = set()
        self._by_day: dict[int, list[Sequence[bytes]]] = {}
        for day in sorted(recent.ids):
            self.add(day, recent.ids[day])

    def add(self, day: int, ids: Sequence[bytes]) -> None:
        """Take event ids that are in the table now, and forget those that left the window."""
        self.ids.update(ids)
        self._by_day.setdefault(day, []).append(ids)
        for old in [known for known in self._by_day if known < day - WINDOW_US // DAY_US]:
            self.ids.difference_update(*self._by_day.pop(old))
            self.older = True


class _Prepared(NamedTuple):
    """Messages that were built when they arrived.

    Attributes:
        flags: they were asked whether they repeat.
        misplaced: one of them stands in another partition than its key says.
    """

    messages: Sequence[Message]
    batch: Batch
    built: Built
    flags: bool
    misplaced: bool


class RowsSink(Sink):
    """Where the records of one topic become rows of one table.

    Args:
        clickhouse: connection.
        table: exists.
        partitions: how many the topic has; 0: where a record stands is not checked.
    """

    # With 10,000 rows an insert the engine takes twice as long a row.
    max_records = 50_000
    max_bytes = 64 << 20
    max_age_s = 0.5

    def __init__(self, clickhouse: ClickHouse, table: Table, partitions: int = 0) -> None:
        self._clickhouse = clickhouse
        self._table = table
        self._partitions = partitions
        self._numbers = _NUMBERS.get(table.topic, ())
        # Two, because messages are prepared while others are written.
        self._ahead, self._builder = Builder(table), Builder(table)
        self._prepared: dict[int, _Prepared] = {}
        self._lanes = ThreadPoolExecutor(LANES, thread_name_prefix=f"{table.name}-insert")
        self._seen: dict[int, Seen] = {}

    def recover(self, assignments: Mapping[Partition, int]) -> None:
        """Learn from the table what is there of the partitions."""
        start = {number: committed for (_, number), committed in assignments.items()}
        if not start:
            return
        stop_others(self._clickhouse, self._table, start)
        offsets = stored_offsets(self._clickhouse, self._table, start)
        for number, part in recent(self._clickhouse, self._table, start).items():
            self._seen[number] = Seen(offsets[number], part)

    def forget(self, partitions: Collection[Partition]) -> None:
        """Drop what is known of partitions that another worker owns now."""
        self._prepared.clear()
        for _, number in partitions:
            self._seen.pop(number, None)

    def prepare(self, messages: Sequence[Message]) -> None:
        """Build containers while the messages are in the processor's cache; all may be new."""
        self._prepared[id(messages[0])] = self._part(messages, self._ahead)

    def _part(self, messages: Sequence[Message], builder: Builder) -> _Prepared:
        batch = Batch.of(messages)
        flags = self._has_older(set(batch.partitions))
        built = builder.build(batch, flags=flags)
        return _Prepared(messages, batch, built, flags, self._has_misplaced(batch))

    def _has_misplaced(self, batch: Batch) -> bool:
        """Say whether a record stands where neither the fold nor a reader would look for it."""
        places = set(zip(batch.keys, batch.partitions, strict=True))
        return any(self._is_misplaced(key, number) for key, number in places)

    def _is_misplaced(self, key: bytes | None, number: int | None) -> bool:
        # A record without a key is refused for that.
        return (
            bool(self._partitions and key) and partition_of(key or b"", self._partitions) != number
        )

    def write(self, messages: Sequence[Message]) -> list[Dead]:
        """Insert a batch; on return its rows are in the table."""
        parts = list(self._taken(messages))
        if sum(len(part.messages) for part in parts) < len(messages):
            parts = [self._part(messages, self._builder)]
        if any(part.misplaced for part in parts):
            return self._write_placed(messages)
        built = joined(part.built for part in parts)
        batch = partial(Batch.joined, [part.batch for part in parts])
        stale = any(part.flags != self._has_older(part.built.last) for part in parts)
        if stale or built.may_repeat or self._has_stored(built) or self._has_repeats(built):
            dead = self._write_closely(batch())
        else:
            dead = built.refused + self._insert(batch, built)
        return [Dead(messages[at], reason) for at, reason in sorted(dead)]

    def _write_placed(self, messages: Sequence[Message]) -> list[Dead]:
        """Refuse what stands in another partition than its key says, and write the rest."""
        wrong = [m for m in messages if self._is_misplaced(m.key(), m.partition())]
        right = [m for m in messages if not self._is_misplaced(m.key(), m.partition())]
        return [Dead(m, _misplaced_why(m)) for m in wrong] + (self.write(right) if right else [])

    def _write_closely(self, batch: Batch) -> list[Refused]:
        """Insert what of a batch is not in the table yet."""
        places, new = self._without_stored(batch)
        kept, conflicts = self._sift(new)
        new = new.only(kept)
        built = self._builder.build(new)
        dead = [(places[at], reason) for at, reason in conflicts]
        refused = built.refused + self._insert(lambda: new, built)
        return dead + [(places[kept[at]], reason) for at, reason in refused]

    def _taken(self, messages: Sequence[Message]) -> Iterator[_Prepared]:
        """Take out what was prepared of these messages; after a revoke it is not all of them."""
        at = 0
        while at < len(messages):
            part = self._prepared.pop(id(messages[at]), None)
            if part is not None:
                yield part
            at += len(part.messages) if part is not None else 1

    def _has_older(self, partitions: Iterable[int]) -> bool:
        seen = map(self._seen.get, partitions)
        return any(part is not None and part.older for part in seen)

    def _has_stored(self, built: Built) -> bool:
        """Say whether records may be in the table already; only after a start they may."""
        return any(self._seen[number].offsets for number in built.last)

    def _without_stored(self, batch: Batch) -> tuple[list[int], Batch]:
        """Leave out records that are in the table already; return the places that stay."""
        last = dict(zip(batch.partitions, batch.offsets, strict=True))
        known = {number: self._seen[number].offsets for number in last}
        coordinates = zip(batch.partitions, batch.offsets, strict=True)
        new = [at for at, (number, offset) in enumerate(coordinates) if offset not in known[number]]
        for number, offset in last.items():
            self._seen[number].offsets = {there for there in known[number] if there > offset}
        if len(new) < len(batch.offsets):
            stored = len(batch.offsets) - len(new)
            logger.info("%s: %d records are stored already", self._table.name, stored)
        return new, batch.only(new)

    def _has_repeats(self, built: Built) -> bool:
        """Say whether a record needs a closer look; in almost every batch none does."""
        for number, ids in built.event_ids.items():
            distinct = set(ids)
            if len(distinct) < len(ids) or not distinct.isdisjoint(self._seen[number].ids):
                return True
        return False

    def _sift(self, batch: Batch) -> tuple[list[int], list[Refused]]:
        """Leave out repeats; return the places that stay, and the conflicts."""
        ids = [_event_id(value) for value in batch.values]
        known = self._stored_identities(batch, ids)
        many = {id_ for id_, count in Counter(ids).items() if count > 1}
        kept: list[int] = []
        conflicts: list[Refused] = []
        for at, id_ in enumerate(ids):
            own = (
                _identity(batch, at, self._numbers)
                if id_ and (id_ in known or id_ in many)
                else None
            )
            if id_ is None or own is None:
                kept.append(at)  # new, or refused later on
            elif known.setdefault(id_, own) is own:
                kept.append(at)
            elif known[id_] != own:
                conflicts.append((at, CONFLICT))
        repeats = len(ids) - len(kept) - len(conflicts)
        if repeats:
            logger.info("%s: %d repeats left out", self._table.name, repeats)
        return kept, conflicts

    def _stored_identities(
        self, batch: Batch, ids: Sequence[bytes | None]
    ) -> dict[bytes, tuple[Any, ...]]:
        """Return the identities of those of these events that the table holds."""
        asked = set()
        for id_, number, value in zip(ids, batch.partitions, batch.values, strict=True):
            seen = self._seen[number]
            if id_ is not None and (id_ in seen.ids or seen.older and may_repeat(value)):
                asked.add(id_)
        columns = (*IDENTITY, *self._numbers)
        stored = identities(self._clickhouse, self._table, sorted(asked), columns)
        rows = {id_: dict(zip(columns, row, strict=True)) for id_, row in stored.items()}
        return {id_: identity(row["type"], row, self._numbers) for id_, row in rows.items()}

    def _insert(self, batch: Callable[[], Batch], built: Built) -> list[Refused]:
        """Insert the containers, lanes at the same time; return what the engine refused of them."""
        lanes = [[c for c in built.containers if c.lane == lane] for lane in range(LANES)]
        insert = partial(self._insert_lane, built)
        refused = list(chain(*self._lanes.map(insert, filter(None, lanes))))
        if not refused:
            self._remember(built, set())
            return []
        whole = batch()
        dead = [
            bad for container in refused for bad in self._insert_decoded(whole, built, container)
        ]
        self._remember(built, {_event_id(whole.values[at]) for at, _ in dead})
        return dead

    def _insert_lane(self, built: Built, containers: Sequence[Container]) -> list[Container]:
        """Insert containers one after the other; return those that the engine refused."""
        refused = []
        for container in containers:
            try:
                self._insert_one(built, container)
            except InsertRefused as error:
                logger.warning("%s: %s; its records are read one by one", self._table.name, error)
                refused.append(container)
        return refused

    def _insert_one(self, built: Built, container: Container) -> None:
        spans = {
            number: (built.first[number], last)
            for number, last in sorted(built.last.items())
            if number % LANES == container.lane
        }
        name = query_id(self._table, spans, container.header)
        table = self._table.name
        self._clickhouse.insert_avro(table, container.columns, container.pieces, name)

    def _insert_decoded(self, batch: Batch, built: Built, refused: Container) -> list[Refused]:
        """Decode the records of a container that the engine refused, and insert the good ones."""
        dead: list[Refused] = []
        good: list[int] = []
        out = {at for at, _ in built.refused}
        for at, value in enumerate(batch.values):
            lane = batch.partitions[at] % LANES
            if at in out or lane != refused.lane or not value.startswith(refused.header):
                continue
            try:
                batch.values[at] = _mended(value)
                good.append(at)
            except DecodeError as error:
                dead.append((at, str(error)))
        mended = self._builder.build(batch.only(good), decoded=True)
        try:
            for container in mended.containers:
                self._insert_one(mended, container)
        except InsertRefused as error:
            raise Unavailable(f"{error}, although every record of it decodes") from None
        return dead

    def _remember(self, built: Built, gone: Collection[bytes | None]) -> None:
        for number, ids in built.event_ids.items():
            stored = [id_ for id_ in ids if id_ not in gone] if gone else ids
            self._seen[number].add(built.append_ms[number] * 1000 // DAY_US, stored)


def _misplaced_why(message: Message) -> str:
    """Return why a misplaced record is refused: what does not decode has no right place."""
    try:
        decode(message.value() or b"")
    except DecodeError as error:
        return str(error)
    return MISPLACED


def _event_id(value: bytes) -> bytes | None:
    """Return the event id of a value; None where it does not begin like an event."""
    try:
        return event_id(value)
    except (DecodeError, TypeError):
        return None


def _identity(batch: Batch, at: int, numbers: Sequence[str]) -> tuple[Any, ...] | None:
    """Return what a repeat of this event has in common with it; None where it is refused anyway."""
    try:
        if not batch.values[at].startswith(key_prefixes(batch.keys[at]), HEADER_BYTES):
            return None
        event = decode(batch.values[at])
    except (DecodeError, AttributeError):
        return None
    body = shaped(event)
    return None if body is None else identity(event.type, body, numbers)


def _mended(value: bytes) -> bytes:
    """Return an event in the shapes that the table takes.

    Raises:
        DecodeError: it does not decode, or one of its ids is none.
    """
    event = decode(value)
    body = shaped(event)
    if body is None:
        raise DecodeError(SHAPE)
    return encode(event.type, body)
