"""What was sent, what the log has, what every view has: each gap and each duplicate by its place.

The log is read once, partition by partition, in blocks; of each partition only ranges of numbers
and one block are held. What Kafka has forgotten is read from the packs; chunk batches, which are
not archived, are compared from Kafka's first offset on.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from processors.ledger import (
    Again,
    Found,
    Hole,
    Lane,
    Mark,
    Numbered,
    Place,
    Ranges,
    Seen,
    Tail,
    judge,
    numbered,
)
from replay.damaged import NO_SPOOL, Here, Piece, missing, unread, with_damage
from replay.log import LogReader, LogRecord, Part
from replay.views import LISTED, Block, Checked, Double, Entry, checked_views
from streams.archive import Archive
from streams.dead import dead_letters
from streams.progress import Offsets, Progress
from streams.views import ARCHIVED
from turnlog.config import Config
from turnlog.errors import DecodeError
from turnlog.events import decode
from turnlog.kafka import read_all

LEDGER = "turnlog.ledger"
STREAMS = ("turnlog.runs", "turnlog.run-chunks", "turnlog.turns", "turnlog.usage")
# About 3 MB of Python objects, and one query of each view.
BLOCK_RECORDS = 20_000
CONFLICT = "conflict"

Marks = Mapping[Lane, Mark]
Notify = Callable[[str, int, int], None]
"""Hears topic and partition, records read, records to read."""


class Missing(NamedTuple):
    """A record that a view does not have (`extra`: that the log does not have)."""

    view: str
    topic: str
    partition: int
    offset: int
    event_id: bytes
    extra: bool


class Refused(NamedTuple):
    """A record that a view refused, and why."""

    view: str
    topic: str
    partition: int
    offset: int
    reason: str


class ViewSum(NamedTuple):
    """How one view compares with the log.

    Attributes:
        events: its rows.
        missing: records of the log that it has nowhere and did not refuse.
        duplicates: rows too many.
        extra: rows of which the log knows nothing.
        refused: records in the dead letters.
        repeats: records of the log that repeat an earlier one, and were rightly left out. Packs and
            locator leave none out, they hold the log record by record: 0, and `events` counts all.
            Conversations are asked by event id, which does not tell repeats: 0.
    """

    events: int = 0
    missing: int = 0
    duplicates: int = 0
    extra: int = 0
    refused: int = 0
    repeats: int = 0


class Report(NamedTuple):
    """The whole comparison. Lists name the first 100 of their kind; the sums count all.

    Attributes:
        numbers: what became of the numbers that producers gave out.
        views: the sum of each view.
        missing: records that views lack or have too much.
        doubles: what views have more than once.
        again: numbers that the log has more than once.
        repeats: how many records of the log those are beyond the first.
        refused: dead letters.
        since: the first offset of partitions whose beginning is in Kafka no more, and not in packs.
        unread: damaged records of this machine's spool that do not say which they were.
        here: what this machine's spool knows of producers.
    """

    numbers: Found
    views: dict[str, ViewSum]
    missing: list[Missing]
    doubles: list[tuple[str, Double]]
    again: list[Again]
    repeats: int
    refused: list[Refused]
    since: dict[str, int]
    unread: list[Piece]
    here: Here

    @property
    def conflicts(self) -> list[Again]:
        """Numbers under which the log has different events."""
        return [found for found in self.again if not found.same]

    @property
    def ok(self) -> bool:
        """Say whether nothing is missing, and nothing is there twice that must not be."""
        whole = all(not (v.missing or v.duplicates or v.extra) for v in self.views.values())
        return whole and not (self.numbers.holes or self.conflicts or self.unread)


def read_marks(config: Config) -> dict[Lane, Mark]:
    """Return the last mark of each lane. Read them before the ends of the log are noted.

    Raises:
        Unavailable: Kafka does not answer.
    """
    marks: dict[Lane, Mark] = {}
    for message in read_all(config, LEDGER):
        try:
            body = decode(message.value() or b"").body
            names = ("producer_id", "producer_epoch", "topic", "partition")
            lane = Lane(*(body[name] for name in names))
            refused = tuple((each["first"], each["last"]) for each in body["refused"])
            mark = Mark(body["acked_seq"], body["closed"], body["occurred_at_us"], refused)
        except (DecodeError, KeyError):
            continue  # no mark: it says nothing of any lane
        marks[lane] = mark
    return marks


def topics_of(marks: Marks) -> tuple[str, ...]:
    """Return the topics whose log is compared."""
    return tuple(sorted({*STREAMS, *ARCHIVED, *(lane.topic for lane in marks)}))


def reconcile(
    config: Config,
    marks: Marks,
    ends: Offsets,
    org: str = "",
    notify: Notify = lambda place, done, total: None,
    here: Here = NO_SPOOL,
) -> Report:
    """Compare producers, log and views.

    Args:
        config: where the parts are.
        marks: what producers said, read before `ends` were noted.
        ends: of every partition; the views have reached them.
        org: only its records, and the producers that wrote any; empty: all.
        notify: hears how far it is.
        here: what this machine's spool knew before `ends` were noted.

    Raises:
        PackError: an object of the archive is missing or damaged.
        Unavailable: a part does not answer.
    """
    archive = Archive(config)
    starts = Progress(config).starts({topic for topic, _ in ends})
    with LogReader(config) as reader:
        views = checked_views(config, reader, archive, org)
        work = _Work(config, reader, archive, views, org, notify)
        for (topic, partition), end in sorted(ends.items()):
            work.compare(Part(topic, partition, starts.get((topic, partition), 0), end))
    return work.report(marks, here)


class _Work:
    """One comparison as it goes from partition to partition."""

    def __init__(
        self,
        config: Config,
        reader: LogReader,
        archive: Archive,
        views: Mapping[str, Checked],
        org: str,
        notify: Notify,
    ) -> None:
        self._reader, self._archive, self._views = reader, archive, views
        self._org, self._notify = org, notify
        self._sums = {name: ViewSum() for name in views}
        self._seen: dict[Lane, Ranges] = {}
        self._floors: dict[Lane, int] = {}
        self._again: list[Again] = []
        self._repeats = 0
        self._missing: list[Missing] = []
        self._refused: list[Refused] = []
        self._since: dict[str, int] = {}
        self._dead: dict[tuple[str, str, int], dict[int, str]] = {}
        for letter in dead_letters(config):
            place = letter.view, letter.topic, letter.partition
            self._dead.setdefault(place, {})[letter.offset] = letter.reason

    def compare(self, part: Part) -> None:
        """Compare one partition."""
        if part.end == 0:
            return
        views = [view for view in self._views.values() if part.topic in view.topics]
        for view in views:
            view.begin(part.partition)
        seen = Seen(part.topic, part.partition)
        floors: dict[Lane, int] = {}
        for block in _blocks(part, self._entries(part, seen, floors)):
            for view in views:
                self._ask(view, block, part.start)
            self._notify(f"{part.topic}/{part.partition}", block.last + 1, part.end)
        self._close(part, seen, floors)

    def _records(self, part: Part) -> Iterator[LogRecord]:
        archive = self._archive if part.topic in ARCHIVED else None
        return self._reader.read_part(archive, part)

    def _entries(self, part: Part, seen: Seen, floors: dict[Lane, int]) -> Iterator[Entry]:
        """Yield the records that are compared, and take note of their numbers on the way."""
        mine: set[Lane] = set()
        for record in self._records(part):
            event = _numbered(record.value)
            if event is None:
                if not self._org:
                    yield Entry(record.offset, b"", "")
                continue
            seen.take(event)
            lane = seen.lane_of(event)
            floors.setdefault(lane, event.seq)
            if self._org in ("", event.org):
                mine.add(lane)
                yield Entry(record.offset, event.event_id, event.org)
        for lane in seen.lanes.keys() - mine:
            del seen.lanes[lane]

    def _close(self, part: Part, seen: Seen, floors: Mapping[Lane, int]) -> None:
        """Take over what was found out about a partition's numbers."""
        if part.start > 0 and part.topic not in ARCHIVED:
            self._since[f"{part.topic}/{part.partition}"] = part.start
            self._floors |= floors
        if seen.wants_second_look:
            for record in self._records(part):
                if (event := _numbered(record.value)) is not None:
                    seen.look_again(event, record.offset)
        self._seen |= seen.lanes
        self._repeats += seen.repeats
        self._again += [found for found in seen.again() if found.lane in seen.lanes]

    def _ask(self, view: Checked, block: Block, start: int) -> None:
        held = view.held(block)
        dead = self._dead.get((_refuser(view.name), block.topic, block.partition), {})
        refused = [e for e in held.absent if e.offset in dead]
        absent = [e for e in held.absent if e.offset not in dead]
        known = view.elsewhere(block, absent) if absent else ()
        missing = [e for e in absent if e.event_id not in known]
        extra = [place for place in held.extra if place.offset >= start]
        self._note(view.name, block, missing, extra)
        self._refused += [
            Refused(view.name, block.topic, block.partition, e.offset, dead[e.offset])
            for e in refused[: max(LISTED - len(self._refused), 0)]
        ]
        sums = self._sums[view.name]
        self._sums[view.name] = sums._replace(
            events=sums.events + held.events,
            missing=sums.missing + len(missing),
            extra=sums.extra + len(extra),
            refused=sums.refused + len(refused),
            repeats=sums.repeats + len(absent) - len(missing),
        )

    def _note(self, view: str, block: Block, missing: list[Entry], extra: list[Place]) -> None:
        place = view, block.topic, block.partition
        found = [Missing(*place, e.offset, e.event_id, extra=False) for e in missing]
        found += [Missing(*place, p.offset, p.event_id, extra=True) for p in extra]
        self._missing += found[: max(LISTED - len(self._missing), 0)]

    def _judged(self, marks: Marks, here: Here) -> Found:
        """Say what became of the numbers, of damaged records too."""
        mine = marks if not self._org else {k: m for k, m in marks.items() if k in self._seen}
        vouched = with_damage(mine, self._seen, here)
        floors = self._lane_floors(vouched)
        found = judge(vouched, self._seen, floors)
        more = missing(here, marks, self._seen, floors, found.holes, self._org)
        return found._replace(holes=found.holes + more)

    def report(self, marks: Marks, here: Here) -> Report:
        """Sum up."""
        doubles: list[tuple[str, Double]] = []
        for name, view in self._views.items():
            for double in view.doubles():
                self._doubled(name, double.times - 1)
                if len(doubles) < LISTED:
                    doubles.append((name, double))
            self._sums[name] = self._sums[name]._replace(events=self._sums[name].events + view.more)
        return Report(
            self._judged(marks, here),
            self._sums,
            self._missing,
            doubles,
            self._again,
            self._repeats,
            self._refused,
            self._since,
            unread(here, self._org),
            here,
        )

    def _doubled(self, name: str, more: int) -> None:
        sums = self._sums[name]
        self._sums[name] = sums._replace(duplicates=sums.duplicates + more)

    def _lane_floors(self, marks: Marks) -> dict[Lane, int]:
        """Return the lowest number of lanes whose beginning is gone; all of one that is gone."""
        gone = {lane for lane in marks if f"{lane.topic}/{lane.partition}" in self._since}
        return {lane: self._floors.get(lane, marks[lane].acked_seq + 1) for lane in gone}


def _refuser(view: str) -> str:
    """Return the view in whose dead letters a view's lie: the locator has what the packs have."""
    return "packs" if view == "locator" else view


def _numbered(value: bytes | None) -> Numbered | None:
    try:
        return numbered(value)
    except DecodeError:
        return None


def _blocks(part: Part, entries: Iterable[Entry]) -> Iterator[Block]:
    """Cut the records of a partition into blocks whose offsets lie side by side."""
    first, block = 0, []
    for entry in entries:
        block.append(entry)
        if len(block) == BLOCK_RECORDS:
            yield Block(part.topic, part.partition, first, entry.offset, block)
            first, block = entry.offset + 1, []
    if first < part.end:
        yield Block(part.topic, part.partition, first, part.end - 1, block)


def as_json(report: Report) -> dict[str, Any]:
    """Return a report as `turnlog reconcile --json` prints it."""
    gaps = [_hole(hole) for hole in report.numbers.holes] + [_missing(m) for m in report.missing]
    gaps += [{"where": "spool", "owner": p.owner, "segment": p.segment} for p in report.unread]
    doubles = [_again(a) for a in report.again if a.same][:LISTED]
    refused = [found._asdict() for found in report.refused]
    conflicts = [_again(a) for a in report.conflicts[:LISTED]]
    return {
        "sent": report.numbers.sent,
        "given_up": report.numbers.refused,
        "in_kafka": report.numbers.in_log,
        "views": {name: sums._asdict() for name, sums in report.views.items()},
        "gaps": gaps,
        "duplicates": doubles + [_double(name, found) for name, found in report.doubles],
        "conflicts": conflicts + [f for f in refused if f["reason"].startswith(CONFLICT)],
        "unknown": [_tail(tail, report.here) for tail in report.numbers.tails],
        "refused": refused,
        "repeats": report.repeats,
        "unchecked": report.numbers.unchecked,
        "since": report.since,
        "ok": report.ok,
    }


def _hole(hole: Hole) -> dict[str, Any]:
    return {"where": "kafka", **hole.lane._asdict(), "first": hole.first, "last": hole.last}


def _missing(found: Missing) -> dict[str, Any]:
    row = {"where": found.view, **found._asdict(), "event_id": found.event_id.hex()}
    del row["view"]
    return row


def _again(found: Again) -> dict[str, Any]:
    places = [{"offset": p.offset, "event_id": p.event_id.hex()} for p in found.places]
    return {"where": "kafka", **found.lane._asdict(), "seq": found.seq, "places": places}


def _double(name: str, found: Double) -> dict[str, Any]:
    return {"where": name, **found._asdict(), "event_id": found.event_id.hex()}


def _tail(tail: Tail, here: Here) -> dict[str, Any]:
    counts = {"acked_seq": tail.acked_seq, "seen_to": tail.seen_to, "unseen": tail.unseen}
    return {**tail.lane._asdict(), **counts, "state": here.state_of(tail.lane.producer)}
