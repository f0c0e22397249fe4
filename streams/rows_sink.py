"""The sink of a ClickHouse table with one row an event: moves bodies, decodes only in trouble.

In order, for each batch:

1. Records that are in the table already (after a crash) are left out, by set difference of offsets.
2. Repeats: an event id of the last 8 days of append time, or one that says `may_repeat` and is in
   the table, is looked at closely. The same identity and content: dropped. Other content under the
   same id: a conflict, which goes to the dead letters and is never merged.
3. One Avro container per schema fingerprint is inserted as it is.
4. Where the engine refuses one, its records are decoded one by one: the bad ones go to the dead
   letters, values outside their shape are stored as `other`, and the rest is inserted.
"""

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Message

from processors.common import IDENTITY, identity, shaped
from sinks.clickhouse.client import ClickHouse, InsertRefused
from sinks.clickhouse.container import Batch, Builder, Built, Container, event_id, may_repeat
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

logger = logging.getLogger(__name__)

CONFLICT = "conflict: another event has this event_id"
SHAPE = "an id has not the form of one"

Refused = tuple[int, str]


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
        self._by_day: dict[int, list[bytes]] = {}
        for day in sorted(recent.ids):
            self.add(day, recent.ids[day])

    def add(self, day: int, ids: Sequence[bytes]) -> None:
        """Take event ids that are in the table now, and forget those that left the window."""
        self.ids.update(ids)
        self._by_day.setdefault(day, []).extend(ids)
        for old in [known for known in self._by_day if known < day - WINDOW_US // DAY_US]:
            self.ids.difference_update(self._by_day.pop(old))
            self.older = True


class _Prepared(NamedTuple):
    """A batch that was built before its turn; `flags` says whether it was asked for repeats."""

    messages: Sequence[Message]
    batch: Batch
    built: Built
    flags: bool


class RowsSink(Sink):
    """Where the records of one topic become rows of one table.

    Args:
        clickhouse: connection.
        table: exists.
    """

    # With 10,000 rows an insert the engine takes twice as long a row.
    max_records = 50_000
    max_bytes = 64 << 20
    max_age_s = 0.5

    def __init__(self, clickhouse: ClickHouse, table: Table) -> None:
        self._clickhouse = clickhouse
        self._table = table
        # Two, because the next batch is prepared while this one is written.
        self._ahead, self._builder = Builder(table), Builder(table)
        self._prepared: list[_Prepared] = []
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
        for _, number in partitions:
            self._seen.pop(number, None)

    def prepare(self, messages: Sequence[Message]) -> None:
        """Build the containers of a batch, in the belief that all of it is new."""
        batch = Batch.of(messages)
        flags = self._has_older(batch)
        self._prepared = [_Prepared(messages, batch, self._ahead.build(batch, flags=flags), flags)]

    def write(self, messages: Sequence[Message]) -> list[Dead]:
        """Insert a batch; on return its rows are in the table."""
        places, batch, built = self._built(messages)
        dead: list[Refused] = []
        if built.may_repeat or self._has_repeats(built):
            kept, conflicts = self._sift(batch)
            dead = [(places[at], reason) for at, reason in conflicts]
            places, batch = [places[at] for at in kept], batch.only(kept)
            built = self._builder.build(batch)
        refused = built.refused + self._insert(batch, built)
        dead += [(places[at], reason) for at, reason in refused]
        return [Dead(messages[at], reason) for at, reason in sorted(dead)]

    def _built(self, messages: Sequence[Message]) -> tuple[Sequence[int], Batch, Built]:
        """Return the records that are not in the table: their places, and their containers."""
        ahead = next((known for known in self._prepared if known.messages is messages), None)
        batch = ahead.batch if ahead else Batch.of(messages)
        places, new = self._without_stored(batch)
        flags = self._has_older(new)
        if ahead and new is batch and flags == ahead.flags:
            return places, new, ahead.built
        return places, new, self._builder.build(new, flags=flags)

    def _has_older(self, batch: Batch) -> bool:
        return any(self._seen[number].older for number in set(batch.partitions))

    def _without_stored(self, batch: Batch) -> tuple[Sequence[int], Batch]:
        """Leave out records that are in the table already; only after a start there are any."""
        places = range(len(batch.offsets))
        last = dict(zip(batch.partitions, batch.offsets, strict=True))
        known = {number: self._seen[number].offsets for number in last}
        if not any(known.values()):
            return places, batch
        coordinates = zip(batch.partitions, batch.offsets, strict=True)
        new = [at for at, (number, offset) in enumerate(coordinates) if offset not in known[number]]
        for number, offset in last.items():
            self._seen[number].offsets = {there for there in known[number] if there > offset}
        logger.info("%s: %d records are stored already", self._table.name, len(places) - len(new))
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
            own = _identity(batch, at) if id_ and (id_ in known or id_ in many) else None
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
        return identities(self._clickhouse, self._table, sorted(asked), IDENTITY)

    def _insert(self, batch: Batch, built: Built) -> list[Refused]:
        """Insert the containers; return what the engine refused of them."""
        dead: list[Refused] = []
        spans = _spans(batch)
        for part, container in enumerate(built.containers):
            try:
                self._insert_one(container, query_id(self._table, spans, part))
            except InsertRefused as error:
                logger.warning("%s: %s; its records are read one by one", self._table.name, error)
                dead += self._insert_decoded(batch, built, container.header)
        self._remember(batch, built, {_event_id(batch.values[at]) for at, _ in dead})
        return dead

    def _insert_one(self, container: Container, name: str) -> None:
        table = self._table.name
        self._clickhouse.insert_avro(table, container.columns, container.pieces, name)

    def _insert_decoded(self, batch: Batch, built: Built, header: bytes) -> list[Refused]:
        """Decode the records of a container that the engine refused, and insert the good ones."""
        dead: list[Refused] = []
        good: list[int] = []
        out = {at for at, _ in built.refused}
        for at, value in enumerate(batch.values):
            if at in out or not value.startswith(header):
                continue
            try:
                batch.values[at] = _mended(value)
                good.append(at)
            except DecodeError as error:
                dead.append((at, str(error)))
        mended = batch.only(good)
        try:
            built = self._builder.build(mended, decoded=True)
            for part, container in enumerate(built.containers):
                self._insert_one(container, query_id(self._table, _spans(mended), part))
        except InsertRefused as error:
            raise Unavailable(f"{error}, although every record of it decodes") from None
        return dead

    def _remember(self, batch: Batch, built: Built, gone: Collection[bytes | None]) -> None:
        last_ms = dict(zip(batch.partitions, batch.append_ms, strict=True))
        for number, ids in built.event_ids.items():
            stored = [id_ for id_ in ids if id_ not in gone] if gone else ids
            self._seen[number].add(last_ms[number] * 1000 // DAY_US, stored)


def _event_id(value: bytes) -> bytes | None:
    """Return the event id of a value; None where it does not begin like an event."""
    try:
        return event_id(value)
    except (DecodeError, TypeError):
        return None


def _identity(batch: Batch, at: int) -> tuple[Any, ...] | None:
    """Return what a repeat of this event has in common with it; None where it is refused anyway."""
    try:
        if not batch.values[at].startswith(key_prefixes(batch.keys[at]), HEADER_BYTES):
            return None
        event = decode(batch.values[at])
    except (DecodeError, AttributeError):
        return None
    body = shaped(event)
    return None if body is None else identity(event.type, body)


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


def _spans(batch: Batch) -> dict[int, tuple[int, int]]:
    """Return the first and last offset of each partition."""
    last = dict(zip(batch.partitions, batch.offsets, strict=True))
    first = dict(zip(reversed(batch.partitions), reversed(batch.offsets), strict=True))
    return {number: (first[number], last[number]) for number in sorted(last)}
