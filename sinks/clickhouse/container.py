"""Records of Kafka as Avro containers that ClickHouse reads, without decoding what is only moved.

One container per schema fingerprint. Each of its records is

    type, partition, append_us, frame_bytes, offset, the event's value without its frame, body_bytes

where the value is moved as it is. Only the key, the place of `event_id` and the presence of a frame
are looked at: 1 µs a record, where decoding it takes 15.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, cast

from confluent_kafka import Message

from sinks.clickhouse.columns import padding
from sinks.clickhouse.tables import COORDINATES, Table
from turnlog.errors import DecodeError
from turnlog.events import EventType, by_fingerprint, key_prefixes
from turnlog.events.pack import varint
from turnlog.events.schema import HEADER_BYTES, MARKER
from turnlog.events.slices import EVENT_ID_BYTES, frame_span

_SYNC = b"turnlog.avro.syn"
# Offsets are written as two bytes for their low 13 bits, from a table, and the rest behind them.
_LOW_BITS = 13
_LOW_MASK = (1 << _LOW_BITS) - 1
_LOW = tuple(bytes([i << 1 & 0x7F | 0x80, i >> 6 | 0x80]) for i in range(1 << _LOW_BITS))
# Bodies up to this length have its varint at hand.
_SIZES = 4096
# Partitions are dealt to lanes, which are inserted at the same time: an insert of one keeps the
# engine busy on one core only.
LANES = 2
_ORG_AT = HEADER_BYTES + 1
_PARTS = 5
_YES = varint(1)


class Batch(NamedTuple):
    """Records of one topic, column by column; those of one partition are in offset order.

    A key or value may be None all the same; the builder refuses such a record.
    """

    keys: list[bytes]
    values: list[bytes]
    partitions: list[int]
    offsets: list[int]
    append_ms: list[int]

    @classmethod
    def of(cls, messages: Sequence[Message]) -> "Batch":
        """Take consumed messages apart. Headers are never touched: they cost 4.3 µs a record."""
        return cls(
            cast(list[bytes], list(map(Message.key, messages))),
            cast(list[bytes], list(map(Message.value, messages))),
            cast(list[int], list(map(Message.partition, messages))),
            cast(list[int], list(map(Message.offset, messages))),
            [stamp for _, stamp in map(Message.timestamp, messages)],
        )

    @classmethod
    def joined(cls, parts: Iterable["Batch"]) -> "Batch":
        """Return consecutive batches as one."""
        columns: list[list[Any]] = [list(chain(*column)) for column in zip(*parts, strict=True)]
        return cls(*columns)

    def only(self, places: Sequence[int]) -> "Batch":
        """Return the records at the given places."""
        return Batch(*([column[at] for at in places] for column in self))  # type: ignore[arg-type]


class Container(NamedTuple):
    """Records of one fingerprint, of the partitions of one lane.

    Attributes:
        lane: which of LANES.
        header: the 10 bytes before each of their bodies.
        columns: what the container holds of the table.
        head: the beginning of the file.
        blocks: what follows it, in any number of pieces.
        records: how many.
    """

    lane: int
    header: bytes
    columns: tuple[str, ...]
    head: bytes
    blocks: tuple[bytes, ...]
    records: int

    @property
    def pieces(self) -> tuple[bytes, ...]:
        """Return its bytes."""
        return self.head, *self.blocks


class Built(NamedTuple):
    """A batch ready to be inserted.

    Attributes:
        records: how many the batch has.
        containers: one per lane and fingerprint.
        event_ids: of the records in them, by partition, in order.
        refused: place in the batch and reason of each record that is not in them.
        may_repeat: whether any of them says so of itself; False where it was not asked.
        first: offset of the first record of each partition.
        last: offset of the last one.
        append_ms: append time of the last one.
    """

    records: int
    containers: list[Container]
    event_ids: dict[int, list[bytes]]
    refused: list[tuple[int, str]]
    may_repeat: bool
    first: dict[int, int]
    last: dict[int, int]
    append_ms: dict[int, int]


def joined(parts: Iterable[Built]) -> Built:
    """Return consecutive batches as one; a container goes on with further blocks."""
    records, may_repeat = 0, False
    whole = Built(0, [], {}, [], False, {}, {}, {})
    containers: dict[tuple[int, bytes], Container] = {}
    for part in parts:
        whole.refused.extend((records + place, reason) for place, reason in part.refused)
        records, may_repeat = records + part.records, may_repeat or part.may_repeat
        for number, ids in part.event_ids.items():
            whole.event_ids.setdefault(number, []).extend(ids)
        for number, offset in part.first.items():
            whole.first.setdefault(number, offset)
        whole.last.update(part.last)
        whole.append_ms.update(part.append_ms)
        for new in part.containers:
            old = containers.get((new.lane, new.header), new._replace(blocks=(), records=0))
            containers[new.lane, new.header] = old._replace(
                blocks=old.blocks + new.blocks, records=old.records + new.records
            )
    return whole._replace(
        records=records, may_repeat=may_repeat, containers=list(containers.values())
    )


class _Open:
    """The container of one fingerprint that is being filled."""

    def __init__(self, table: Table, kind: EventType) -> None:
        names = {column.name: column.wire_name for column in table.columns}
        own = [names[field.name] for field in kind.fields if field.name != "frame"]
        self.columns = ("type_wire", *COORDINATES, *own, "body_bytes")
        self.schema = _writer_schema(kind, names)
        self.head = _file_head(self.schema)
        self.padding = padding(table.columns, kind)
        self.sizes = tuple(varint(self.padding + size) for size in range(_SIZES))
        self.parts: list[bytes] = []

    def close(self, lane: int, header: bytes, decoded: bool) -> Container:
        records = len(self.parts) // _PARTS
        columns, head = self.columns, self.head
        if decoded:
            columns, head = (*columns, "decoded"), _file_head(_with_decoded(self.schema))
            self.parts[_PARTS - 1 :: _PARTS] = [
                size + _YES for size in self.parts[_PARTS - 1 :: _PARTS]
            ]
        data = b"".join(self.parts)
        self.parts.clear()
        sizes = varint(records) + varint(len(data))
        return Container(lane, header, columns, head, (sizes, data, _SYNC), records)


class Builder:
    """Builds the containers of one table; remembers schemas between batches.

    Args:
        table: where the records go; only its topic's event types are taken.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._open: list[dict[bytes, _Open]] = [{} for _ in range(LANES)]

    def build(self, batch: Batch, *, flags: bool = False, decoded: bool = False) -> Built:
        """Build the containers of a batch.

        Args:
            batch: what to put into them.
            flags: look at `may_repeat` too.
            decoded: every record was decoded before, so that the table need not check its length.
        """
        ids: dict[int, list[bytes]] = {}
        first: dict[int, int] = {}
        append_ms: dict[int, int] = {}
        refused: list[tuple[int, str]] = []
        flagged = False
        low, mask, sealed_says = _LOW, _LOW_MASK, _sealed_says_may_repeat
        lanes = [
            {header: (into.parts.extend, into.sizes) for header, into in lane.items()}
            for lane in self._open
        ]
        opened = lanes[0]
        extend = [b""].extend
        sizes: Sequence[bytes] = ()
        number = stamp = limit = -1
        lead, high, add_id = b"", b"", [b""].append
        last: bytes | None = None
        beginning, run_at = b"", 0
        # One loop with everything in it: a function call a record would cost a tenth of it. Lengths
        # are taken to be one byte, as those of ids up to 63 characters are; else a check fails.
        for at, (key, value, partition, offset, ms) in enumerate(zip(*batch, strict=True)):
            if ms != stamp or partition != number or offset >= limit:
                number, stamp, limit = partition, ms, (offset | mask) + 1
                lead, high = _lead(partition, ms, 0), _unsigned(offset >> _LOW_BITS)
                add_id = ids.setdefault(partition, []).append
                first.setdefault(partition, offset)
                append_ms[partition] = ms
                last, opened = None, lanes[partition % LANES]
            try:
                if key != last or not value.startswith(beginning):
                    last = None
                    extend, sizes = opened[value[:HEADER_BYTES]]
                    beginning, run_at = _beginning(key, value)
                    last = key
                run_bytes = value[run_at]
                id_at = run_at + 1 + (run_bytes >> 1)
                frame_at = id_at + EVENT_ID_BYTES
                if value[frame_at] == 0 and run_bytes < 0x80:
                    if flags and not flagged:
                        says = _says_may_repeat if value[frame_at + 1] == 0 else sealed_says
                        flagged = says(value, frame_at + 1) is not None
                    extend((lead, low[offset & mask], high, value, sizes[len(value)]))
                    add_id(value[id_at:frame_at])
                    continue
            except (AttributeError, LookupError, TypeError):
                pass  # said in full below
            try:
                add_id(self._add(key, value, partition, offset, ms))
                flagged = flagged or (flags and may_repeat(value))
            except DecodeError as error:
                refused.append((at, str(error)))
        return Built(
            records=len(batch.keys),
            containers=list(self._closed(decoded)),
            event_ids={number: found for number, found in ids.items() if found},
            refused=refused,
            may_repeat=flagged,
            first=first,
            last=dict(zip(batch.partitions, batch.offsets, strict=True)),
            append_ms=append_ms,
        )

    def _closed(self, decoded: bool) -> Iterator[Container]:
        for number, lane in enumerate(self._open):
            for header, into in lane.items():
                if into.parts:
                    yield into.close(number, header, decoded)

    def _add(self, key: bytes, value: bytes, partition: int, offset: int, ms: int) -> bytes:
        """Add a record that has a frame, a type that was not met before, or a long id.

        Returns:
            Its event_id.

        Raises:
            DecodeError: it cannot be an event of this table; the message says why.
        """
        if key is None or value is None:
            raise DecodeError(f"the record has no {'key' if key is None else 'value'}")
        header, lane = value[:HEADER_BYTES], self._open[partition % LANES]
        into = lane.get(header) or self._opened(header, lane)
        if not value.startswith(key_prefixes(key), HEADER_BYTES):
            raise DecodeError("the key is not that of the event in the body")
        at, start, end = frame_span(value)
        stripped = value if start == end else value[:at] + b"\0" + value[end:]
        lead, size = _lead(partition, ms, end - start), varint(into.padding + len(stripped))
        high = _unsigned(offset >> _LOW_BITS)
        into.parts += (lead, _LOW[offset & _LOW_MASK], high, stripped, size)
        return value[at - EVENT_ID_BYTES : at]

    def _opened(self, header: bytes, lane: dict[bytes, _Open]) -> _Open:
        if header[: len(MARKER)] != MARKER or len(header) < HEADER_BYTES:
            raise DecodeError("the value is not in Avro single-object encoding")
        kind = by_fingerprint(header[len(MARKER) :])
        if kind.topic != self._table.topic:
            raise DecodeError(f"{kind.name} does not belong in {self._table.topic}")
        lane[header] = into = _Open(self._table, kind)
        return into


# Behind the frame: content_mac, none or 32 bytes, then seq, producer_seq, occurred_at_us, and then
# a true may_repeat. Two patterns, because one with a choice in it takes twice as long.
_THREE_LONGS = 3 * rb"[\x80-\xff]*+."
_says_may_repeat = re.compile(rb"\x00" + _THREE_LONGS + rb"\x01", re.DOTALL).match
_sealed_says_may_repeat = re.compile(rb"\x40.{32}" + _THREE_LONGS + rb"\x01", re.DOTALL).match


def may_repeat(value: bytes) -> bool:
    """Say whether the writer of a value knows that it may have written it before.

    Raises:
        DecodeError: the bytes do not begin like an event.
    """
    at = frame_span(value)[2]
    return bool(_says_may_repeat(value, at) or _sealed_says_may_repeat(value, at))


def event_id(value: bytes) -> bytes:
    """Return the event id of a value.

    Raises:
        DecodeError: the bytes do not begin like an event.
    """
    at = frame_span(value)[0]
    return value[at - EVENT_ID_BYTES : at]


def _beginning(key: bytes, value: bytes) -> tuple[bytes, int]:
    """Return how all values of this type under this key begin, and where `run` has its length.

    Raises:
        LookupError: the body does not begin as its key says, or not with short ids.
    """
    name_at = _ORG_AT + (value[HEADER_BYTES] >> 1)
    run_at = name_at + 1 + (value[name_at] >> 1)
    end = run_at
    name = value[name_at + 1 : run_at]
    if not name:
        end = run_at + 1 + (value[run_at] >> 1)
        name = value[run_at + 1 : end]
    if key != value[_ORG_AT:name_at] + b"/" + name:
        raise LookupError
    return value[:end], run_at


def _lead(partition: int, append_ms: int, frame_bytes: int) -> bytes:
    append_us = append_ms * 1000
    return b"\0" + varint(partition) + varint(append_us) + varint(frame_bytes)


def _unsigned(value: int) -> bytes:
    """Return the groups of a varint that stand behind those of `_LOW`."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _writer_schema(kind: EventType, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the schema of a container's records: coordinates, then the event's own fields."""
    symbol = {"type": "enum", "name": "Type", "symbols": [kind.name.replace(".", "_")]}
    first = [
        {"name": "type_wire", "type": symbol},
        {"name": "partition", "type": "int"},
        {"name": "append_us", "type": "long"},
        {"name": "frame_bytes", "type": "int"},
        {"name": "offset", "type": "long"},
        # The 10 bytes before a body are skipped there, so that no value is copied here.
        {"name": "header", "type": {"type": "fixed", "name": "Header", "size": HEADER_BYTES}},
    ]
    own = [
        {"name": names.get(field["name"], field["name"]), "type": field["type"]}
        for field in json.loads(kind.text)["fields"]
    ]
    fields = [*first, *own, {"name": "body_bytes", "type": "long"}]
    return {"type": "record", "name": "Row", "namespace": "turnlog", "fields": fields}


def _with_decoded(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {**schema, "fields": [*schema["fields"], {"name": "decoded", "type": "int"}]}


def _file_head(schema: Mapping[str, Any]) -> bytes:
    """Return the head of an Avro object container file (Avro specification, same section)."""
    meta = {b"avro.schema": json.dumps(schema).encode(), b"avro.codec": b"null"}
    entries = b"".join(_bytes(name) + _bytes(value) for name, value in meta.items())
    return b"Obj\x01" + varint(len(meta)) + entries + b"\0" + _SYNC


def _bytes(value: bytes) -> bytes:
    return varint(len(value)) + value
