import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processors.ledger import Hole, Lane, Mark, Numbered, Place, Ranges, Seen, Tail, judge, numbered
from turnlog.errors import DecodeError
from turnlog.events import TYPES, record

LANE = Lane("p1", 1, "turnlog.usage", 3)


@given(st.lists(st.integers(0, 40)), st.integers(0, 45), st.integers(0, 45))
def test_ranges_hold_what_a_set_holds(numbers: list[int], first: int, last: int) -> None:
    ranges, kept = Ranges(), set[int]()
    for number in numbers:
        assert ranges.add(number) == (number not in kept)
        kept.add(number)
    found = list(ranges)
    assert {n for a, b in found for n in range(a, b + 1)} == kept
    assert all(b + 1 < a for (_, b), (a, _) in zip(found, found[1:], strict=False))
    assert [n in ranges for n in range(45)] == [n in kept for n in range(45)]
    assert (ranges.count, ranges.top) == (len(kept), max(kept, default=-1))
    holes = {n for a, b in ranges.holes(first, last) for n in range(a, b + 1)}
    assert holes == set(range(first, last + 1)) - kept


def test_what_is_acknowledged_and_not_in_the_log_is_a_hole() -> None:
    found = judge({LANE: Mark(5, True, 0)}, {LANE: Ranges([0, 1, 4])}, {})
    assert found.holes == [Hole(LANE, 2, 3), Hole(LANE, 5, 5)]
    assert (found.sent, found.in_log, found.tails) == (6, 3, [])


def test_what_its_sender_was_told_is_not_written_is_no_hole() -> None:
    mark = Mark(5, True, 0, ((2, 3), (7, 2**62)))
    found = judge({LANE: mark}, {LANE: Ranges([0, 1, 4])}, {})
    assert found.holes == [Hole(LANE, 5, 5)]
    assert (found.sent, found.in_log, found.tails) == (6, 3, [])


def test_above_the_last_mark_of_a_producer_that_did_not_close_nothing_is_known() -> None:
    found = judge({LANE: Mark(1, False, 0)}, {LANE: Ranges([0, 1, 2, 5])}, {})
    assert found.holes == []
    assert found.tails == [Tail(LANE, 1, 5, 2)]
    assert (found.sent, found.in_log) == (6, 4)


def test_a_producer_that_died_before_its_first_mark_has_a_tail_only() -> None:
    assert judge({}, {LANE: Ranges([1])}, {}).tails == [Tail(LANE, -1, 1, 1)]


def test_what_retention_took_is_told_and_is_no_hole() -> None:
    found = judge({LANE: Mark(9, True, 0)}, {LANE: Ranges([6, 7, 9])}, {LANE: 6})
    assert (found.holes, found.unchecked) == ([Hole(LANE, 8, 8)], 6)


@pytest.mark.parametrize(("second", "same"), [(b"a", True), (b"b", False)])
def test_a_number_twice_is_a_duplicate_or_a_conflict(second: bytes, same: bool) -> None:
    seen = Seen("turnlog.usage", 3)
    events = [(10, b"a", 0), (11, b"x", 1), (12, second, 0)]
    for look in (seen.take, seen.look_again):
        for offset, event_id, seq in events:
            event = Numbered("acme", event_id, "p1", 1, seq)
            look(event) if look == seen.take else seen.look_again(event, offset)
    [again] = seen.again()
    assert (again.lane, again.seq, again.same) == (LANE, 0, same)
    assert again.places == (Place(10, b"a"), Place(12, second))


def test_what_no_producer_wrote_has_no_number() -> None:
    seen = Seen("turnlog.usage", 3)
    seen.take(Numbered("acme", b"a", "", 0, 0))
    assert seen.lanes == {}


@pytest.mark.parametrize("name", ["run.created", "usage.recorded", "turn.appended", "chunk.batch"])
def test_the_common_fields_of_every_type_are_read(name: str) -> None:
    event_id = os.urandom(16)
    required = {f.name for f in TYPES[name].fields if f.required}
    body = {"org": "acme", "run": "r", "event_id": event_id, "occurred_at_us": 1} | {
        "producer_id": "p1", "producer_epoch": 2, "producer_seq": 70_000, "frame": b"f" * 300,
    }  # fmt: skip
    assert required <= body.keys()
    assert numbered(record(name, body).value) == Numbered("acme", event_id, "p1", 2, 70_000)


@pytest.mark.parametrize("value", [None, b"", b"\xc3\x01", b"{}", b"\xc3\x01" + bytes(8) + b"\xff"])
def test_what_is_no_event_is_said(value: bytes | None) -> None:
    with pytest.raises(DecodeError):
        numbered(value)
