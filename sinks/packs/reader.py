"""Reading a pack: its footer by one ranged read, then only the blocks or frames that are wanted."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgpack
import zstandard

from sinks.packs.layout import (
    COLUMNS,
    HEADER,
    TRAILER_BYTES,
    Area,
    IndexRow,
    OrgPart,
    PackError,
    Range,
    Trailer,
)
from turnlog.errors import DecodeError
from turnlog.events import with_frame

# More than any writer makes of one block or footer: what claims to be larger is not read.
MAX_PART_BYTES = 1 << 30

Read = Callable[[int, int], bytes]
"""`read(offset, length)` of one object; answers exactly `length` bytes or raises PackError."""


class Stored(NamedTuple):
    """A record as a pack holds it.

    Attributes:
        row: its row of the index.
        key: the Kafka key.
        body: the Kafka value with an empty frame: a valid event.
    """

    row: IndexRow
    key: bytes
    body: bytes

    def value(self, frame: bytes) -> bytes:
        """Return the Kafka value exactly as it was, from the body and its frame."""
        return with_frame(self.body, frame) if self.row.frame_bytes else self.body


class Footer:
    """The index of a pack, checked for consistency when it is made.

    Args:
        content: the decoded footer.
        end: offset of the footer in the object; no part may reach over it.
    """

    def __init__(self, content: Mapping[str, Any], end: int) -> None:
        self.kind: str = content["kind"]
        self.records: int = content["records"]
        self.frames = _area(content["frames"], end)
        self.blocks = tuple(_area(block, end) for block in content["blocks"])
        self.orgs = {part["org"]: _org_part(part) for part in content["orgs"]}
        self._columns = _columns(content["index"], content["dictionaries"])
        self._check()

    def rows(self, first: int = 0, records: int | None = None) -> Iterator[IndexRow]:
        """Yield rows of the index in their order, `records` of them from `first` on."""
        last = self.records if records is None else first + records
        return map(IndexRow._make, zip(*(c[first:last] for c in self._columns), strict=True))

    def rows_of(self, org: str) -> Iterator[IndexRow]:
        """Yield the rows of one org.

        Raises:
            PackError: the pack holds nothing of it.
        """
        part = self.orgs.get(org)
        if part is None:
            raise PackError("the pack holds no record of the org that its manifest names")
        return self.rows(part.first, part.records)

    def _check(self) -> None:
        sizes = {len(column) for column in self._columns}
        if sizes != {self.records} or sum(b.records for b in self.blocks) != self.records:
            raise PackError("the index and the blocks disagree on the number of records")
        if sum(part.records for part in self.orgs.values()) != self.records:
            raise PackError("the orgs and the index disagree on the number of records")


def read_footer(tail: bytes, size: int) -> Footer:
    """Read footer and trailer, verified.

    Args:
        tail: the last bytes of the object, footer and trailer whole.
        size: length of the object.

    Raises:
        PackError: damaged, cut off, or of another version.
    """
    trailer = Trailer.decode(tail[-TRAILER_BYTES:])
    footer = tail[-TRAILER_BYTES - trailer.footer_bytes : -TRAILER_BYTES]
    if trailer.footer_offset + trailer.footer_bytes + TRAILER_BYTES != size:
        raise PackError("the trailer does not fit the length of the object")
    if hashlib.sha256(footer).digest() != trailer.footer_digest:
        raise PackError("the footer does not have the digest that the trailer names")
    try:
        return Footer(_unpack(footer), trailer.footer_offset)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise PackError(f"the footer is not one of version 1: {type(error).__name__}") from error


class Pack:
    """One object.

    Args:
        read: ranged reads of it.
        footer: its footer.
    """

    def __init__(self, read: Read, footer: Footer) -> None:
        self._read = read
        self.footer = footer

    @classmethod
    def of_bytes(cls, data: bytes) -> "Pack":
        """Open a pack that is in memory as a whole.

        Raises:
            PackError: it is damaged, or not a pack.
        """
        if data[: len(HEADER)] != HEADER:
            raise PackError("not a pack: the header is missing")
        view = memoryview(data)
        return cls(
            lambda offset, length: bytes(view[offset : offset + length]),
            read_footer(data, len(data)),
        )

    def stored(self) -> Iterator[Stored]:
        """Yield every record without its frame, block by block; no frame is read.

        Raises:
            PackError: a block is damaged.
        """
        first = 0
        for block in self.footer.blocks:
            rows = self.footer.rows(first, block.records)
            yield from _stored(_verified(self._read, block), rows)
            first += block.records

    def records(self) -> Iterator[tuple[IndexRow, bytes, bytes]]:
        """Yield `(row, key, value)` of every record, exactly as they were in Kafka.

        The area of frames is read at once.

        Raises:
            PackError: a part is damaged.
        """
        area = self.footer.frames
        frames = memoryview(_verified(self._read, area))
        for record in self.stored():
            start = record.row.frame_offset - area.offset
            frame = bytes(frames[start : start + record.row.frame_bytes])
            try:
                yield record.row, record.key, record.value(frame)
            except DecodeError as error:
                raise PackError(f"offset {record.row.offset}: {error}") from error


def _verified(read: Read, area: Area) -> bytes:
    data = read(area.offset, area.size_bytes)
    if hashlib.sha256(data).digest() != area.digest:
        raise PackError(f"the part at {area.offset}:{area.size_bytes} does not have its digest")
    return data


def _stored(data: bytes, rows: Iterator[IndexRow]) -> Iterator[Stored]:
    block = _unpack(data)
    columns = (block[name] for name in ("topic", "partition", "offset", "key", "body"))
    joined = zip(rows, *columns, strict=True)
    try:
        for row, topic, partition, offset, key, body in joined:
            if (topic, partition, offset) != (row.topic, row.partition, row.offset):
                raise PackError("a block and the index disagree on a coordinate")
            yield Stored(row, key, body)
    except ValueError as error:
        raise PackError("a block and the index disagree on the number of records") from error


def _unpack(data: bytes) -> Any:
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= MAX_PART_BYTES:
            raise PackError(f"a part claims to have {size} bytes")
        return msgpack.unpackb(zstandard.ZstdDecompressor().decompress(data))
    except (zstandard.ZstdError, ValueError, msgpack.UnpackException) as error:
        raise PackError(f"a part does not unpack: {type(error).__name__}") from error


def _area(value: Mapping[str, Any], end: int) -> Area:
    area = Area(value["offset"], value["bytes"], value["digest"], value.get("records", 0))
    if area.offset < len(HEADER) or area.size_bytes < 0 or area.offset + area.size_bytes > end:
        raise PackError("a part lies outside of the object")
    return area


def _org_part(value: Mapping[str, Any]) -> OrgPart:
    ranges = tuple(Range(*(found[name] for name in Range._fields)) for found in value["ranges"])
    return OrgPart(value["org"], value["first"], value["records"], value["frame_bytes"], ranges)


def _columns(
    index: Mapping[str, Sequence[Any]], dictionaries: Mapping[str, Sequence[Any]]
) -> list[list[Any]]:
    """Return the columns that this version knows, in their order, numbers replaced by values."""
    return [_decoded(index[name], dictionaries.get(name)) for name in COLUMNS]


def _decoded(column: Sequence[Any], values: Sequence[Any] | None) -> list[Any]:
    return list(column) if values is None else [values[number] for number in column]
