"""The local copy of key rows: one that does not fit is read again, and what was removed is gone."""

import os
import time
from pathlib import Path

import pytest

from streams.keys import local_copy
from streams.keys.local_copy import MAX_AGE_S, RowsCopy, open_copy, open_rows
from turnlog.keys.rows import Row

TOPIC = ("turnlog.keys", "topic-id")
TREE = b"org/" + b"0" * 32 + b"/"


class Clock:
    def __init__(self) -> None:
        self.at = 1_800_000_000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


def opened(folder: Path, clock: Clock, topic: tuple[str, str] = TOPIC) -> RowsCopy:
    found = open_copy(folder, "usage", topic, clock)
    assert found is not None
    return found


def page(value: bytes | None = None) -> Row:
    return TREE + os.urandom(8).hex().encode(), value or os.urandom(300)


def filled(folder: Path, clock: Clock) -> dict[bytes, bytes]:
    """Make a copy of twenty rows up to offset 20 of partition 0; return its rows."""
    rows = [page() for _ in range(20)]
    copy = opened(folder, clock)
    assert copy.load({0: (0, 20)}) == {}
    copy.write(rows, (), 20, {0: 20})
    copy.close()
    return {key: value or b"" for key, value in rows}


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def holding(folder: Path, value: bytes) -> list[str]:
    return [name for name, data in files(folder).items() if value in data]


def test_rows_and_offsets_are_there_again(tmp_path: Path, clock: Clock) -> None:
    rows = filled(tmp_path, clock)
    copy = opened(tmp_path, clock)
    assert copy.load({0: (0, 25)}) == rows
    assert copy.next == {0: 20}
    copy.close()


def test_removed_and_replaced_rows_are_gone_from_every_file(tmp_path: Path, clock: Clock) -> None:
    rows = filled(tmp_path, clock)
    (removed, old), (head, old_head) = list(rows.items())[:2]
    assert holding(tmp_path, old) and holding(tmp_path, old_head)
    copy = opened(tmp_path, clock)
    copy.load({0: (0, 22)})
    copy.write([(head, b"new" * 50), (removed, None)], [removed, head], 19, {0: 22})
    # Nothing is gone by itself: a test that only closed the copy would prove nothing.
    assert holding(tmp_path, old) and holding(tmp_path, old_head)
    copy.purge()
    assert not holding(tmp_path, old) and not holding(tmp_path, old_head)
    copy.close()
    assert opened_rows(tmp_path, clock, {0: (0, 22)}) == {
        **{key: value for key, value in rows.items() if key != removed},
        head: b"new" * 50,
    }
    assert not holding(tmp_path, old) and not holding(tmp_path, old_head)


def test_a_running_reader_purges_beside_its_work(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_copy, "PURGE_S", 0.0)
    rows = filled(tmp_path, clock)
    (removed, old), (again, first) = list(rows.items())[:2]
    copy = opened(tmp_path, clock)
    copy.load({0: (0, 30)})
    copy.write([(removed, None), (again, b"second" * 50)], [removed, again], 19, {0: 21})
    copy.purge_beside()
    copy.write([(again, b"third" * 50)], [again], 19, {0: 22})
    # What was replaced while it ran is purged too, sooner or later.
    for _ in range(3_000):
        copy.purge_beside()
        time.sleep(0.01)
        if not copy._compaction and not copy._unpurged:
            break
    assert not any(holding(tmp_path, value) for value in (old, first, b"second" * 50))
    copy.close()
    stored = open_rows(tmp_path / "usage")
    assert local_copy.unpurged(stored) == []
    stored.close()
    assert opened_rows(tmp_path, clock, {0: (0, 22)})[again] == b"third" * 50


def opened_rows(
    folder: Path,
    clock: Clock,
    bounds: dict[int, tuple[int, int]],
    topic: tuple[str, str] = TOPIC,
) -> dict[bytes, bytes]:
    copy = opened(folder, clock, topic)
    try:
        return copy.load(bounds)
    finally:
        copy.close()


def test_what_a_crash_left_unpurged_is_purged_by_the_next(tmp_path: Path, clock: Clock) -> None:
    rows = filled(tmp_path, clock)
    key, old = next(iter(rows.items()))
    copy = opened(tmp_path, clock)
    copy.load({0: (0, 21)})
    copy.write([(key, None)], [key], 19, {0: 21})
    assert copy._rows is not None
    # Killed between the flush of a full buffer and the compaction.
    copy._rows.flush()
    copy._rows.close()
    os.close(copy._lock)
    assert holding(tmp_path, old)
    opened_rows(tmp_path, clock, {0: (0, 21)})
    assert not holding(tmp_path, old)


def test_a_copy_lives_for_seven_days_from_when_it_was_begun(tmp_path: Path, clock: Clock) -> None:
    rows = filled(tmp_path, clock)
    clock.at += MAX_AGE_S - 1
    assert opened_rows(tmp_path, clock, {0: (0, 20)}) == rows
    clock.at += 1
    assert opened_rows(tmp_path, clock, {0: (0, 20)}) == {}


def test_a_clock_set_back_does_not_keep_a_copy_alive(tmp_path: Path, clock: Clock) -> None:
    filled(tmp_path, clock)
    clock.at += 5 * 86_400
    copy = opened(tmp_path, clock)
    copy.load({0: (0, 20)})
    copy.write([], (), 20, {0: 20})
    copy.close()
    clock.at -= 3 * 86_400
    assert opened_rows(tmp_path, clock, {0: (0, 20)}) == {}


def test_an_open_copy_says_when_it_is_too_old(tmp_path: Path, clock: Clock) -> None:
    filled(tmp_path, clock)
    copy = opened(tmp_path, clock)
    copy.load({0: (0, 20)})
    assert not copy.is_expired
    clock.at += MAX_AGE_S
    assert copy.is_expired
    copy.close()


@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param({0: (21, 30)}, id="the log begins behind it"),
        pytest.param({0: (0, 19)}, id="the log ends before it"),
        pytest.param({0: (0, 20), 1: (0, 0)}, id="another set of partitions"),
    ],
)
def test_a_copy_that_does_not_fit_the_log_is_read_again(
    tmp_path: Path, clock: Clock, bounds: dict[int, tuple[int, int]]
) -> None:
    rows = filled(tmp_path, clock)
    assert opened_rows(tmp_path, clock, bounds) == {}
    assert not any(holding(tmp_path, value) for value in rows.values())


def test_a_topic_made_anew_has_another_copy(tmp_path: Path, clock: Clock) -> None:
    filled(tmp_path, clock)
    assert opened_rows(tmp_path, clock, {0: (0, 20)}, ("turnlog.keys", "another")) == {}


@pytest.mark.parametrize("meta", [b"{}", b"no json", b'{"format": 2}', b"[]"])
def test_another_format_is_read_again(tmp_path: Path, clock: Clock, meta: bytes) -> None:
    filled(tmp_path, clock)
    stored = open_rows(tmp_path / "usage")
    stored[b"meta"] = meta
    stored.flush()
    stored.close()
    assert opened_rows(tmp_path, clock, {0: (0, 20)}) == {}


def test_a_row_that_is_missing_is_noticed(tmp_path: Path, clock: Clock) -> None:
    rows = filled(tmp_path, clock)
    stored = open_rows(tmp_path / "usage")
    stored.delete(b"r/" + next(iter(rows)))
    stored.flush()
    stored.close()
    assert opened_rows(tmp_path, clock, {0: (0, 20)}) == {}


@pytest.mark.parametrize("name", ["*.sst", "CURRENT", "MANIFEST-*"])
def test_damaged_files_are_read_again(tmp_path: Path, clock: Clock, name: str) -> None:
    filled(tmp_path, clock)
    for path in (tmp_path / "usage").glob(name):
        data = path.read_bytes()
        path.write_bytes(b"\xff" * (len(data) // 2) + data[len(data) // 2 :])
    assert opened_rows(tmp_path, clock, {0: (0, 20)}) == {}
    assert filled(tmp_path / "next", clock)


def test_a_second_process_does_without(tmp_path: Path, clock: Clock) -> None:
    first = opened(tmp_path, clock)
    assert open_copy(tmp_path, "usage", TOPIC, clock) is None
    other = open_copy(tmp_path, "runs", TOPIC, clock)
    assert other is not None
    other.close()
    first.close()
    opened(tmp_path, clock).close()


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "file").write_text("")
    assert open_copy(tmp_path / "file" / "copies", "usage", TOPIC, clock) is None


def test_nothing_goes_to_rocksdbs_own_log(tmp_path: Path, clock: Clock) -> None:
    copy = opened(tmp_path, clock)
    copy.load({0: (0, 5)})
    key, value = page()
    copy.write([(key, value)], (), 1, {0: 1})
    assert value is not None
    assert not holding(tmp_path, value)
    copy.close()
    assert holding(tmp_path, value)
