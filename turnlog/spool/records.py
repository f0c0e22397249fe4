"""One spooled record on disk: `magic 4 | length u32 | CRC-32 u32 | msgpack payload`, big-endian.

The CRC covers length and payload. A record that a crash cut off was never acknowledged, so a torn
end is cut away; damage is passed over from magic to magic, told, and set aside with its file
(`turnlog.spool.aside`).
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgpack

from turnlog.events import Headers

MAGIC = b"\xa7TL\x01"
_HEAD = struct.Struct(">4sII")
HEAD_BYTES = _HEAD.size
_LENGTH = struct.Struct(">I")
# A record that carries a frame too large for Kafka (`turnlog.producer.large`) has 64 MiB and more.
MAX_PAYLOAD_BYTES = 72 << 20
_SHAPE = [str, int, bytes, bytes, list, int, int]


class Spooled(NamedTuple):
    """A Kafka record as it waits on disk.

    Attributes:
        topic: its topic.
        partition: its partition.
        key: its key, which names the stream.
        value: the event, which says of itself that it may be a repeat.
        headers: its headers.
        seq: its `producer_seq`.
        spooled_at_us: when it was handed to the spool, UTC.
    """

    topic: str
    partition: int
    key: bytes
    value: bytes
    headers: Headers
    seq: int
    spooled_at_us: int


class Found(NamedTuple):
    """A record in a segment.

    Attributes:
        record: as it was written.
        start: offset of its first byte.
        end: offset behind its last byte.
    """

    record: Spooled
    start: int
    end: int


class Damage(NamedTuple):
    """Bytes of a segment that are no record.

    Attributes:
        start: offset of the first.
        end: offset behind the last.
        torn: the bytes end within a record that was being written, so nobody was told it is there.
    """

    start: int
    end: int
    torn: bool = False


def packed(record: Spooled) -> bytes:
    """Return the bytes of a record."""
    payload: bytes = msgpack.packb(record)
    crc = zlib.crc32(payload, zlib.crc32(_LENGTH.pack(len(payload))))
    return _HEAD.pack(MAGIC, len(payload), crc) + payload


def packed_size(record: Spooled) -> int:
    """Return the bytes that a record will have whose last header is over 64 KiB, uncopied."""
    name, large = record.headers[-1]
    light = record._replace(headers=[*record.headers[:-1], (name, b"")])
    return len(packed(light)) + len(large) + 3  # its length takes five bytes instead of two


def scan(data: bytes | memoryview, start: int = 0) -> Iterator[Found | Damage]:
    """Give the records that stand in bytes, and between them what is damaged.

    What does not end in a whole record comes last as a `Damage` that reaches the end.

    Args:
        data: of a segment, from its beginning.
        start: where a record begins.
    """
    view = memoryview(data)
    while start < len(view):
        found = _at(view, start)
        if found is None:
            end = _next(data, view, start + 1)
            yield Damage(start, end, end == len(view) and _is_torn(view, start))
            start = end
        else:
            yield found
            start = found.end


def _at(view: memoryview, start: int) -> Found | None:
    if len(view) - start < HEAD_BYTES:
        return None
    magic, length, crc = _HEAD.unpack_from(view, start)
    end = start + HEAD_BYTES + length
    if magic != MAGIC or length > MAX_PAYLOAD_BYTES or end > len(view):
        return None
    payload = view[start + HEAD_BYTES : end]
    if zlib.crc32(payload, zlib.crc32(_LENGTH.pack(length))) != crc:
        return None
    try:
        record = _spooled(msgpack.unpackb(payload))
    except (ValueError, msgpack.UnpackException):
        return None
    return None if record is None else Found(record, start, end)


def _unchecked(payload: bytes | memoryview) -> tuple[Spooled | None, int]:
    """Read the record that a payload begins with, None where none does, and how long it is."""
    unpacker = msgpack.Unpacker(max_buffer_size=0)
    unpacker.feed(payload)
    try:
        fields = unpacker.unpack()
    except (ValueError, msgpack.UnpackException):
        return None, 0
    return _spooled(fields), unpacker.tell()


def _spooled(fields: Any) -> Spooled | None:
    """Return a record; None for what has another shape, though its checksum may hold."""
    if not isinstance(fields, list) or [type(field) for field in fields] != _SHAPE:
        return None
    pairs = [tuple(pair) for pair in fields[4] if isinstance(pair, list)]
    if len(pairs) != len(fields[4]) or any([*map(type, pair)] != [str, bytes] for pair in pairs):
        return None
    return Spooled(*fields)._replace(headers=pairs)


def _is_torn(view: memoryview, start: int) -> bool:
    """Say whether bytes end within a record. One whose length alone is damaged does not."""
    head = bytes(view[start : start + HEAD_BYTES])
    if len(head) < HEAD_BYTES:
        return MAGIC.startswith(head[: len(MAGIC)])
    magic, length, _ = _HEAD.unpack(head)
    payload = view[start + HEAD_BYTES :]
    if magic != MAGIC or not len(payload) < length <= MAX_PAYLOAD_BYTES:
        return False
    unpacker = msgpack.Unpacker(max_buffer_size=0)
    unpacker.feed(payload)
    try:
        unpacker.skip()
    except msgpack.OutOfData:
        return True
    except (ValueError, msgpack.UnpackException):
        return False
    return False


def salvaged(data: bytes, damage: Damage) -> Iterator[Spooled | None]:
    """Yield what damaged records say of themselves, checksum aside; None for what says nothing.

    Not to be sent: any bit of it may be another. It serves to tell which number is missing.
    """
    start = damage.start
    while start < damage.end:
        record, size = _unchecked(data[start + HEAD_BYTES : damage.end])
        yield record
        after = start + HEAD_BYTES + size if record else data.find(MAGIC, start + 1, damage.end)
        start = after if after > start else damage.end


def _next(data: bytes | memoryview, view: memoryview, start: int) -> int:
    """Return where the next whole record begins, the end where there is none."""
    whole = bytes(data) if isinstance(data, memoryview) else data
    while (start := whole.find(MAGIC, start)) >= 0:
        if _at(view, start) is not None:
            return start
        start += 1
    return len(view)
