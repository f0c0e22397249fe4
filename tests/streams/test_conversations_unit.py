"""The unit of work of the conversations worker, without Kafka: what is folded, written and lost."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processors.conversation_rows import unpack_head, unpack_turn
from processors.digest import ViewDigest
from sinks.redis.conversations import APPLIED, HEAD, outcome_key
from streams.batch import Stopped
from streams.conversations.state import State, stored
from streams.conversations.stored import canonical
from streams.conversations.unit import MAX_EVENTS, MAX_UNREADABLE, Partition, Source, Step
from streams.conversations.work import Work
from streams.stall import Stall
from tests.processors.conversation_events import (
    ORG,
    STREAM,
    appended,
    created,
    digest,
    event,
    imported,
    placed,
)
from turnlog.errors import Unavailable
from turnlog.events import Event, decode, encode

Pairs = Iterable[tuple[bytes, bytes]]


class Tables:
    """Two tables in dicts: what the changelog acknowledged, which is what a restart finds."""

    def __init__(self) -> None:
        self.heads: dict[bytes, bytes] = {}
        self.rows: dict[bytes, bytes] = {}

    def head(self, key: bytes) -> bytes | None:
        return self.heads.get(key)

    def row(self, key: bytes) -> bytes | None:
        return self.rows.get(key)

    def digest(self) -> tuple[int, str]:
        view = ViewDigest(keep_repeats=True)
        for row in canonical(self.heads, self.rows):
            view.add(*row)
        return view.result()


def source(offset: int, each: Event) -> Source:
    stream = f"{each.body['org']}/{each.body['conversation'] or each.body['run']}".encode()
    return Source(3, offset, stream, encode(each.type, each.body), (("ce_id", b"x"),))


def fold_step(events: Sequence[Event], tables: Tables | None = None) -> Step:
    partition = Partition(tables or Tables())
    for offset, each in enumerate(events):
        partition.fold(source(offset, each))
    return partition.cut()


def write(step: Step, tables: Tables, cut: int | None = None) -> None:
    """Write a step as the writer does, heads before rows; stop after `cut` records."""
    heads, rows = stored(step.rows)
    written = [(tables.heads, pair) for pair in heads] + [(tables.rows, pair) for pair in rows]
    for table, (key, value) in written[:cut]:
        table[key] = value


def test_a_step_shows_what_changed_once_a_conversation() -> None:
    step = fold_step([created(), appended("a", frame=b"fa"), appended("b", frame=b"fb")])
    fields = step.shown[STREAM].fields()
    assert set(fields) == {HEAD, APPLIED, b"t:a", b"t:b", b"f:a", b"f:b"}
    assert fields[b"f:a"] == b"fa" and fields[APPLIED] == b"2"
    assert unpack_head(fields[HEAD]).leaf == "b"
    assert unpack_turn(fields[b"t:a"]).last_child == "b"
    assert step.position == 3 and not step.dead and not step.refusals


def test_a_frame_under_another_key_is_not_shown() -> None:
    events = [appended("a", frame=b"first"), appended("a", frame=b"second", key_day=7)]
    step = fold_step(events)
    assert step.shown[STREAM].fields()[b"f:a"] == b"first"
    assert [dict(letter.headers)["dlq-reason"] for letter in step.dead] == [b"second_beginning"]


def test_the_outcome_of_an_append_is_told_under_its_position() -> None:
    step = fold_step([appended("a"), appended("b", expected_last_seq=0), imported(9)])
    said = {key: msgpack.unpackb(value) for key, value in step.outcomes.items()}
    assert said[outcome_key(ORG, 3, 0)] == {
        "status": "accepted",
        "turn": "a",
        "turn_seq": 1,
        "parent": "",
        "last_seq": 1,
        "leaf": "a",
        "leaf_version": 1,
    }
    refused = said[outcome_key(ORG, 3, 1)]
    assert (refused["status"], refused["reason"], refused["last_seq"]) == ("refused", "conflict", 1)
    assert len(said) == 2


def test_a_refusal_is_an_event_and_a_replay_gives_the_same_bytes() -> None:
    events = [appended("a"), appended("b", expected_last_seq=0)]
    tables = Tables()
    first = fold_step(events, tables)
    write(first, tables)
    again = fold_step(events, tables)
    assert [refusal.topic for refusal in first.refusals] == ["turnlog.refusals"]
    assert again.refusals == first.refusals
    body = decode(first.refusals[0].value).body
    assert (body["refused_offset"], body["reason"], body["last_seq"]) == (1, "conflict", 1)


def test_a_later_repeat_of_a_refused_append_is_told_but_not_recorded_again() -> None:
    stale = appended("b", expected_last_seq=0)
    step = fold_step([appended("a"), stale, stale])
    assert len(step.refusals) == 1
    assert msgpack.unpackb(step.outcomes[outcome_key(ORG, 3, 2)])["status"] == "refused"


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"value": b"not an event"}, "not_an_event"),
        ({"value": None}, "not_an_event"),
        ({"value": b"\xc3\x01" + b"unknown!" + b"rest"}, "unknown_schema"),
        ({"key": b"org_b/conv_1"}, "key_mismatch"),
        ({"key": None}, "key_mismatch"),
    ],
)
def test_what_cannot_be_read_is_kept_byte_for_byte(broken: dict[str, Any], reason: str) -> None:
    record = source(0, appended("a"))._replace(**broken)
    partition = Partition(Tables())
    partition.fold(record)
    letter = partition.cut().dead[0]
    headers = dict(letter.headers)
    assert (letter.key, letter.value) == (record.key, record.value)
    assert headers["dlq-reason"] == reason.encode() and headers["dlq-offset"] == b"0"
    assert headers["ce_id"] == b"x" and letter.topic == "turnlog.turns.dead"


def test_a_topic_that_cannot_be_read_any_more_stops_the_worker() -> None:
    partition = Partition(Tables())
    for offset in range(MAX_UNREADABLE - 1):
        partition.fold(Source(3, offset, STREAM, b"garbage"))
    assert len(partition.cut().dead) == MAX_UNREADABLE - 1
    with pytest.raises(Stopped, match="not_an_event"):
        partition.fold(Source(3, MAX_UNREADABLE - 1, STREAM, b"garbage"))


def test_a_gap_between_records_stops_the_fold() -> None:
    partition = Partition(Tables())
    partition.expect(5)
    partition.fold(source(5, appended("a")))
    with pytest.raises(Unavailable, match="6 to 7 was not handed over"):
        partition.fold(source(8, appended("b")))


def test_a_record_from_beyond_where_reading_began_stops_the_fold() -> None:
    partition = Partition(Tables())
    partition.fold(source(9, appended("a")))
    partition.expect(5)
    with pytest.raises(Unavailable, match="5 to 8 was not handed over"):
        partition.fold(source(10, appended("b")))
    partition.written(partition.cut())
    assert partition.durable == 5


def test_records_that_come_before_the_position_is_known_count() -> None:
    partition = Partition(Tables())
    partition.fold(source(5, appended("a")))
    partition.expect(5)
    partition.fold(source(5, appended("a")))
    partition.fold(source(6, appended("b")))
    assert partition.cut().rows.heads[STREAM].leaf == "b"


def test_rows_that_were_lost_behind_their_head_are_written_with_the_next_change() -> None:
    tables = Tables()
    write(fold_step([appended("a"), appended("b")]), tables, cut=1)
    assert set(tables.heads) == {STREAM} and not tables.rows
    state = State(tables)
    assert state.head(STREAM) is not None
    assert state.turn(STREAM, "b") is not None
    partition = Partition(tables)
    partition.fold(source(2, appended("c")))
    write(partition.cut(), tables)
    assert tables.digest() == digest(placed([appended("a"), appended("b"), appended("c")]))


@st.composite
def logs(draw: st.DrawFn) -> list[Event]:
    names = [f"t{n}" for n in range(6)]
    one = st.one_of(
        st.builds(appended, st.sampled_from(names)),
        st.builds(
            lambda t, e: appended(t, expected_last_seq=e, natural_id=f"{t}/{e}"),
            st.sampled_from(names),
            st.integers(0, 4),
        ),
        st.builds(
            lambda t, p: appended(t, parent_turn=p, leaf_version=2),
            st.sampled_from(names),
            st.sampled_from(names),
        ),
        st.builds(imported, st.integers(1, 9)),
        st.just(created()),
        st.just(event("turn.regenerated", "r", turn="t0")),
    )
    return draw(st.lists(one, min_size=1, max_size=20))


@settings(max_examples=40, deadline=None)
@given(logs(), st.lists(st.integers(1, 5)), st.data())
def test_a_crash_after_any_written_record_loses_and_doubles_nothing(
    events: list[Event], sizes: list[int], data: st.DataObject
) -> None:
    """Steps of any size; now and then the worker dies in one, and its successor starts again."""
    tables = Tables()
    partition, committed, offset = Partition(tables), 0, 0
    deaths = 0
    while offset < len(events):
        size = sizes[offset % len(sizes)] if sizes else 1
        for _ in range(min(size, len(events) - offset)):
            partition.fold(source(offset, events[offset]))
            offset += 1
        step = partition.cut()
        if deaths < 4 and data.draw(st.booleans()):
            deaths += 1
            write(step, tables, cut=data.draw(st.integers(0, 12)))
            partition, offset = Partition(tables), committed
            continue
        write(step, tables)
        partition.written(step)
        if data.draw(st.booleans()):
            committed = offset
    assert tables.digest() == digest(placed(events))


class Recorder:
    """Writes into tables in memory; may be told to fail."""

    def __init__(self) -> None:
        self.tables = Tables()
        self.steps: list[Step] = []
        self.fails = False

    def write(self, steps: Any, heads: Any, turns: Any) -> None:
        if self.fails:
            raise Unavailable("no store")
        for step in steps.values():
            self.steps.append(step)
            write(step, self.tables)


class Fetched:
    def __init__(self, found: dict[bytes, bytes]) -> None:
        self._found = found

    def fetch(self, partition: int, key: bytes) -> bytes | None:
        return self._found.get(key)

    def keep(self, partition: int, rows: Pairs, offset: int) -> None:
        raise AssertionError("the recorder writes")


def worker() -> tuple[Work, Recorder]:
    recorder = Recorder()
    work = Work(recorder)
    work.attach(Fetched(recorder.tables.heads), Fetched(recorder.tables.rows))
    return work, recorder


async def test_a_position_moves_only_when_what_lies_before_it_is_written() -> None:
    work, _ = worker()
    work.own([3])
    await work.take(source(0, appended("a")))
    assert work.durable(3) is None
    await work.flush()
    assert work.durable(3) == 1 and work.positions() == {3: 1}


async def test_a_quiet_partition_stands_where_it_was_committed() -> None:
    work, _ = worker()
    work.own([3])
    work.expect(3, 7)
    assert work.positions() == {3: 7}
    await work.take(source(7, appended("a")))
    assert work.positions() == {3: 7}
    await work.flush()
    assert work.positions() == {3: 8}


async def test_a_full_step_is_written_before_more_is_folded() -> None:
    work, recorder = worker()
    work.own([3])
    for offset in range(MAX_EVENTS):
        await work.take(source(offset, appended(f"t{offset}")))
    assert [step.events for step in recorder.steps] == [MAX_EVENTS]


async def test_records_of_partitions_that_are_not_owned_are_left_alone() -> None:
    work, recorder = worker()
    await work.take(source(0, appended("a")))
    work.own([3])
    await work.take(source(0, appended("a")))
    work.forget([3])
    await work.flush()
    assert recorder.steps == [] and work.durable(3) is None


async def test_nothing_is_written_after_a_write_that_failed() -> None:
    work, recorder = worker()
    work.own([3])
    await work.take(source(0, appended("a")))
    recorder.fails = True
    with pytest.raises(Unavailable, match="no store"):
        await work.flush()
    recorder.fails = False
    await work.take(source(1, appended("b")))
    with pytest.raises(Unavailable, match="earlier step"):
        await work.flush()
    assert work.durable(3) is None and recorder.tables.heads == {}


def test_the_digest_of_tables_is_that_of_the_pure_fold() -> None:
    events = [created(), appended("a"), appended("b", expected_last_seq=0), imported(7)]
    tables = Tables()
    write(fold_step(events), tables)
    assert tables.digest() == digest(placed(events)) and tables.digest()[0] == 4


def test_records_that_wait_while_nothing_moves_are_a_stall() -> None:
    stall = Stall[int](limit_s=10)
    assert stall.stuck(0, {1: (5, 9), 2: (3, 3)}) == []
    assert stall.stuck(10, {1: (5, 9), 2: (3, 3)}) == []
    assert stall.stuck(11, {1: (5, 9), 2: (3, 3)}) == [1]


def test_any_movement_and_an_end_that_is_reached_are_none() -> None:
    stall = Stall[int](limit_s=10)
    stall.stuck(0, {1: (5, 9), 2: (3, 7)})
    assert stall.stuck(11, {1: (5, 9), 2: (4, 7)}) == []
    assert stall.stuck(22, {1: (9, 9), 2: (7, 7)}) == []
    assert stall.stuck(99, {1: (9, 9), 2: (7, 7)}) == []
    assert stall.stuck(100, {1: (9, 10), 2: (7, 7)}) == []


def test_a_time_in_which_nobody_looked_is_no_stall() -> None:
    stall = Stall[int](limit_s=10)
    stall.stuck(0, {0: (0, 1)})
    stall.rest()
    assert stall.stuck(600, {0: (0, 1)}) == []
    assert stall.stuck(611, {0: (0, 1)}) == [0]
