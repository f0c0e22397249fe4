"""The sink of `usage` and `runs` on a real engine: what lands is what a pure fold holds."""

import itertools
import os
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import Message

from processors import runs, usage
from processors.common import Row, shaped
from sinks.clickhouse.client import ClickHouse, InsertRefused
from sinks.clickhouse.container import Batch, Builder
from sinks.clickhouse.recovery import WINDOW_US, query_id, recent, stored_offsets
from sinks.clickhouse.tables import RUNS, USAGE, Table, ensure_tables
from streams.rows_digest import stored_events, table_digest
from streams.rows_sink import CONFLICT, MISPLACED, SHAPE, RowsSink
from tests.streams.rows_log import NOW_MS, Log, run_events, stream_key_in, usage_event
from turnlog.config import Config
from turnlog.errors import DecodeError
from turnlog.events import TYPES, Event, codec, decode, encode
from turnlog.kafka import partition_of

DAY_MS = 86_400_000
_numbers = itertools.count()


@pytest.fixture
def usage_log(stores: Config) -> Log:
    return Log(_own(stores, USAGE))


@pytest.fixture
def runs_log(stores: Config) -> Log:
    return Log(_own(stores, RUNS))


def _own(config: Config, table: Table) -> Table:
    name = f"{table.name}_{os.getpid()}_{next(_numbers)}"
    own = table.copy(name, f"turnlog.test-{name}")
    ensure_tables(config, own)
    return own


def started(config: Config, log: Log, committed: int = 0) -> RowsSink:
    sink = RowsSink(ClickHouse(config), log.table)
    partitions = {m.partition() or 0 for m in log.messages} | {0}
    sink.recover({(log.table.source, number): committed for number in partitions})
    return sink


def drain(sink: RowsSink, messages: Sequence[Message], size: int = 100) -> list[tuple[int, str]]:
    """Write messages in batches that arrive in pieces; return offset and reason of what was bad."""
    dead = []
    for start in range(0, len(messages), size):
        batch = messages[start : start + size]
        for at in range(0, len(batch), 30):
            sink.prepare(batch[at : at + 30])
        dead += sink.write(batch)
    return [(item.message.offset() or 0, item.reason) for item in dead]


def test_usage_rows_are_the_events(stores: Config, usage_log: Log) -> None:
    for number in range(250):
        usage_log.append(usage_event(number), partition=number // 50)
    usage_log.append(
        encode(
            "usage.corrected", decode(usage_event(300)).body | {"sign": -1, "corrects": b"c" * 16}
        )
    )
    outcome = {
        name: value for name, value in decode(usage_event(301)).body.items() if name in _COMMON
    }
    usage_log.append(encode("task.outcome", outcome | {"outcome": "success", "score_micro": 0}))
    assert drain(started(stores, usage_log), usage_log.messages) == []
    stored = {e.body["event_id"]: e for e in stored_events(ClickHouse(stores), usage_log.table)}
    for message in usage_log.messages:
        event = decode(message.value() or b"")
        body = event.body | {"content_mac": event.body["content_mac"].hex()}
        assert stored[event.body["event_id"]] == (event.type, body)
    assert table_digest(stores, usage_log.table, usage.canonical) == usage_log.fold(usage.canonical)


_COMMON = tuple(field.name for field in USAGE.types[0].fields[:24])


def test_run_rows_are_the_events_without_their_frames(stores: Config, runs_log: Log) -> None:
    for number in range(40):
        for value in run_events(number):
            runs_log.append(value)
    assert drain(started(stores, runs_log), runs_log.messages, 45) == []
    events = {e.body["event_id"]: e for e in stored_events(ClickHouse(stores), runs_log.table)}
    for message in runs_log.messages:
        event = decode(message.value() or b"")
        mac = event.body["content_mac"].hex()
        expected = event.body | {"content_mac": mac, "frame": b""}
        assert events[event.body["event_id"]] == (event.type, expected)
    assert table_digest(stores, runs_log.table, runs.canonical) == runs_log.fold(runs.canonical)
    rows = ClickHouse(stores).rows(
        "SELECT type, topic, partition, offset, frame_bytes, append_us "
        f"FROM turnlog.{runs_log.table.name} ORDER BY offset LIMIT 2"
    )
    source = runs_log.table.source
    assert rows == [
        ("run.created", source, 0, 0, 1, NOW_MS * 1000),
        ("run.started", source, 0, 1, 0, NOW_MS * 1000 + 1000),
    ]


def test_one_changed_token_changes_the_digest(stores: Config, usage_log: Log) -> None:
    for number in range(5):
        usage_log.append(usage_event(number))
    drain(started(stores, usage_log), usage_log.messages)
    before = table_digest(stores, usage_log.table, usage.canonical)
    ClickHouse(stores).command(
        f"ALTER TABLE turnlog.{usage_log.table.name} UPDATE output_text = output_text + 1 "
        "WHERE offset = 3 SETTINGS mutations_sync = 1"
    )
    after = table_digest(stores, usage_log.table, usage.canonical)
    assert after[0] == before[0] == 5
    assert after[1] != before[1]


@pytest.mark.parametrize("size", [1, 4, 100])
def test_repeats_change_nothing_wherever_batches_fall(
    stores: Config, usage_log: Log, size: int
) -> None:
    for number in [0, 1, 1, 2, 0, 3, 3, 3, 4]:
        usage_log.append(usage_event(number, may_repeat=number == 3))
    assert drain(started(stores, usage_log), usage_log.messages, size) == []
    events, digest = usage_log.fold(usage.canonical)
    assert events == 5
    assert table_digest(stores, usage_log.table, usage.canonical) == (events, digest)


def test_a_whole_topic_again_changes_nothing_after_a_new_start(
    stores: Config, usage_log: Log
) -> None:
    for number in range(50):
        usage_log.append(usage_event(number))
    drain(started(stores, usage_log), usage_log.messages)
    before = table_digest(stores, usage_log.table, usage.canonical)
    for number in range(50):
        usage_log.append(usage_event(number))
    assert drain(started(stores, usage_log, committed=50), usage_log.messages[50:]) == []
    assert table_digest(stores, usage_log.table, usage.canonical) == before


def test_other_content_under_the_same_event_id_is_a_conflict(
    stores: Config, usage_log: Log, runs_log: Log
) -> None:
    for log, first, second in [
        (usage_log, usage_event(1), usage_event(1, user="another")),
        (runs_log, next(iter(run_events(1))), next(iter(run_events(1)))),
    ]:
        log.append(first)
        log.append(second)
        sink = started(stores, log)
        assert drain(sink, log.messages) == [(1, CONFLICT)]
        log.append(second)
        assert drain(sink, log.messages[2:]) == [(2, CONFLICT)]
        assert drain(started(stores, log, 2), log.messages[2:]) == [(2, CONFLICT)]
    assert table_digest(stores, usage_log.table, usage.canonical) == usage_log.fold(usage.canonical)


@pytest.mark.parametrize("name", usage.NUMBERS)
def test_other_numbers_under_the_same_event_id_are_a_conflict(
    stores: Config, usage_log: Log, name: str
) -> None:
    other = {name: -1 if name == "sign" else 77}
    usage_log.append(usage_event(1))
    usage_log.append(usage_event(1, **other))
    usage_log.append(usage_event(1, may_repeat=True))
    outcome = {"org": "acme", "run": "r", "event_id": b"o" * 16, "occurred_at_us": 1}
    usage_log.append(encode("task.outcome", outcome))
    sink = started(stores, usage_log)
    assert drain(sink, usage_log.messages) == [(1, CONFLICT)]
    usage_log.append(usage_event(1, **other))
    usage_log.append(usage_event(1))
    usage_log.append(encode("task.outcome", outcome))
    assert drain(started(stores, usage_log, 4), usage_log.messages[4:]) == [(4, CONFLICT)]
    assert table_digest(stores, usage_log.table, usage.canonical) == usage_log.fold(usage.canonical)


@pytest.mark.parametrize(
    ("table", "canonical", "events"),
    [
        (USAGE, usage.canonical, [usage_event(1), usage_event(2)]),
        (RUNS, runs.canonical, list(itertools.islice(run_events(1), 2))),
    ],
)
def test_a_record_in_a_wrong_partition_is_refused_and_the_rest_is_stored(
    stores: Config,
    table: Table,
    canonical: Callable[[Event], Row | None],
    events: list[bytes],
) -> None:
    log = Log(_own(stores, table))
    right = partition_of(stream_key_in(events[0]), 6)
    log.append(events[0], partition=right)
    log.append(events[1], partition=(right + 1) % 6)
    log.append(events[1], partition=right)
    sink = RowsSink(ClickHouse(stores), log.table, partitions=6)
    sink.recover({(log.table.source, number): 0 for number in range(6)})
    assert drain(sink, log.messages) == [(1, MISPLACED)]
    assert drain(sink, log.messages[1:2]) == [(1, MISPLACED)]
    del log.messages[1]
    assert table_digest(stores, log.table, canonical) == log.fold(canonical)


def test_after_a_crash_stored_records_are_left_out_by_their_offsets(
    stores: Config, usage_log: Log
) -> None:
    for number in range(60):
        usage_log.append(usage_event(number))
    crashed = started(stores, usage_log)
    drain(crashed, usage_log.messages[:10])
    # What a parallel insert leaves when the one before it failed: a hole.
    drain(crashed, usage_log.messages[30:40])
    again = started(stores, usage_log, committed=5)
    assert drain(again, usage_log.messages[5:], 20) == []
    table = f"turnlog.{usage_log.table.name}"
    rows = ClickHouse(stores).rows(f"SELECT count(), uniqExact(offset) FROM {table}")
    assert rows == [(60, 60)]
    assert table_digest(stores, usage_log.table, usage.canonical) == usage_log.fold(usage.canonical)


def test_an_old_repeat_that_says_so_is_looked_up(stores: Config, usage_log: Log) -> None:
    window_ms = WINDOW_US // 1000
    usage_log.append(usage_event(0), ms=NOW_MS)
    usage_log.append(usage_event(1), ms=NOW_MS + window_ms + 2 * DAY_MS)
    usage_log.append(usage_event(0, may_repeat=True), ms=NOW_MS + window_ms + 2 * DAY_MS)
    usage_log.append(usage_event(2, may_repeat=True), ms=NOW_MS + window_ms + 2 * DAY_MS)
    sink = started(stores, usage_log)
    assert drain(sink, usage_log.messages, 1) == []
    assert usage_log.fold(usage.canonical)[0] == 3
    assert table_digest(stores, usage_log.table, usage.canonical) == usage_log.fold(usage.canonical)
    # And so after a new start, which finds that there are older rows.
    usage_log.append(usage_event(0, may_repeat=True), ms=NOW_MS + window_ms + 3 * DAY_MS)
    assert drain(started(stores, usage_log, 4), usage_log.messages[4:]) == []
    assert table_digest(stores, usage_log.table, usage.canonical) == usage_log.fold(usage.canonical)


def damaged(value: bytes, pick: random.Random) -> bytes:
    """Return a value that was cut, prolonged, flipped or overwritten behind its ids."""
    body = bytearray(value)
    at = pick.randrange(30, len(body))
    kind = pick.randrange(7)
    if kind == 0:
        del body[at:]
    elif kind == 1:
        body += pick.randbytes(pick.randrange(1, 4))
    elif kind == 2:
        body[at] ^= 1 << pick.randrange(8)
    elif kind == 3:
        body[at:at] = pick.randbytes(1)
    elif kind == 4:
        del body[at : at + 2]
    elif kind == 5:
        body[at : at + 4] = pick.randbytes(4)
    else:
        body[at:at] = bytes([pick.randrange(128, 256), 0])  # a length with padding
    return bytes(body)


def test_damaged_records_go_to_the_dead_letters_and_the_rest_is_stored(
    stores: Config, usage_log: Log
) -> None:
    pick = random.Random(3)
    for number in range(200):
        value = usage_event(number, conversation="c", run="r")
        usage_log.append(damaged(value, pick) if number % 2 else value, b"acme/c")
    dead = drain(started(stores, usage_log), usage_log.messages, 50)
    events, digest = usage_log.fold(usage.canonical)
    assert 100 <= events < 200
    assert len(dead) == 200 - events
    assert table_digest(stores, usage_log.table, usage.canonical) == (events, digest)
    assert all("acme" not in reason for _, reason in dead)


def test_the_table_takes_exactly_what_a_decoder_takes(stores: Config, usage_log: Log) -> None:
    """Each damaged record alone in a container: no decoding in Python helps the engine here."""
    pick, clickhouse, builder = random.Random(5), ClickHouse(stores), Builder(usage_log.table)
    outcomes = set()
    for number in range(80):
        value = damaged(usage_event(number, conversation="c", run="r"), pick)
        batch = Batch([b"acme/c"], [value], [0], [number], [NOW_MS])
        for container in builder.build(batch).containers:
            took = inserted(clickhouse, usage_log.table, container, number)
            assert took is is_clean(value), value
            outcomes.add(took)
    assert outcomes == {True, False}


def inserted(clickhouse: ClickHouse, table: Table, container: Any, number: int) -> bool:
    try:
        name = query_id(table, {0: (number, number)}, container.header)
        clickhouse.insert_avro(table.name, container.columns, container.pieces, name)
    except InsertRefused:
        return False
    return True


def is_clean(value: bytes) -> bool:
    try:
        event = decode(value)
    except DecodeError:
        return False
    return shaped(event) == event.body


def test_a_value_out_of_its_shape_is_stored_as_other_and_a_bad_id_is_refused(
    stores: Config, usage_log: Log
) -> None:
    def spoilt(old: bytes, new: bytes) -> bytes:
        return usage_event(1).replace(old, new)

    usage_log.append(usage_event(0))
    usage_log.append(spoilt(b"gpt-5", b"a b !"))
    usage_log.append(usage_event(2).replace(b"tokens.0", b"tok ns.0"))
    usage_log.append(usage_event(3).replace(b"run_3", b"r n_3"), b"acme/c1")
    usage_log.append(usage_event(4).replace(b"default", b"d\xe9fault"))
    usage_log.append(usage_event(5))
    dead = dict(drain(started(stores, usage_log), usage_log.messages))
    assert dead[3] == SHAPE
    assert set(dead) == {3, 4}
    rows = ClickHouse(stores).rows(
        f"SELECT offset, model, provider_usage FROM turnlog.{usage_log.table.name} ORDER BY offset"
    )
    assert rows[1][1] == "other"
    assert rows[2][2] == {"other": "0", "tokens.1": "1"}
    assert [row[0] for row in rows] == [0, 1, 2, 5]
    assert table_digest(stores, usage_log.table, usage.canonical) == usage_log.fold(usage.canonical)


def test_a_number_out_of_bounds_is_refused_wherever_it_is_read(
    stores: Config, usage_log: Log
) -> None:
    """Sums of such costs would not fit 64 bits; the fold leaves out what the table refuses."""
    wrong = [
        *({"cost_nano_usd": value} for value in (-1, 10**15 + 1, 2**63 - 1, -(2**63))),
        *({"output_text": value} for value in (-1, 2**40 + 1, 2**63 - 1)),
        *({"writer_epoch": value} for value in (-1, 2**63 - 1)),
        *({"sign": value} for value in (-2, 2, 2**31 - 1)),
    ]
    usage_log.append(usage_event(0))
    usage_log.append(usage_event(1, cost_nano_usd=10**15, output_text=2**40, sign=-1))
    for number, fields in enumerate(wrong, 2):
        event = decode(usage_event(number))
        usage_log.append(codec.write(TYPES[event.type], event.body | fields))
    dead = dict(drain(started(stores, usage_log), usage_log.messages))
    assert dead == dict.fromkeys(range(2, 2 + len(wrong)), SHAPE)
    assert table_digest(stores, usage_log.table, usage.canonical) == usage_log.fold(usage.canonical)


def test_messages_that_were_not_prepared_are_written_all_the_same(
    stores: Config, usage_log: Log
) -> None:
    for number in range(40):
        usage_log.append(usage_event(number), partition=number % 2)
    sink = started(stores, usage_log)
    sink.prepare(usage_log.messages[:20])
    # A partition moved away and came back: what was prepared is void.
    source = usage_log.table.source
    sink.forget([(source, 1)])
    sink.recover({(source, 1): 0})
    sink.prepare(usage_log.messages[20:])
    assert sink.write(usage_log.messages) == []
    assert table_digest(stores, usage_log.table, usage.canonical) == usage_log.fold(usage.canonical)


def test_an_insert_is_stored_whole_or_not_at_all(stores: Config, usage_log: Log) -> None:
    """The engine reads rows in blocks of 16,384: none of them may stay when a later one is bad."""
    rows = 20_000
    values = [usage_event(number, conversation="c") for number in range(rows)]
    values[-1] += b"?"
    batch = Batch([b"acme/c"] * rows, values, [0] * rows, list(range(rows)), [NOW_MS] * rows)
    (container,) = Builder(usage_log.table).build(batch).containers
    clickhouse = ClickHouse(stores)
    assert not inserted(clickhouse, usage_log.table, container, 0)
    table = f"turnlog.{usage_log.table.name}"
    assert clickhouse.rows(f"SELECT count() FROM {table}") == [(0,)]
    good = batch.only(range(rows - 1))
    (container,) = Builder(usage_log.table).build(good).containers
    assert inserted(clickhouse, usage_log.table, container, 0)
    parts = "SELECT count(), sum(rows) FROM system.parts WHERE table = {table:String} AND level = 0"
    assert clickhouse.rows(parts, {"table": usage_log.table.name}) == [(1, rows - 1)]


def test_an_insert_is_named_so_that_the_next_owner_finds_it_and_no_other() -> None:
    name = query_id(USAGE, {1: (5, 9), 12: (0, 3)}, b"\xc3\x01")
    assert name == "turnlog.usage 1:5-9 12:0-3 c301"

    def finds(*partitions: int, topic: str = "turnlog.usage") -> bool:
        numbers = "|".join(map(str, partitions))
        return re.match(f"^{topic} (.* )?({numbers}):", name) is not None

    assert finds(1) and finds(12) and finds(7, 12)
    assert not finds(2) and not finds(9) and not finds(5)
    assert not finds(1, topic="turnlog.runs")


def test_what_is_there_is_found_by_partition(stores: Config, usage_log: Log) -> None:
    for number in range(6):
        usage_log.append(usage_event(number), partition=number % 2)
    drain(started(stores, usage_log), usage_log.messages)
    clickhouse = ClickHouse(stores)
    assert stored_offsets(clickhouse, usage_log.table, {0: 2, 1: 0, 7: 0}) == {
        0: {2, 4},
        1: {1, 3, 5},
        7: set(),
    }
    found = recent(clickhouse, usage_log.table, [1, 7])
    assert found[7].ids == {}
    assert not found[1].older
    assert set(itertools.chain(*found[1].ids.values())) == {n.to_bytes(16) for n in (1, 3, 5)}
