"""Open runs: what keeps one alive, when it is overdue, what a restart knows of it."""

import os
import tracemalloc

import pytest

from processors.finalizer import OpenRun, Partition, Sign, read_sign
from turnlog.errors import DecodeError
from turnlog.events import TYPES, record
from turnlog.events.codec import complete, write

DEADLINE_MS, SILENCE_MS = 20_000, 15_000
KEY = b"acme/run_1"
RUNS = int(os.environ.get("TURNLOG_OPEN_RUNS", "100000"))


def partition() -> Partition:
    return Partition(DEADLINE_MS, SILENCE_MS)


def sign(type_: str, epoch: int = 1, key: bytes = KEY) -> Sign:
    return Sign(type_, key, epoch)


def ticks(part: Partition, until_ms: int) -> None:
    for at in range(part.head_ms + 5_000, until_ms + 1, 5_000):
        part.take_chunk(sign("finalizer.tick", 0, b""), 10_000 + at, at)


def begun(at_ms: int = 0) -> Partition:
    part = partition()
    part.take_run(sign("run.created"), 7, at_ms)
    part.take_chunk(sign("finalizer.tick", 0, b""), 0, 5_000)
    return part


def due(part: Partition) -> list[bytes]:
    found = part.due(part.head_ms, 100)
    assert part.has_due() == bool(found)
    return found


def test_a_silent_run_is_overdue_once_log_time_has_passed() -> None:
    part = begun()
    ticks(part, 15_000)
    assert due(part) == []
    ticks(part, 20_000)
    assert due(part) == [KEY]


def test_a_sign_of_life_moves_the_deadline() -> None:
    part = begun()
    ticks(part, 15_000)
    part.take_chunk(sign("run.heartbeat"), 1, 18_000)
    ticks(part, 35_000)
    assert due(part) == []
    ticks(part, 40_000)
    assert due(part) == [KEY]


def test_nothing_passes_while_nobody_appends_and_then_all_have_a_whole_deadline() -> None:
    part = begun()
    part.take_chunk(sign("finalizer.tick", 0, b""), 1, 600_000)
    assert due(part) == []
    ticks(part, 615_000)
    assert due(part) == []
    ticks(part, 620_000)
    assert due(part) == [KEY]


@pytest.mark.parametrize("end", ["run.completed", "run.failed", "run.cancelled", "run.interrupted"])
def test_an_end_closes_whatever_is_read_first(end: str) -> None:
    part = begun()
    part.take_run(sign(end), 8, 3_000)
    assert part.runs == {}
    part.take_chunk(sign("chunk.batch"), 3, 4_000)  # drained late: no new run
    ticks(part, 40_000)
    assert part.has_due()
    assert part.due(part.head_ms, 100) == []
    assert part.runs == {}


def test_chunks_of_ended_runs_do_not_stay_while_reading_is_behind() -> None:
    part = partition()
    part.take_chunk(sign("chunk.batch"), 3, 4_000)
    part.take_run(sign("run.created", key=b"acme/other"), 9, 4_500)
    part.forget_ghosts()
    assert KEY in part.runs
    part.take_run(sign("run.started", key=b"acme/other"), 10, 4_000 + DEADLINE_MS)
    part.forget_ghosts()
    assert KEY not in part.runs


def test_chunks_read_before_their_runs_beginning_are_kept() -> None:
    part = partition()
    part.take_chunk(sign("chunk.batch"), 3, 4_000)
    part.take_run(sign("run.created"), 7, 3_000)
    assert (part.runs[KEY].opened, list(part.runs[KEY].batches())) == (7, [3])


def test_a_lower_epoch_neither_ends_nor_keeps_alive() -> None:
    part = begun()
    part.take_run(sign("run.taken_over", 2), 8, 1_000)
    part.take_run(sign("run.completed", 1), 9, 2_000)
    part.take_chunk(sign("run.heartbeat", 1), 4, 19_000)
    ticks(part, 25_000)
    assert due(part) == [KEY]
    assert (part.runs[KEY].epoch, part.runs[KEY].opened) == (2, 7)


def test_a_second_beginning_changes_nothing() -> None:
    part = begun()
    part.take_run(sign("run.created", 2), 8, 19_000)
    part.take_run(sign("run.completed", 1), 9, 19_500)
    assert part.runs == {}


def test_what_was_handed_over_is_not_due_again_unless_taken_over() -> None:
    part = begun()
    ticks(part, 25_000)
    part.runs[KEY].mark_written()
    assert due(part) == []
    part.take_run(sign("run.taken_over", 2), 8, 26_000)
    ticks(part, 50_000)
    assert due(part) == [KEY]


def test_runs_that_wait_for_their_keys_do_not_stand_in_the_way() -> None:
    part = begun()
    part.take_run(sign("run.created", key=b"acme/run_2"), 9, 1)
    ticks(part, 25_000)
    assert part.due(part.head_ms, 1, {KEY: 0.0}) == [b"acme/run_2"]


def test_a_restart_in_the_middle_has_the_same_outcome() -> None:
    offsets = [5, 6, 300, 70_000, 5_000_000_000]
    part = begun()
    for offset in offsets[:3]:
        part.take_chunk(sign("chunk.batch"), offset, 5_100)
    rows = {key: row for key, row in part.changes() if row is not None}
    assert list(part.changes()) == []
    again = partition()
    again.restore(rows, part.head_ms)
    # Reading goes on a little before the checkpoint: what is in the rows comes again.
    for offset in offsets[1:]:
        again.take_chunk(sign("chunk.batch"), offset, 5_200)
    assert list(again.runs[KEY].batches()) == offsets
    assert again.runs[KEY].opened == 7
    again.take_run(sign("run.completed"), 8, 5_300)
    assert list(again.changes()) == [(KEY, None)]


def test_heartbeats_that_are_not_in_the_checkpoint_count_after_a_restart() -> None:
    part = begun()
    (row,) = part.changes()
    ticks(part, 15_000)
    part.take_chunk(sign("run.heartbeat"), 1, 18_000)
    assert list(part.changes()) == []
    again = partition()
    again.restore({KEY: row[1] or b""}, part.head_ms)
    ticks(again, 33_000)
    assert due(again) == []
    ticks(again, 38_000)
    assert due(again) == [KEY]


def test_a_row_of_another_version_is_refused() -> None:
    row = OpenRun(1, 1, 1).row()
    assert OpenRun.of_row(row).row() == row
    for wrong in (b"", b"\x02" + row[1:], row[:20]):
        with pytest.raises(DecodeError):
            OpenRun.of_row(wrong)


BODY = {"org": "acme", "run": "run_1", "event_id": b"e" * 16, "occurred_at_us": 1}


@pytest.mark.parametrize("type_", ["chunk.batch", "run.heartbeat", "run.created", "run.completed"])
def test_records_say_whose_they_are(type_: str) -> None:
    more = {"user": "u" * 60, "project": "p", "turn": "t", "producer_seq": 1 << 40, "seq": 300}
    for fields in ({}, more, {"frame": b"sealed" * 99, "content_mac": b"m" * 32}):
        made = record(type_, {**BODY, "conversation": "c", "writer_epoch": 300, **fields})
        assert read_sign(made.value, made.key) == Sign(type_, KEY, 300)


@pytest.mark.parametrize("type_", ["chunk.batch", "run.created"])
def test_what_is_no_event_of_a_run_is_refused(type_: str) -> None:
    made = record(type_, {**BODY, "writer_epoch": 3})
    for value, key in [
        (made.value, b"acme/other"),
        (made.value, None),
        (None, made.key),
        (b"\xc3\x01" + made.value[10:], made.key),
        *((made.value[:end], made.key) for end in range(48)),
    ]:
        with pytest.raises(DecodeError):
            read_sign(value, key)
    odd = record(type_, {**BODY, "conversation": "c"})
    nameless = odd.value.replace(b"run_1", b"run/1")
    with pytest.raises(DecodeError, match="form"):
        read_sign(nameless, odd.key)


@pytest.mark.parametrize("type_", ["chunk.batch", "run.created"])
def test_an_epoch_that_no_run_has_is_refused(type_: str) -> None:
    """Whoever could claim the highest there is would own the run for ever."""
    kind = TYPES[type_]
    for epoch in (-1, 2**31 + 1, 2**63 - 1):
        value = write(kind, complete(kind, BODY) | {"writer_epoch": epoch})
        with pytest.raises(DecodeError, match="out of bounds"):
            read_sign(value, KEY)
        assert OpenRun.of_row(OpenRun(7, 2**31, 1).row()).epoch == 2**31
        with pytest.raises(DecodeError, match="out of bounds"):
            OpenRun.of_row(OpenRun(7, epoch, 1).row())


def test_a_million_open_runs_fit_in_two_gigabytes() -> None:
    """Ten chunk batches each; TURNLOG_OPEN_RUNS=1000000 measures the million."""
    tracemalloc.start()
    part = partition()
    for number in range(RUNS):
        key = f"acme/run_{number:026}".encode()
        part.take_run(sign("run.created", key=key), 3 * number, 1_700_000_000_000 + number)
    for offset in range(RUNS):
        key = f"acme/run_{offset % (RUNS // 10):026}".encode()
        part.take_chunk(sign("chunk.batch", key=key), offset, 1_700_000_100_000 + offset)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"{held / RUNS:.0f} bytes a run")
    assert held / RUNS * 1_000_000 < 2 << 30
