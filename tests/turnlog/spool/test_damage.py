"""What the disk gives back otherwise than it was written, and what others put into the folder."""

import asyncio
import os
import struct
import zlib
from pathlib import Path

import msgpack
import pytest

from tests.turnlog.producer.test_ladder import no_file_over
from tests.turnlog.spool.test_look import fill
from tests.turnlog.spool.test_spool import RECORD, all_of
from turnlog.errors import SpoolFull
from turnlog.spool import LANES, Spool
from turnlog.spool.aside import look_aside
from turnlog.spool.look import look
from turnlog.spool.records import HEAD_BYTES, MAGIC, packed


def flip(path: Path, at: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


async def left(spool: Path, count: int) -> Path:
    """Leave events of a process that is gone; return their segment."""
    await (await fill(spool, "dead", count)).close()
    [segment] = (spool / "dead").glob("*.seg")
    return segment


def seqs_aside(spool: Path) -> list[int | None]:
    return [each.record.seq if each.record else None for each in look_aside(spool)]


# The value of a record, its length (which then reaches behind the end), its checksum, its magic.
@pytest.mark.parametrize("at", [HEAD_BYTES + 30, 6, 9, 0])
async def test_damaged_records_are_kept_byte_for_byte_and_those_behind_them_drain(
    tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    segment = await left(tmp_path, 10)
    size = segment.stat().st_size // 10
    for n in (3, 9):
        flip(segment, n * size + at)
    bytes_found = segment.read_bytes()
    heir = await Spool.open(tmp_path, "heir")
    assert [r.seq for r in await all_of(heir, "runs")] == [0, 1, 2, 4, 5, 6, 7, 8]
    assert heir.events["runs"] == 0
    await heir.close()
    assert [path.name for path in tmp_path.iterdir()] == ["damaged"]
    [kept] = (tmp_path / "damaged" / "dead").iterdir()
    assert kept.read_bytes() == bytes_found
    assert seqs_aside(tmp_path) == [3, 9]
    assert look(tmp_path) == []
    assert [r.levelname for r in caplog.records if "damaged" in r.message] == ["ERROR"]
    assert "never acknowledged" not in caplog.text


async def test_a_torn_end_behind_damage_is_no_damage(tmp_path: Path) -> None:
    segment = await left(tmp_path, 3)
    flip(segment, 30)
    with segment.open("ab") as file:
        file.write(packed(RECORD)[:-1])
    heir = await Spool.open(tmp_path, "heir")
    assert [r.seq for r in await all_of(heir, "runs")] == [1, 2]
    assert seqs_aside(tmp_path) == [0]
    await heir.close()


async def test_what_is_damaged_under_a_living_process_does_not_hold_up_the_rest(
    tmp_path: Path,
) -> None:
    spool = await fill(tmp_path, "alive", 4)
    [segment] = (tmp_path / "alive").glob("*.seg")
    size = segment.stat().st_size // 4
    for n in (1, 3):
        flip(segment, n * size + 30)
    assert [r.seq for r in await all_of(spool, "runs")] == [0, 2]
    assert (spool.events["runs"], spool.bytes_taken) == (0, 0)
    assert seqs_aside(tmp_path) == [1, 3]
    await spool.append("runs", RECORD)
    assert await all_of(spool, "runs") == [RECORD]
    await spool.close()


def other_shape() -> bytes:
    payload: bytes = msgpack.packb(["turnlog.runs", 0])
    head = struct.pack(">I", len(payload))
    return MAGIC + head + struct.pack(">I", zlib.crc32(payload, zlib.crc32(head))) + payload


async def test_what_somebody_else_put_there_stops_nobody_and_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await left(tmp_path, 2)
    (tmp_path / "dead" / "runs-abcdefgh.seg").write_bytes(b"mine")
    (tmp_path / "dead" / "notes").write_bytes(b"mine")
    os.mkfifo(tmp_path / "dead" / "usage-00000001.seg")
    (tmp_path / "dead" / "turns-00000001.seg").mkdir()
    (tmp_path / "dead" / "turns-00000002.seg").write_bytes(other_shape())
    (tmp_path / "other" / "lock").mkdir(parents=True)
    (tmp_path / ".draft" / "lock").mkdir(parents=True)
    async with asyncio.timeout(10):
        heir = await Spool.open(tmp_path, "heir")
        assert [r.seq for r in await all_of(heir, "runs")] == [0, 1]
        await heir.adopt_dead()
        await heir.adopt_dead()
        found = [await all_of(heir, lane) for lane in LANES]
    assert found == [[], [], [], []]
    assert [folder.events for folder in look(tmp_path) if folder.owner == "dead"] == [0]
    await heir.close()
    names = {path.name for path in (tmp_path / "dead").iterdir()}
    assert names == {
        "runs-abcdefgh.seg",
        "notes",
        "usage-00000001.seg",
        "turns-00000001.seg",
        "lock",
    }
    told = [record.message for record in caplog.records]
    assert len(told) == len(set(told))
    assert sum("left alone" in message for message in told) == 4
    assert "other cannot be looked through: Is a directory" in caplog.text


async def test_a_folder_that_could_not_be_taken_over_is_tried_again(tmp_path: Path) -> None:
    segment = await left(tmp_path, 2)
    flip(segment, 30)
    (tmp_path / "damaged").write_text("in the way")
    heir = await Spool.open(tmp_path, "heir")
    assert not heir.adopted
    assert segment.exists()
    (tmp_path / "damaged").unlink()
    assert await heir.adopt_dead() == {("runs", b"acme/c"): 1}
    assert [r.seq for r in await all_of(heir, "runs")] == [1]
    await heir.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_should_the_thread_end_everybody_is_told_and_nobody_waits(tmp_path: Path) -> None:
    spool = await Spool.open(tmp_path, "one")

    def fail() -> None:
        raise RuntimeError("made up")

    failing = asyncio.get_running_loop().create_future()
    spool._do(failing, fail)
    waiting = [failing, spool.read("runs"), spool.room()]
    async with asyncio.timeout(10):
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        while not spool._broken:
            await asyncio.sleep(0.01)
    assert [type(outcome) for outcome in outcomes] == [SpoolFull, SpoolFull, SpoolFull]
    with pytest.raises(SpoolFull, match="ended"):
        spool.append("runs", RECORD)
    with pytest.raises(SpoolFull, match="ended"):
        await spool.read("runs")
    await spool.close()


async def test_what_finds_room_is_seen_by_trying(tmp_path: Path) -> None:
    spool = await Spool.open(tmp_path, "one", 1 << 20)
    with no_file_over(1):
        assert await spool.room() == "shedding"  # the reserve is left
        with pytest.raises(SpoolFull):
            await spool.append("runs", RECORD)
        assert await spool.room() == "refusing"
    assert await spool.room() == "spool"
    assert (tmp_path / "one" / "reserve").stat().st_size == 1 << 18
    await spool.close()
