"""A spool seen from outside."""

import subprocess
import sys
from pathlib import Path

import pytest

from turnlog.errors import UsageError
from turnlog.spool import CHUNKS, Spool, Spooled
from turnlog.spool.folder import lock
from turnlog.spool.look import look

WRITE = """
import asyncio, sys
from pathlib import Path
from tests.turnlog.spool.test_look import fill

asyncio.run(fill(Path(sys.argv[1]), "dead", 3))
print("written", flush=True)
sys.stdin.read()
"""


async def fill(folder: Path, owner: str, count: int) -> Spool:
    spool = await Spool.open(folder, owner, 1 << 24)
    for n in range(count):
        await spool.append("runs", Spooled("turnlog.runs", 0, b"acme/c", b"v" * 50, [], n, 1 + n))
    return spool


async def test_a_living_owner_and_what_waits(tmp_path: Path) -> None:
    spool = await fill(tmp_path, "alive", 5)
    spool.note_shed(CHUNKS, 2)
    await spool.read("runs")  # by then the shed ones are noted
    [found] = look(tmp_path)
    assert (found.owner, found.alive, found.segments, found.events) == ("alive", True, 1, 5)
    assert found.bytes > 5 * 50
    assert found.oldest_s > 1e9
    assert found.shed == {CHUNKS: 2}
    await spool.close()


async def test_looking_takes_no_lock_and_changes_nothing(tmp_path: Path) -> None:
    spool = await fill(tmp_path, "alive", 2)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert [folder.events for folder in look(tmp_path)] == [2]
    assert lock(tmp_path / "alive") is None
    assert {path: path.read_bytes() for path in before} == before
    await spool.close()


async def test_what_a_dead_process_left_is_a_dead_owners(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITE, str(tmp_path)]
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "written\n"
        assert [folder.alive for folder in look(tmp_path)] == [True]
        child.kill()
    [found] = look(tmp_path)
    assert (found.owner, found.alive, found.events) == ("dead", False, 3)


async def test_a_record_that_is_half_written_is_not_counted(tmp_path: Path) -> None:
    spool = await fill(tmp_path, "alive", 3)
    [path] = tmp_path.glob("*/*.seg")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    assert [folder.events for folder in look(tmp_path)] == [2]
    await spool.close()


def test_a_spool_that_was_never_used_is_empty(tmp_path: Path) -> None:
    assert look(tmp_path / "nothing") == []


def test_a_spool_that_is_no_folder_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="spool"):
        look(tmp_path / "file")
