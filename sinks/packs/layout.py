"""The form of a pack, version 1 of docs/pack-format.md: names, fixed parts, errors."""

import struct
from typing import NamedTuple

from turnlog.errors import TurnlogError

MAGIC = b"TURNPACK"
VERSION = 1
HEADER = MAGIC + bytes([VERSION]) + bytes(7)

_TRAILER = struct.Struct(">QQ32s7sB8s")
TRAILER_BYTES = _TRAILER.size

# What the footer's index says of each record. The first four are the order of the records.
COLUMNS = (
    "org",
    "topic",
    "partition",
    "offset",
    "append_us",
    "type",
    "event_id",
    "content_mac",
    "conversation",
    "run",
    "turn",
    "user",
    "writer_epoch",
    "seq",
    "key_tree",
    "key_day",
    "key_gen",
    "occurred_at_us",
    "time_basis",
    "frame_offset",
    "frame_bytes",
)


class PackError(TurnlogError):
    """An object that is missing, damaged or not a pack; the message names it."""


class IndexRow(NamedTuple):
    """What the index says of one record; the fields are `COLUMNS`, times in UTC microseconds."""

    org: str
    topic: str
    partition: int
    offset: int
    append_us: int
    type: str
    event_id: bytes
    content_mac: bytes
    conversation: str
    run: str
    turn: str
    user: str
    writer_epoch: int
    seq: int
    key_tree: bytes
    key_day: int
    key_gen: int
    occurred_at_us: int
    time_basis: str
    frame_offset: int
    frame_bytes: int


class Range(NamedTuple):
    """Records of one org that lie between two offsets of a partition, both included.

    The range is exact for the org: each of its records between the two is meant, and there are
    `records` of them. What lies between belongs to other orgs, or to the dead letters.
    """

    topic: str
    partition: int
    first: int
    last: int
    records: int


class OrgPart(NamedTuple):
    """The records of one org in a pack: `records` rows of the index from row `first` on."""

    org: str
    first: int
    records: int
    frame_bytes: int
    ranges: tuple[Range, ...]


class Area(NamedTuple):
    """A stretch of the object and its SHA-256; of a block, `records` lie in it."""

    offset: int
    size_bytes: int
    digest: bytes
    records: int = 0


class Trailer(NamedTuple):
    """The last 64 bytes of a pack: where the footer is, and its SHA-256."""

    footer_offset: int
    footer_bytes: int
    footer_digest: bytes

    def encode(self) -> bytes:
        """Return the 64 bytes."""
        return _TRAILER.pack(*self, bytes(7), VERSION, MAGIC)

    @classmethod
    def decode(cls, data: bytes) -> "Trailer":
        """Read the 64 bytes.

        Raises:
            PackError: they are not a trailer, or of a version that is not known here.
        """
        if len(data) != TRAILER_BYTES or not data.endswith(MAGIC):
            raise PackError("not a pack: the trailer is missing")
        offset, size, digest, zeros, version, _ = _TRAILER.unpack(data)
        if version != VERSION:
            raise PackError(f"pack of version {version}, this reader knows {VERSION}")
        if any(zeros):
            raise PackError("the trailer holds something where version 1 has zeros")
        return cls(offset, size, digest)
