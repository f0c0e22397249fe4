"""Floors on disk: shared, only ever raised, there before a head is used."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from streams.keys.floors import FloorStore
from turnlog.errors import Unavailable
from turnlog.keys.heads import Floor

ROW = b"org/tree/head"


def floor(gen: int, digest: int = 0) -> Floor:
    return Floor(gen, gen.to_bytes(31, "big") + bytes((digest,)))


def test_floors_are_there_after_a_restart(tmp_path: Path) -> None:
    store = FloorStore(tmp_path / "keys" / "floors.db")
    assert store.raise_to({ROW: floor(3), b"b": floor(1)}) == {ROW: floor(3), b"b": floor(1)}
    store.close()
    again = FloorStore(tmp_path / "keys" / "floors.db")
    assert again.load() == {ROW: floor(3), b"b": floor(1)}
    assert again.load(lambda key: key == ROW) == {ROW: floor(3)}
    again.close()


def test_a_floor_never_goes_back_and_never_changes(tmp_path: Path) -> None:
    store = FloorStore(tmp_path / "floors.db")
    store.raise_to({ROW: floor(3)})
    assert store.raise_to({ROW: floor(2)}) == {ROW: floor(3)}
    assert store.raise_to({ROW: floor(3, digest=1)}) == {ROW: floor(3)}
    assert store.raise_to({ROW: floor(4)}) == {ROW: floor(4)}
    store.close()


def test_processes_that_raise_floors_at_once_leave_the_highest(tmp_path: Path) -> None:
    path = tmp_path / "floors.db"
    code = f"""
from pathlib import Path
from streams.keys.floors import FloorStore
from turnlog.keys.heads import Floor
import sys
store = FloorStore(Path({str(path)!r}))
for gen in range(int(sys.argv[1]), 60, 3):
    found = store.raise_to({{b"row": Floor(gen, bytes(32))}})
    assert found[b"row"].gen >= gen
"""
    with ThreadPoolExecutor(3) as pool:
        done = pool.map(
            lambda start: subprocess.run(
                [sys.executable, "-c", code, str(start)], capture_output=True, text=True
            ),
            range(1, 4),
        )
        assert [one.stderr for one in done] == ["", "", ""]
    store = FloorStore(path)
    assert store.load() == {b"row": Floor(59, bytes(32))}
    store.close()


def test_a_kill_loses_no_floor_that_was_answered(tmp_path: Path) -> None:
    path = tmp_path / "floors.db"
    code = f"""
from pathlib import Path
from streams.keys.floors import FloorStore
from turnlog.keys.heads import Floor
store = FloorStore(Path({str(path)!r}))
gen = 0
while True:
    gen += 1
    store.raise_to({{b"row": Floor(gen, bytes(32))}})
    print(gen, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(10):
            last = int(process.stdout.readline())
        process.kill()
    store = FloorStore(path)
    assert store.load()[b"row"].gen >= last
    store.close()


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\0" + bytes(500)])
def test_a_damaged_file_is_told_and_never_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "floors.db"
    path.write_bytes(content)
    with pytest.raises(Unavailable, match=r"floors.db cannot be read"):
        FloorStore(path).load()
    assert path.read_bytes() == content


def test_another_format_is_told(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "floors.db"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 2")
    db.close()
    with pytest.raises(Unavailable, match="format 2"):
        FloorStore(path)


def test_a_home_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(str(os.getpid()))
    with pytest.raises(Unavailable, match="cannot be read or written"):
        FloorStore(tmp_path / "file" / "floors.db")
