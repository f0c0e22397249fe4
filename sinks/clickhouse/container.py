"""Records of Kafka as Avro containers that ClickHouse reads, without decoding what is only moved.

One container per schema fingerprint. Each of its records is

    type, partition, append_us, frame_bytes, offset, the event's value without its frame, body_bytes

where the value is moved as it is. Only the key, the place of `event_id` and the presence of a frame
are looked at: 1 µs a record, where decoding it takes 15.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from confluent_kafka import Message

from sinks.clickhouse.columns import padding
from sinks.clickhouse.tables import COORDINATES, Table
from turnlog.errors import DecodeError
from turnlog.events import EventType, by_fingerprint
from turnlog.events.pack import varint
from turnlog.events.schema import HEADER_BYTES, MARKER
from turnlog.events.slices import EVENT_ID_BYTES, frame_span

_SYNC = b"turnlog.avro.syn"
# Offsets are written as two bytes for their low 13 bits, from a table, and the rest behind them.
_LOW_BITS = 13
_LOW_MASK = (1 << _LOW_BITS) - 1
_LOW = tuple(bytes([i << 1 & 0x7F | 0x80, i >> 6 | 0x80]) for i in range(1 << _LOW_BITS))
_SHORT = tuple(varint(size) for size in range(128))
# Bodies up to this length have its varint at hand.
_SIZES = 4096
# Keys whose beginnings are remembered: about 400 bytes each.
_KEYS = 50_000
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

    def only(self, places: Sequence[int]) -> "Batch":
        """Return the records at the given places."""
        return Batch(*([column[at] for at in places] for column in self))  # type: ignore[arg-type]


class Container(NamedTuple):
    """All records of a batch that have one fingerprint.

    Attributes:
        header: the 10 bytes before each of their bodies.
        columns: what the container holds of the table.
        pieces: its bytes.
        records: how many.
    """

    header: bytes
    columns: tuple[str, ...]
    pieces: tuple[bytes, ...]
    records: int


class Built(NamedTuple):
    """A batch ready to be inserted.

    Attributes:
        containers: one per fingerprint.
        event_ids: of the records in them, by partition, in order.
        refused: place in the batch and reason of each record that is not in them.
        may_repeat: whether any of them says so of itself; False where it was not asked.
    """

    containers: list[Container]
    event_ids: dict[int, list[bytes]]
    refused: list[tuple[int, str]]
    may_repeat: bool


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

    def close(self, header: bytes, decoded: bool) -> Container:
        records = len(self.parts) // _PARTS
        columns, head = self.columns, self.head
        if decoded:
            columns, head = (*columns, "decoded"), _file_head(_with_decoded(self.schema))
            self.parts[_PARTS - 1 :: _PARTS] = [
                size + _YES for size in self.parts[_PARTS - 1 :: _PARTS]
            ]
        data = b"".join(self.parts)
        self.parts.clear()
        block = varint(records) + varint(len(data))
        return Container(header, columns, (head, block, data, _SYNC), records)


# How a value under a key begins if it is of the type that was met last under it: header and body as
# far as the key says it; where the length of `run` stands; what takes its parts; its length as a
# varint, by the length.
_Expected = tuple[bytes, int, Callable[[Iterable[bytes]], None], Sequence[bytes]]


class Builder:
    """Builds the containers of one table; remembers schemas and keys between batches.

    Args:
        table: where the records go; only its topic's event types are taken.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._open: dict[bytes, _Open] = {}
        self._expected: dict[bytes, _Expected] = {}

    def build(self, batch: Batch, *, flags: bool = False, decoded: bool = False) -> Built:
        """Build the containers of a batch.

        Args:
            batch: what to put into them.
            flags: look at `may_repeat` too.
            decoded: every record was decoded before, so that the table need not check its length.
        """
        ids: dict[int, list[bytes]] = {}
        refused: list[tuple[int, str]] = []
        flagged = False
        expected, low, mask = self._expected, _LOW, _LOW_MASK
        number = stamp = limit = -1
        lead, high, add_id = b"", b"", [b""].append
        # One loop with everything in it: a function call a record would cost a tenth of it.
        for at, (key, value, partition, offset, ms) in enumerate(zip(*batch, strict=True)):
            if ms != stamp or partition != number or offset >= limit:
                number, stamp, limit = partition, ms, (offset | mask) + 1
                lead, high = _lead(partition, ms, 0), _unsigned(offset >> _LOW_BITS)
                add_id = ids.setdefault(partition, []).append
            try:
                beginning, run_at, extend, sizes = expected.get(key) or self._expect(key, value)
                run_bytes = value[run_at]
                id_at = run_at + 1 + (run_bytes >> 1)
                frame_at = id_at + EVENT_ID_BYTES
                if value[frame_at] == 0 and run_bytes < 0x80 and value.startswith(beginning):
                    if flags and not flagged:
                        flagged = _says_may_repeat(value, frame_at + 1) is not None
                    extend((lead, low[offset & mask], high, value, sizes[len(value)]))
                    add_id(value[id_at:frame_at])
                    continue
            except (AttributeError, LookupError, TypeError, DecodeError):
                pass  # said in full below
            try:
                add_id(self._add(key, value, partition, offset, ms))
                flagged = flagged or (flags and may_repeat(value))
            except DecodeError as error:
                refused.append((at, str(error)))
        event_ids = {number: found for number, found in ids.items() if found}
        return Built(self._closed(decoded), event_ids, refused, flagged)

    def _closed(self, decoded: bool) -> list[Container]:
        if len(self._expected) > _KEYS:
            self._expected.clear()
        return [into.close(header, decoded) for header, into in self._open.items() if into.parts]

    def _add(self, key: bytes, value: bytes, partition: int, offset: int, ms: int) -> bytes:
        """Add a record that has a frame, or a key or type that is not the one expected.

        Returns:
            Its event_id.

        Raises:
            DecodeError: it cannot be an event of this table; the message says why.
        """
        if key is None or value is None:
            raise DecodeError(f"the record has no {'key' if key is None else 'value'}")
        self._expect(key, value)
        into = self._open[value[:HEADER_BYTES]]
        at, start, end = frame_span(value)
        stripped = value if start == end else value[:at] + b"\0" + value[end:]
        lead, size = _lead(partition, ms, end - start), varint(into.padding + len(stripped))
        high = _unsigned(offset >> _LOW_BITS)
        into.parts += (lead, _LOW[offset & _LOW_MASK], high, stripped, size)
        return value[at - EVENT_ID_BYTES : at]

    def _expect(self, key: bytes, value: bytes) -> _Expected:
        """Check a key against the body, and remember how the next value under it will begin."""
        header = value[:HEADER_BYTES]
        into = self._open.get(header) or self._opened(header)
        org, _, name = key.partition(b"/")
        head, tail = header + _bytes(org), _bytes(name)
        if value.startswith(head + tail):
            found = head + tail, len(head + tail), into.parts.extend, into.sizes
        elif value.startswith(head + b"\0" + tail):
            found = head + b"\0" + tail, len(head) + 1, into.parts.extend, into.sizes
        else:
            raise DecodeError("the key is not that of the event in the body")
        if not name or b"/" in name:
            raise DecodeError("the key is not a stream key")
        self._expected[key] = found
        return found

    def _opened(self, header: bytes) -> _Open:
        if header[: len(MARKER)] != MARKER or len(header) < HEADER_BYTES:
            raise DecodeError("the value is not in Avro single-object encoding")
        kind = by_fingerprint(header[len(MARKER) :])
        if kind.topic != self._table.topic:
            raise DecodeError(f"{kind.name} does not belong in {self._table.topic}")
        self._open[header] = into = _Open(self._table, kind)
        return into


# Behind the frame: content_mac, seq, producer_seq, occurred_at_us, and then a true may_repeat.
_says_may_repeat = re.compile(
    rb"(?:\x00|\x40.{32})(?:[\x80-\xff]*[\x00-\x7f]){3}\x01", re.DOTALL
).match


def may_repeat(value: bytes) -> bool:
    """Say whether the writer of a value knows that it may have written it before.

    Raises:
        DecodeError: the bytes do not begin like an event.
    """
    return _says_may_repeat(value, frame_span(value)[2]) is not None


def event_id(value: bytes) -> bytes:
    """Return the event id of a value.

    Raises:
        DecodeError: the bytes do not begin like an event.
    """
    at = frame_span(value)[0]
    return value[at - EVENT_ID_BYTES : at]


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
    size = len(value)
    return (_SHORT[size] if size < len(_SHORT) else varint(size)) + value
