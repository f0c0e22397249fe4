"""Writing a pack: frames as they are, the rest in compressed blocks, an index, digests."""

import bisect
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, BinaryIO, NamedTuple

import msgpack
import zstandard

from sinks.packs.layout import COLUMNS, HEADER, Area, OrgPart, Range, Trailer

# Values of these columns recur: the index holds them once and refers to them by number.
CODED = ("org", "topic", "type", "conversation", "run", "user", "key_tree", "time_basis")
BLOCK_RECORDS = 1000
# Bodies may be large without a frame too: a reader must be able to hold a block in memory.
BLOCK_BYTES = 4 << 20

Coordinate = tuple[str, int, int]


class PackRecord(NamedTuple):
    """A record to be packed.

    Attributes:
        entry: the values of `COLUMNS` up to `time_basis`.
        key: the Kafka key.
        body: the Kafka value without its frame (`turnlog.events.without_frame`).
        frame: the frame's bytes, empty when there is none.
    """

    entry: tuple[Any, ...]
    key: bytes
    body: bytes
    frame: bytes | memoryview


class PackSummary(NamedTuple):
    """What a manifest says of a finished pack; `digest` is the SHA-256 of the whole object."""

    size_bytes: int
    records: int
    footer_offset: int
    footer_bytes: int
    digest: bytes
    orgs: tuple[OrgPart, ...]


def write_pack(
    records: Iterable[PackRecord],
    out: BinaryIO,
    *,
    kind: str = "ingest",
    elsewhere: Iterable[Coordinate] = (),
) -> PackSummary:
    """Write a pack.

    Args:
        records: at least one, in any order; they are sorted here.
        out: where the bytes go; written front to back.
        kind: `ingest` or `pack`.
        elsewhere: coordinates of records of the same orgs that another pack owns already; no
            range of this one spreads over them.

    Returns:
        The digest, the place of the footer, and each org's part.
    """
    return _Writer(out, sorted(records, key=_order)).finish(kind, sorted(elsewhere))


def _order(record: PackRecord) -> tuple[Any, ...]:
    return record.entry[:4]


class _Writer:
    def __init__(self, out: BinaryIO, records: Sequence[PackRecord]) -> None:
        self._out = out
        self._records = records
        self._digest = hashlib.sha256()
        self._at = 0
        self._zstd = zstandard.ZstdCompressor(level=3)

    def finish(self, kind: str, elsewhere: Sequence[Coordinate]) -> PackSummary:
        self._write(HEADER)
        frames, places = self._frames()
        blocks = [self._block(part) for part in _portions(self._records)]
        rows = [
            (*record.entry, *place) for record, place in zip(self._records, places, strict=True)
        ]
        orgs = tuple(_org_parts(rows, elsewhere))
        footer = self._zstd.compress(_footer(kind, rows, frames, blocks, orgs))
        trailer = Trailer(self._at, len(footer), hashlib.sha256(footer).digest())
        self._write(footer)
        self._write(trailer.encode())
        digest = self._digest.digest()
        return PackSummary(
            self._at, len(rows), trailer.footer_offset, trailer.footer_bytes, digest, orgs
        )

    def _write(self, data: bytes | memoryview) -> None:
        self._digest.update(data)
        self._out.write(data)
        self._at += len(data)

    def _frames(self) -> tuple[Area, list[tuple[int, int]]]:
        """Write the frames back to back; return their area and each one's place."""
        start, digest, places = self._at, hashlib.sha256(), []
        for record in self._records:
            size = len(record.frame)
            places.append((self._at if size else 0, size))
            if size:
                digest.update(record.frame)
                self._write(record.frame)
        return Area(start, self._at - start, digest.digest()), places

    def _block(self, records: Sequence[PackRecord]) -> Area:
        content = {
            "append_us": [record.entry[4] for record in records],
            "body": [record.body for record in records],
            "key": [record.key for record in records],
            "offset": [record.entry[3] for record in records],
            "partition": [record.entry[2] for record in records],
            "topic": [record.entry[1] for record in records],
        }
        data = self._zstd.compress(msgpack.packb(content))
        start = self._at
        self._write(data)
        return Area(start, len(data), hashlib.sha256(data).digest(), len(records))


def _portions(records: Sequence[PackRecord]) -> Iterator[list[PackRecord]]:
    """Cut the records into blocks of about a thousand."""
    portion: list[PackRecord] = []
    size = 0
    for record in records:
        if portion and (len(portion) == BLOCK_RECORDS or size + len(record.body) > BLOCK_BYTES):
            yield portion
            portion, size = [], 0
        portion.append(record)
        size += len(record.body)
    yield portion


def _org_parts(
    rows: Sequence[tuple[Any, ...]], elsewhere: Sequence[Coordinate]
) -> Iterator[OrgPart]:
    first = 0
    for org, group in groupby(rows, key=lambda row: row[0]):
        part = list(group)
        frame_bytes = sum(row[-1] for row in part)
        ranges = tuple(_ranges([row[1:4] for row in part], elsewhere))
        yield OrgPart(org, first, len(part), frame_bytes, ranges)
        first += len(part)


def _ranges(coordinates: Sequence[Coordinate], elsewhere: Sequence[Coordinate]) -> Iterator[Range]:
    """Join sorted coordinates of one org into ranges that contain none of `elsewhere`."""
    run: list[Coordinate] = []
    for coordinate in coordinates:
        if run and _apart(run[-1], coordinate, elsewhere):
            yield _range(run)
            run = []
        run.append(coordinate)
    yield _range(run)


def _apart(before: Coordinate, after: Coordinate, elsewhere: Sequence[Coordinate]) -> bool:
    if before[:2] != after[:2]:
        return True
    at = bisect.bisect_right(elsewhere, before)
    return at < len(elsewhere) and elsewhere[at] < after


def _range(run: Sequence[Coordinate]) -> Range:
    topic, partition, first = run[0]
    return Range(topic, partition, first, run[-1][2], len(run))


def _footer(
    kind: str,
    rows: Sequence[tuple[Any, ...]],
    frames: Area,
    blocks: Sequence[Area],
    orgs: Sequence[OrgPart],
) -> bytes:
    columns = dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
    dictionaries = {name: _code(columns, name) for name in CODED}
    footer = {
        "blocks": [_area(block) | {"records": block.records} for block in blocks],
        "dictionaries": dictionaries,
        "frames": _area(frames),
        "index": columns,
        "kind": kind,
        "orgs": [_org(part) for part in orgs],
        "records": len(rows),
    }
    packed: bytes = msgpack.packb(footer)
    return packed


def _code(columns: dict[str, list[Any]], name: str) -> list[Any]:
    """Replace a column by numbers of its values; return the values."""
    numbers: dict[Any, int] = {}
    columns[name] = [numbers.setdefault(value, len(numbers)) for value in columns[name]]
    return list(numbers)


def _area(area: Area) -> dict[str, Any]:
    return {"bytes": area.size_bytes, "digest": area.digest, "offset": area.offset}


def _org(part: OrgPart) -> Mapping[str, Any]:
    return part._asdict() | {"ranges": [found._asdict() for found in part.ranges]}
