"""Kafka's log segments as files: what is on the disk, and not only what a broker still serves.

Layouts: record batches version 2 and `cleaner-offset-checkpoint`, as Apache Kafka 4 writes them
(kafka.apache.org/documentation/#recordbatch).
"""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import zstandard

from turnlog.errors import Unavailable

# base offset, length, leader epoch, magic, crc, attributes, last offset delta, two times,
# producer id and epoch, base sequence, count of records
_batch = struct.Struct(">qiibIhiqqqhii")
_LENGTH_FROM = 12
_COMPRESSION, _CONTROL = 0x07, 0x20


class StoredRow(NamedTuple):
    """A record in a file.

    Attributes:
        offset: its.
        key: its, b"" for none.
        value: its, None for a removal.
    """

    offset: int
    key: bytes
    value: bytes | None


class PartitionFiles:
    """The files of one partition.

    Args:
        folder: one of the broker's log directories.
        topic: name of the topic.
        number: the partition.
    """

    def __init__(self, folder: Path, topic: str, number: int) -> None:
        self._data = folder
        self._name = topic, number
        self._folder = folder / f"{topic}-{number}"

    def live(self) -> list[Path]:
        """Return the segments that the broker serves, oldest first; the last is the active one."""
        return sorted(self._folder.glob("*.log"))

    def leftovers(self) -> list[Path]:
        """Return segments that are not served any more, or not yet, and still on the disk."""
        return sorted(
            path
            for suffix in ("deleted", "cleaned", "swap")
            for path in self._folder.glob(f"*.log.{suffix}")
        )

    @property
    def active_from(self) -> int:
        """The first offset of the active segment."""
        live = self.live()
        return int(live[-1].stem) if live else 0

    def cleaned_to(self) -> int:
        """Return up to where the cleaner has cleaned, 0 where it never did."""
        try:
            lines = (self._data / "cleaner-offset-checkpoint").read_text().splitlines()
        except FileNotFoundError:
            return 0
        topic, number = self._name
        for line in lines[2:]:
            *name, partition, offset = line.split(" ")
            if (" ".join(name), partition) == (topic, str(number)):
                return int(offset)
        return 0


def cluster_of(folder: Path) -> str:
    """Return the id of the cluster that a log directory belongs to, "" where it is none."""
    try:
        lines = (folder / "meta.properties").read_text().splitlines()
    except OSError:
        return ""
    return next(
        (line[len("cluster.id=") :] for line in lines if line.startswith("cluster.id=")), ""
    )


def rows_in(path: Path) -> Iterator[StoredRow]:
    """Give the records of a segment, those of aborted and open transactions among them.

    A file that disappears while it is read, as the cleaner's leftovers do, ends without a word.

    Raises:
        Unavailable: it holds a batch in a form that is not known here.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    at = 0
    while at + _batch.size <= len(data):
        base, length, _, magic, _, attributes, *_, count = _batch.unpack_from(data, at)
        end = at + _LENGTH_FROM + length
        if length <= 0 or end > len(data):
            return
        if magic != 2:
            raise Unavailable(f"{path}: a record batch of version {magic}")
        if not attributes & _CONTROL:
            body = _inflated(path, attributes & _COMPRESSION, data[at + _batch.size : end])
            yield from _records(base, count, body)
        at = end


def _inflated(path: Path, compression: int, body: bytes) -> bytes:
    if compression == 0:
        return body
    if compression == 1:
        return zlib.decompress(body, 31)
    if compression == 4:
        return zstandard.ZstdDecompressor().decompressobj().decompress(body)
    raise Unavailable(f"{path}: compressed in a way that is not read here ({compression})")


def _records(base: int, count: int, body: bytes) -> Iterator[StoredRow]:
    at = 0
    for _ in range(count):
        length, at = _varint(body, at)
        end = at + length
        _, place = _varint(body, at + 1)  # behind the attributes: the time
        delta, place = _varint(body, place)
        key, place = _field(body, place)
        value, _ = _field(body, place)
        yield StoredRow(base + delta, key or b"", value)
        at = end


def _field(body: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _varint(body, at)
    if length < 0:
        return None, at
    return body[at : at + length], at + length


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Read a zigzag number; return it and where the next field begins."""
    value = shift = 0
    while True:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
