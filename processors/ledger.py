"""The ledger against the log: which numbers producers gave out, and which of them arrived.

A number is a `producer_seq`: gapless per producer, epoch, topic and partition. What a mark says is
acknowledged and is not in the log is missing. What lies above the last mark of a producer that did
not close is its unknown tail: it may have been sent or not, and is never counted as zero.

Numbers are kept as ranges, so that a million in a row take two integers.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from processors.intervals import holes, joined
from turnlog.events import common_fields

# A log that repeats more than this is listed in part and counted in full.
MAX_AGAIN = 10_000


class Ranges:
    """Whole numbers as sorted ranges that do not touch."""

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._first: list[int] = []
        self._last: list[int] = []
        for number in numbers:
            self.add(number)

    def add(self, number: int) -> bool:
        """Take a number; return False where it is there already."""
        at = bisect_right(self._first, number) - 1
        if at >= 0 and self._last[at] >= number:
            return False
        after = at >= 0 and self._last[at] == number - 1
        before = at + 1 < len(self._first) and self._first[at + 1] == number + 1
        if after and before:
            self._last[at] = self._last.pop(at + 1)
            del self._first[at + 1]
        elif after:
            self._last[at] = number
        elif before:
            self._first[at + 1] = number
        else:
            self._first.insert(at + 1, number)
            self._last.insert(at + 1, number)
        return True

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._first, number) - 1
        return at >= 0 and self._last[at] >= number

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._first, self._last, strict=True)

    @property
    def count(self) -> int:
        """How many numbers."""
        return _count(self)

    @property
    def top(self) -> int:
        """The highest; -1 where there is none."""
        return self._last[-1] if self._last else -1

    def holes(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield what of `first` to `last`, both included, is not there."""
        return holes(self, first, last)


class Lane(NamedTuple):
    """Where numbers are given out."""

    producer: str
    epoch: int
    topic: str
    partition: int


class Mark(NamedTuple):
    """What a producer said last of one of its lanes: `ledger.mark`.

    Attributes:
        acked_seq: up to here all are in the log, or refused.
        closed: nothing follows.
        at_us: when it was said.
        refused: numbers that need not be in the log, as ranges: their senders were told.
    """

    acked_seq: int
    closed: bool
    at_us: int
    refused: tuple[tuple[int, int], ...] = ()


class Numbered(NamedTuple):
    """What the ledger needs of an event; `producer` is empty where no producer wrote it."""

    org: str
    event_id: bytes
    producer: str
    epoch: int
    seq: int


class Place(NamedTuple):
    """An event at its coordinate."""

    offset: int
    event_id: bytes


class Hole(NamedTuple):
    """Numbers that are acknowledged and not in the log, both ends included."""

    lane: Lane
    first: int
    last: int


class Tail(NamedTuple):
    """What nobody knows of a lane: how many numbers there were above the last mark.

    Attributes:
        lane: of a producer that did not close.
        acked_seq: of its last mark, -1 without one.
        seen_to: the highest number in the log.
        unseen: numbers between the two that are not in the log.
    """

    lane: Lane
    acked_seq: int
    seen_to: int
    unseen: int


class Again(NamedTuple):
    """A number that the log has more than once.

    `same` where it is the same event: a duplicate, which views leave out; else a conflict.
    """

    lane: Lane
    seq: int
    same: bool
    places: tuple[Place, ...]


class Seen:
    """The numbers of one partition as the log is read, in the order of its offsets.

    Attributes:
        again: the numbers that came more than once, and where, once `look_again` was fed.
        repeats: how many records carried a number that had come before.
    """

    def __init__(self, topic: str, partition: int) -> None:
        self._place = topic, partition
        self.lanes: dict[Lane, Ranges] = {}
        self.repeats = 0
        self._again: dict[tuple[Lane, int], list[Place]] = {}

    def take(self, event: Numbered) -> None:
        """Take the next record's number."""
        if not event.producer:
            return
        lane = self.lane_of(event)
        if self.lanes.setdefault(lane, Ranges()).add(event.seq):
            return
        self.repeats += 1
        if len(self._again) < MAX_AGAIN:
            self._again.setdefault((lane, event.seq), [])

    def lane_of(self, event: Numbered) -> Lane:
        """Return the lane of an event in this partition."""
        return Lane(event.producer, event.epoch, *self._place)

    @property
    def wants_second_look(self) -> bool:
        """Say whether the partition has to be read again, for the places of repeats."""
        return bool(self._again)

    def look_again(self, event: Numbered, offset: int) -> None:
        """Take a record once more."""
        places = self._again.get((self.lane_of(event), event.seq))
        if places is not None:
            places.append(Place(offset, event.event_id))

    def again(self) -> Iterator[Again]:
        """Yield the numbers that came more than once."""
        for (lane, seq), places in self._again.items():
            same = len({place.event_id for place in places}) < 2
            yield Again(lane, seq, same, tuple(places))


class Found(NamedTuple):
    """What became of the numbers of some lanes.

    Attributes:
        sent: numbers that are known to have been given out.
        refused: those of them whose senders were told that they would not be written.
        in_log: numbers in the log.
        unchecked: acknowledged numbers that retention may have removed.
        holes: what is missing.
        tails: what nobody knows.
    """

    sent: int
    refused: int
    in_log: int
    unchecked: int
    holes: list[Hole]
    tails: list[Tail]


def judge(
    marks: Mapping[Lane, Mark], seen: Mapping[Lane, Ranges], floors: Mapping[Lane, int]
) -> Found:
    """Compare what producers said with what the log has.

    Args:
        marks: the last mark of each lane.
        seen: the numbers in the log.
        floors: the lowest number that can be asked for, in lanes whose log does not reach back to
            their beginning.
    """
    found = Found(0, 0, 0, 0, [], [])
    for lane in sorted(marks.keys() | seen.keys()):
        found = _add(found, lane, marks.get(lane), seen.get(lane, Ranges()), floors.get(lane, 0))
    return found


def _add(found: Found, lane: Lane, mark: Mark | None, seen: Ranges, floor: int) -> Found:
    acked = mark.acked_seq if mark else -1
    refused = mark.refused if mark else ()
    known = joined((*seen, *refused))
    found.holes.extend(Hole(lane, *hole) for hole in holes(known, floor, acked))
    if mark is None or not mark.closed:
        unseen = _count(holes(known, max(acked + 1, floor), seen.top))
        found.tails.append(Tail(lane, acked, seen.top, unseen))
    return found._replace(
        sent=found.sent + max(acked, seen.top) + 1,
        refused=found.refused + _count(joined(refused)),
        in_log=found.in_log + seen.count,
        unchecked=found.unchecked + _count(holes(known, 0, min(floor - 1, acked))),
    )


def _count(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in ranges)


def numbered(value: bytes | None) -> Numbered:
    """Return what the ledger needs of an event; reads its common fields only, 5 µs.

    Raises:
        DecodeError: the bytes do not begin like an event.
    """
    body = common_fields(value or b"")
    names = ("org", "event_id", "producer_id", "producer_epoch", "producer_seq")
    return Numbered(*(body[name] for name in names))
