"""What each view has of a stretch of the log: asked block by block, in bounded memory."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, cast

from processors.conversation_rows import stream_of, unpack_decision, unpack_stored, unpack_turn
from processors.ledger import Place, Ranges
from replay.log import LogReader
from sinks.clickhouse.client import ClickHouse
from streams.archive import Archive
from streams.conversations import HEADS_CHANGELOG, TURNS_CHANGELOG
from streams.views import named
from turnlog.config import Config

# Of duplicates that a view has, so many are named; all are counted.
LISTED = 100
# A set of event ids of a whole table may not fit the engine's memory; then it sorts on disk.
_SPILL = "SETTINGS max_bytes_before_external_group_by = 500000000"


class Entry(NamedTuple):
    """A record of the log; `event_id` is empty where it is no event."""

    offset: int
    event_id: bytes
    org: str


class Block(NamedTuple):
    """Records of one partition, and the offsets that they stand for: `first` to `last`."""

    topic: str
    partition: int
    first: int
    last: int
    entries: Sequence[Entry]


class Held(NamedTuple):
    """What a view has of a block.

    Attributes:
        events: its rows in the block, 0 where the view counts otherwise.
        absent: records that it does not have in their place.
        extra: rows in places where the log has no such event.
    """

    events: int
    absent: list[Entry]
    extra: list[Place]


class Double(NamedTuple):
    """Something that a view has `times` times."""

    topic: str
    partition: int
    offset: int
    event_id: bytes
    times: int


class Checked(Protocol):
    """A view that is compared with the log."""

    name: str
    topics: tuple[str, ...]

    def begin(self, partition: int) -> None:
        """Hear that blocks of a partition follow."""

    def held(self, block: Block) -> Held:
        """Say what the view has of a block."""

    def elsewhere(self, block: Block, absent: Sequence[Entry]) -> Collection[bytes]:
        """Return the event ids of absent records that the view has at another offset."""

    def doubles(self) -> Iterator[Double]:
        """Yield what the view has more than once."""

    @property
    def more(self) -> int:
        """Events that were not counted block by block."""


class TableView:
    """A ClickHouse table with one row an event and its coordinate.

    Args:
        config: where ClickHouse is.
        name: of the view and the table.
        topics: that it is compared with.
        unique: columns that no two rows may share.
        org: only its rows; empty: all.
    """

    more = 0

    def __init__(
        self, config: Config, name: str, topics: tuple[str, ...], unique: str, org: str
    ) -> None:
        self.name = name
        self.topics = topics
        self._clickhouse = ClickHouse(config)
        self._table = f"{self._clickhouse.database}.{name}"
        self._unique = unique
        self._where = "org = {org:String}" if org else "1"
        self._org = {"org": org} if org else {}

    def begin(self, partition: int) -> None:
        """Nothing is kept for a partition."""

    def held(self, block: Block) -> Held:
        """Say what the table has of a block."""
        rows = self._clickhouse.stream(
            f"SELECT offset, event_id FROM {self._table} WHERE {self._where} "
            f"AND topic = {{topic:String}} AND partition = {block.partition:d} "
            f"AND offset BETWEEN {block.first:d} AND {block.last:d}",
            self._org | {"topic": block.topic},
        )
        places = [Place(offset, bytes(id_)) for offset, id_ in rows]
        there = set(places)
        absent = [e for e in block.entries if Place(e.offset, e.event_id) not in there]
        logged = {Place(e.offset, e.event_id) for e in block.entries}
        return Held(len(places), absent, sorted(there - logged))

    def elsewhere(self, block: Block, absent: Sequence[Entry]) -> Collection[bytes]:
        """Return those of absent events whose first occurrence the table has."""
        rows = self._clickhouse.stream(
            f"SELECT DISTINCT event_id FROM {self._table} WHERE {self._where} "
            "AND topic = {topic:String} AND event_id IN (SELECT toFixedString(unhex(x), 16) "
            "FROM (SELECT arrayJoin({ids:Array(String)}) AS x))",
            self._org | {"topic": block.topic, "ids": [e.event_id.hex() for e in absent]},
        )
        return {bytes(id_) for (id_,) in rows}

    def doubles(self) -> Iterator[Double]:
        """Yield rows that share what is unique."""
        rows = self._clickhouse.stream(
            "SELECT any(topic), any(partition), max(offset), any(event_id), count() AS times "
            f"FROM {self._table} WHERE {self._where} GROUP BY {self._unique} HAVING times > 1 "
            f"{_SPILL}",
            self._org,
        )
        for topic, partition, offset, id_, times in rows:
            yield Double(topic, partition, offset, bytes(id_), times)


class PacksView:
    """The archive, by the coordinates in the footers of its objects: two integers a stretch."""

    name = "packs"
    more = 0

    def __init__(self, archive: Archive, org: str) -> None:
        self.topics = named(self.name).topics
        self._places: dict[tuple[str, int], Ranges] = {}
        self._doubles: Counter[tuple[str, int, int]] = Counter()
        for row in archive.rows():
            if org and row.org != org:
                continue
            place = row.topic, row.partition
            if not self._places.setdefault(place, Ranges()).add(row.offset):
                self._doubles[*place, row.offset] += 1

    def begin(self, partition: int) -> None:
        """Nothing is kept for a partition."""

    def held(self, block: Block) -> Held:
        """Say what the archive has of a block."""
        there = self._places.get((block.topic, block.partition), Ranges())
        absent = [e for e in block.entries if e.offset not in there]
        span = block.last - block.first + 1
        holes = sum(b - a + 1 for a, b in there.holes(block.first, block.last))
        return Held(span - holes, absent, [])

    def elsewhere(self, block: Block, absent: Sequence[Entry]) -> Collection[bytes]:
        """A repeat is archived like everything else."""
        return ()

    def doubles(self) -> Iterator[Double]:
        """Yield coordinates that two objects own."""
        for (topic, partition, offset), more in self._doubles.items():
            yield Double(topic, partition, offset, b"", more + 1)


class ConversationsView:
    """The tables' changelogs, of which the event ids of one partition are held at a time."""

    name = "conversations"

    def __init__(self, reader: LogReader, org: str) -> None:
        self.topics = named(self.name).topics
        self.more = 0
        self._reader = reader
        self._prefix = f"{org}/".encode() if org else b""
        self._ids: Counter[bytes] = Counter()
        self._doubles: list[Double] = []

    def begin(self, partition: int) -> None:
        """Read the changelogs of a partition."""
        self._ids = Counter(conversation_event_ids(self._reader, partition, self._prefix))
        self.more += self._ids.total()
        [topic] = self.topics
        twice = ((id_, times) for id_, times in self._ids.items() if times > 1)
        self._doubles += [Double(topic, partition, -1, id_, times) for id_, times in twice]

    def held(self, block: Block) -> Held:
        """Say which events the tables have."""
        return Held(0, [e for e in block.entries if e.event_id not in self._ids], [])

    def elsewhere(self, block: Block, absent: Sequence[Entry]) -> Collection[bytes]:
        """The tables are asked by event id: what they do not have is nowhere."""
        return ()

    def doubles(self) -> Iterator[Double]:
        """Yield events that made two rows."""
        yield from self._doubles


def conversation_event_ids(reader: LogReader, partition: int, prefix: bytes) -> Iterator[bytes]:
    """Yield the event id of each row that a digest of the conversations counts.

    Args:
        reader: reads the changelogs.
        partition: of the tables.
        prefix: only streams whose key begins so.

    Raises:
        Unavailable: Kafka does not answer.
    """
    rows = _latest(reader, TURNS_CHANGELOG, partition, prefix, _id_of_row)
    heads = _latest(reader, HEADS_CHANGELOG, partition, prefix, lambda key, value: value)
    for value in heads.values():
        stored = unpack_stored(value)
        rows.update({key: _id_of_row(key, row) for key, row in stored.redo})
        if stored.head.created is not None:
            yield stored.head.created.event_id
    yield from filter(None, rows.values())


def _id_of_row(key: bytes, value: bytes) -> bytes:
    """Return the event id of a turn or a refusal; empty for what an accepted turn's row holds."""
    if stream_of(key)[1] == b"t":
        return unpack_turn(value).event_id
    return key[-16:] if unpack_decision(value).refused is not None else b""


class _Keep(Protocol):
    def __call__(self, key: bytes, value: bytes, /) -> bytes: ...


def _latest(
    reader: LogReader, topic: str, partition: int, prefix: bytes, keep: _Keep
) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for record in reader.read(topic, partition):
        key, value = cast(bytes, record.key), record.value
        if not key.startswith(prefix):
            continue
        if value is None:
            found.pop(key, None)
        else:
            found[key] = keep(key, value)
    return found


def checked_views(
    config: Config, reader: LogReader, archive: Archive, org: str
) -> Mapping[str, Checked]:
    """Return every view that is compared with the log, by name."""
    archived = named("packs").topics
    views: list[Checked] = [
        ConversationsView(reader, org),
        TableView(config, "runs", named("runs").topics, "event_id", org),
        TableView(config, "usage", named("usage").topics, "event_id", org),
        PacksView(archive, org),
        TableView(config, "locator", archived, "topic, partition, offset", org),
    ]
    return {view.name: view for view in views}
