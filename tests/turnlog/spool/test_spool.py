"""The spool's folder: what is on the disk when, who may have it, what happens when it is full."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from turnlog.errors import SpoolFull, UsageError
from turnlog.spool import Spool, Spooled

RECORD = Spooled("turnlog.runs", 0, b"acme/c1", b"v" * 100, [("ce_id", b"1")], 0, 1)

WRITER = """
import asyncio, os, signal, sys
from pathlib import Path
from turnlog.spool import Spool, Spooled
async def main():
    spool = await Spool.open(Path(sys.argv[1]), "dead")
    for seq in range(100):
        await spool.append("runs", Spooled("turnlog.runs", 0, b"acme/c1", b"v", [], seq, 1))
        print(seq, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


async def all_of(spool: Spool, lane: str) -> list[Spooled]:
    records: list[Spooled] = []
    while (read := await spool.read(lane)) is not None:
        records += read.records
        await spool.done(read, len(read.records))
    return records


async def test_records_come_back_in_order_and_leave_nothing_behind(tmp_path: Path) -> None:
    spool = await Spool.open(tmp_path, "one")
    written = [RECORD._replace(seq=seq) for seq in range(500)]
    await asyncio.gather(*(spool.append("runs", record) for record in written))
    assert await all_of(spool, "runs") == written
    await spool.close()
    assert spool.bytes_taken == 0
    assert list(tmp_path.iterdir()) == []


async def test_lanes_are_kept_apart(tmp_path: Path) -> None:
    spool = await Spool.open(tmp_path, "one")
    await spool.append("run-chunks", RECORD)
    await spool.append("usage", RECORD._replace(seq=1))
    assert [record.seq for record in await all_of(spool, "usage")] == [1]
    assert spool.events == {"run-chunks": 1, "usage": 0}
    await spool.close()


async def test_what_a_killed_process_acknowledged_is_adopted_once(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WRITER, tmp_path], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    acknowledged = [int(line) for line in done.stdout.split()]
    first = await Spool.open(tmp_path, "first")
    second = await Spool.open(tmp_path, "second")
    assert first.adopted == {("runs", b"acme/c1"): 100}
    assert [record.seq for record in await all_of(first, "runs")] == acknowledged
    assert not second.adopted
    await first.close()
    await second.close()
    assert list(tmp_path.iterdir()) == []


async def test_a_half_written_record_is_cut_off(tmp_path: Path) -> None:
    spool = await Spool.open(tmp_path, "one")
    await spool.append("runs", RECORD)
    await spool.close()
    (segment,) = (tmp_path / "one").glob("*.seg")
    whole = segment.read_bytes()
    segment.write_bytes(whole + whole[:-5])
    heir = await Spool.open(tmp_path, "heir")
    assert await all_of(heir, "runs") == [RECORD]
    await heir.close()


async def test_a_process_that_lives_keeps_its_folder(tmp_path: Path) -> None:
    first = await Spool.open(tmp_path, "first")
    await first.append("runs", RECORD)
    with pytest.raises(UsageError, match="another process"):
        await Spool.open(tmp_path, "first")
    second = await Spool.open(tmp_path, "second")
    assert not second.adopted
    await first.close()
    assert await second.adopt_dead() == {("runs", b"acme/c1"): 1}
    assert await all_of(second, "runs") == [RECORD]
    await second.close()


async def test_a_folder_that_nobody_ever_saw_goes_away(tmp_path: Path) -> None:
    for name in (".dead", ".born"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
    os.utime(tmp_path / ".dead" / "lock", (0, 0))
    spool = await Spool.open(tmp_path, "mine")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".born", "mine"]
    await spool.close()


async def test_at_its_bound_chunks_find_no_room_and_others_do(tmp_path: Path) -> None:
    spool = await Spool.open(tmp_path, "one", max_bytes=10_000)
    written = 0
    with pytest.raises(SpoolFull):
        while True:
            await spool.append("run-chunks", RECORD)
            written += 1
    await spool.append("runs", RECORD)
    with pytest.raises(SpoolFull):
        while True:
            await spool.append("turns", RECORD)
    assert 0 < spool.bytes_taken <= 10_000
    assert len(await all_of(spool, "run-chunks")) == written
    await spool.append("run-chunks", RECORD)
    await spool.close()


async def test_shed_events_are_counted_on_the_disk(tmp_path: Path) -> None:
    spool = await Spool.open(tmp_path, "one")
    spool.note_shed("run-chunks", 3)
    await spool.close()
    assert (tmp_path / "one" / "shed.json").read_text() == '{"run-chunks": 3}'


async def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("")
    with pytest.raises(UsageError, match=f"spool {tmp_path}/spool: "):
        await Spool.open(tmp_path / "spool", "one")


FULL = """
import asyncio, resource, signal, sys
from pathlib import Path
from turnlog.errors import SpoolFull
from turnlog.spool import Spool, Spooled
async def main():
    spool = await Spool.open(Path(sys.argv[1]), "one")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))
    kept = 0
    try:
        for seq in range(1000):
            await spool.append("runs", Spooled("turnlog.runs", 0, b"a/c", b"v" * 100, [], seq, 1))
            kept += 1
    except SpoolFull as error:
        print(error)
    records = []
    while (read := await spool.read("runs")) is not None:
        records += [r.seq for r in read.records]
    assert records == list(range(kept)) and kept > 10, (records, kept)
asyncio.run(main())
"""


def test_a_disk_that_takes_no_more_is_told_and_harms_nothing_before(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, tmp_path], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "the spool cannot be written: File too large\n")
