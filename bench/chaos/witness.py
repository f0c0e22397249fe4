"""What killed gateways wrote down, against what the log and the views hold."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from processors.runs import TERMINAL
from replay.log import LogReader
from replay.views import conversation_event_ids
from sinks.clickhouse.client import ClickHouse
from streams.archive import Archive
from turnlog.config import Config
from turnlog.errors import DecodeError
from turnlog.events import decode
from turnlog.kafka import partitions_of, read_all

CHUNKS = "turnlog.run-chunks"
BEFORE_KILL_NS = 3_000_000_000
VIEWS_OF = {
    "turnlog.runs": ("runs", "packs", "locator"),
    "turnlog.usage": ("usage", "packs", "locator"),
    "turnlog.turns": ("conversations", "packs", "locator"),
    CHUNKS: (CHUNKS,),
}


class Notes:
    """The file of one gateway, and when it was killed.

    Attributes:
        asked: events that were handed over, `(topic, event id as hex)`.
        acked: those that were acknowledged.
        via: how many of them by the broker and by the spool.
        ended: runs whose end was acknowledged.
        shown: of each run, characters and time after each chunk.
        rss_mb: the most memory that it had.
        spool_bytes: the most that its spool held.
    """

    def __init__(self, path: Path) -> None:
        self.asked: set[tuple[str, str]] = set()
        self.acked: set[tuple[str, str]] = set()
        self.via: Counter[str] = Counter()
        self.ended: set[str] = set()
        self.shown: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self.rss_mb: list[float] = []
        self.spool_bytes = 0
        for line in _lines(path):
            kind, *rest = line.split(" ")
            getattr(self, f"_{kind}", self._other)(*rest)

    def _ask(self, topic: str, event_id: str) -> None:
        self.asked.add((topic, event_id))

    def _ack(self, topic: str, event_id: str, via: str) -> None:
        self.acked.add((topic, event_id))
        self.via[via] += 1

    def _ended(self, run: str) -> None:
        self.ended.add(run)

    def _shown(self, run: str, chars: str, at_ns: str) -> None:
        self.shown[run].append((int(chars), int(at_ns)))

    def _state(self, rss_mb: str, spool_bytes: str, _rung: str) -> None:
        self.rss_mb.append(float(rss_mb))
        self.spool_bytes = max(self.spool_bytes, int(spool_bytes))

    def _other(self, *_rest: str) -> None:
        """Nothing follows from it."""


def _lines(path: Path) -> Iterator[str]:
    """Yield whole lines: a kill may have cut the last one off."""
    if path.exists():
        yield from path.read_text().split("\n")[:-1]


class Stores:
    """How often each event of an org is in each view, by event id as hex."""

    def __init__(self, config: Config, org: str) -> None:
        self._config = config
        self._org = org
        self._clickhouse = ClickHouse(config)
        self.views: dict[str, Counter[str]] = {
            name: self._table(name) for name in ("runs", "usage")
        }
        # A repeat has a coordinate of its own there: once is what has to be.
        self.views["locator"] = Counter(set(self._table("locator")))
        self.views["packs"] = Counter(
            {row.event_id.hex() for row in Archive(config).rows() if row.org == org}
        )
        self.views["conversations"] = Counter(self._conversations())
        self.chars: Counter[str] = Counter()
        self.views[CHUNKS] = Counter(self._chunks())

    def _table(self, name: str) -> Counter[str]:
        rows = self._clickhouse.stream(
            f"SELECT lower(hex(event_id)), count() FROM {self._clickhouse.database}.{name} "
            "WHERE org = {org:String} GROUP BY event_id",
            {"org": self._org},
        )
        return Counter({str(event_id): int(times) for event_id, times in rows})

    def _conversations(self) -> Iterator[str]:
        prefix = f"{self._org}/".encode()
        with LogReader(self._config) as reader:
            for number in partitions_of(self._config, "turnlog.turns"):
                for event_id in conversation_event_ids(reader, number, prefix):
                    yield event_id.hex()

    def _chunks(self) -> set[str]:
        """Return the chunk events of the log, and count what of each run's output they hold."""
        found: dict[str, dict[int, int]] = {}
        ids = set()
        for message in read_all(self._config, CHUNKS):
            try:
                event = decode(message.value() or b"")
            except DecodeError:
                continue
            body = event.body
            if body["org"] != self._org:
                continue
            ids.add(body["event_id"].hex())
            if event.type == "chunk.batch":
                found.setdefault(body["run"], {})[body["char_offset"]] = body["chars"]
        self.chars.update({run: _whole(batches) for run, batches in found.items()})
        return ids

    @staticmethod
    def open_runs(config: Config, org: str) -> set[str]:
        """Return the runs without an end, as they are now."""
        clickhouse = ClickHouse(config)
        listed = ", ".join(f"'{name}'" for name in TERMINAL)
        rows = clickhouse.stream(
            f"SELECT run FROM {clickhouse.database}.runs WHERE org = {{org:String}} "
            f"GROUP BY run HAVING countIf(type IN ({listed})) = 0",
            {"org": org},
        )
        return {str(run) for (run,) in rows}

    def finalized(self) -> Mapping[str, int]:
        """Return the runs that the finalizer ended, and how much output it found of each."""
        rows = self._clickhouse.stream(
            f"SELECT run, max(output_chars) FROM {self._clickhouse.database}.runs "
            "WHERE org = {org:String} AND type = 'run.interrupted' GROUP BY run",
            {"org": self._org},
        )
        return {str(run): int(chars) for run, chars in rows}


def _whole(batches: Mapping[int, int]) -> int:
    """Return up to which character batches hold an output without a gap."""
    reached = 0
    while reached in batches and batches[reached]:
        reached += batches[reached]
    return reached


class Compared(NamedTuple):
    """Acknowledged events against the views: `view/topic/event id` of what is wrong."""

    acknowledged: int
    missing: list[str]
    duplicated: list[str]


def compare(acked: Iterable[tuple[str, str]], stores: Stores) -> Compared:
    """Look for each acknowledged event in each of its views."""
    missing: list[str] = []
    duplicated: list[str] = []
    count = 0
    for topic, event_id in acked:
        count += 1
        for view in VIEWS_OF.get(topic, ()):
            times = stores.views[view][event_id]
            if times != 1:
                (duplicated if times else missing).append(f"{view} {topic} {event_id}")
    return Compared(count, sorted(missing), sorted(duplicated))


def lost_ms(notes: Notes, killed_ns: int, stores: Stores, orphans: set[str]) -> float:
    """Return how much of the output of the runs that a kill left open is not in the log.

    From the moment when the first character that is missing was shown to the kill.
    """
    worst = 0
    for run in notes.shown.keys() & orphans:
        held = stores.chars[run]
        gone = [at_ns for chars, at_ns in notes.shown[run] if chars > held]
        if gone:
            worst = max(worst, killed_ns - gone[0])
    return round(worst / 1e6, 1)


def silence_ms(notes: Notes, killed_ns: int) -> float:
    """Return the longest time before a kill in which a gateway showed nobody anything.

    It has thousands of chunks to show a second: this is how long the machine did not let it run.
    """
    times = sorted(at_ns for shown in notes.shown.values() for _, at_ns in shown)
    recent = [at_ns for at_ns in [*times, killed_ns] if at_ns > killed_ns - BEFORE_KILL_NS]
    return round(max((b - a for a, b in pairwise(recent)), default=0) / 1e6, 1)
