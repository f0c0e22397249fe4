"""The ladder from rung to rung, on a real broker that is stopped or was never there."""

import asyncio
import resource
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from local.stack import status
from tests.conftest import running_stack
from turnlog.config import Config
from turnlog.errors import InDoubt, SpoolFull, Unavailable
from turnlog.events import Record, decode, record
from turnlog.ids import event_id, new_id
from turnlog.kafka import producer_settings, read_all
from turnlog.producer.ladder import Ladder
from turnlog.producer.transport import Position
from turnlog.spool import Spool

NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
LONG_S = 60.0


@pytest.fixture(scope="module")
def kafka() -> Iterator[Config]:
    with running_stack(("kafka",)) as config:
        yield config


async def opened(
    config: Config,
    spool: Path,
    max_bytes: int = 1 << 24,
    away: bool = False,
    patience_s: float = 0.4,
) -> Ladder:
    settings = {**producer_settings(config), **(NOWHERE if away else {})}
    made = Ladder(
        settings,
        await Spool.open(spool, new_id("p"), max_bytes),
        metadata_timeout_s=0.2 if away else 10,
        spool_after_s=patience_s,
    )
    await made.open()
    return made


def turn(name: str, number: int, conversation: str = "c1") -> Record:
    body = {
        "org": "acme",
        "conversation": conversation,
        "event_id": event_id("acme", conversation, "turn.appended", f"{name}/{number}"),
        "occurred_at_us": time.time_ns() // 1000,
        "turn": f"{name}_{number}",
        "role": "user",
    }
    return record("turn.appended", body)


def chunk(name: str, number: int) -> Record:
    body = {
        "org": "acme",
        "run": name,
        "event_id": event_id("acme", name, "chunk.batch", f"1/{number}"),
        "occurred_at_us": time.time_ns() // 1000,
        "writer_epoch": 1,
        "seq": number,
    }
    return record("chunk.batch", body)


def send(ladder: Ladder, made: Record) -> "asyncio.Future[Position]":
    return ladder.send(ladder.lane(made.topic, made.key), made.key, made.value, made.headers)


def written(config: Config, name: str, topic: str = "turnlog.turns") -> list[str]:
    """Turns of a test in the order of the log."""
    bodies = [decode(m.value() or b"").body for m in read_all(config, topic)]
    return [body["turn"] for body in bodies if body["turn"].startswith(f"{name}_")]


@contextmanager
def stopped(config: Config) -> Iterator[None]:
    (pid,) = (part.pid for part in status(config) if part.name == "kafka")
    assert pid is not None
    process = psutil.Process(pid)
    process.suspend()
    try:
        yield
    finally:
        process.resume()


@contextmanager
def no_file_over(size_bytes: int) -> Iterator[None]:
    """Have the system refuse what makes a file longer, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def settled(ladder: Ladder) -> None:
    async with asyncio.timeout(LONG_S):
        while ladder.state.spool_events or ladder.state.unacknowledged:
            await asyncio.sleep(0.05)


async def test_with_a_broker_nothing_goes_to_the_disk(kafka: Config, tmp_path: Path) -> None:
    ladder = await opened(kafka, tmp_path, patience_s=LONG_S)
    position = await send(ladder, turn("up", 0))
    assert (position.via, ladder.state.rung, ladder.state.spool_bytes) == ("broker", "broker", 0)
    assert await ladder.close(30) == 0
    assert written(kafka, "up") == ["up_0"]


async def test_a_stopped_broker_loses_and_doubles_nothing(kafka: Config, tmp_path: Path) -> None:
    ladder = await opened(kafka, tmp_path)
    await send(ladder, turn("stopped", 0))
    with stopped(kafka):
        first = [send(ladder, turn("stopped", n)) for n in range(1, 30)]
        assert {p.via for p in await asyncio.gather(*first)} == {"spool"}
        later = [send(ladder, turn("stopped", n)) for n in range(30, 60)]
        assert {p.via for p in await asyncio.gather(*later)} == {"spool"}
        # Not the rung: what the broker had answered before it stopped may be heard only now.
        # On a busy machine the one before them may be there too.
        assert ladder.state.spool_events["turns"] in (59, 60)
    await settled(ladder)
    await send(ladder, turn("stopped", 60))
    await settled(ladder)
    assert await ladder.close(30) == 0
    assert written(kafka, "stopped") == [f"stopped_{n}" for n in range(61)]
    assert not list(tmp_path.glob("*/*.seg"))


async def test_live_events_of_a_stream_queue_behind_its_backlog(
    kafka: Config, tmp_path: Path
) -> None:
    ladder = await opened(kafka, tmp_path)
    with stopped(kafka):
        await send(ladder, turn("behind", 0))
        count = 1
    async with asyncio.timeout(LONG_S):
        while ladder.state.rung != "broker" or count < 50:
            send(ladder, turn("behind", count))
            count += 1
            await asyncio.sleep(0.005)
    await settled(ladder)
    assert await ladder.close(30) == 0
    assert written(kafka, "behind") == [f"behind_{n}" for n in range(count)]


async def test_a_broker_that_is_away_at_the_start_is_waited_for_on_the_disk(
    kafka: Config, tmp_path: Path
) -> None:
    await (await opened(kafka, tmp_path)).close(10)
    away = await opened(kafka, tmp_path, away=True)
    positions = await asyncio.gather(*(send(away, turn("away", n)) for n in range(20)))
    assert {p.via for p in positions} == {"spool"}
    assert await away.close(0.1) == 0
    heir = await opened(kafka, tmp_path)
    await settled(heir)
    await heir.close(30)
    assert written(kafka, "away") == [f"away_{n}" for n in range(20)]
    repeats = [decode(m.value() or b"").body for m in read_all(kafka, "turnlog.turns")]
    assert all(b["may_repeat"] for b in repeats if b["turn"].startswith("away_"))


async def test_without_a_broker_that_ever_answered_there_is_no_producer(
    kafka: Config, tmp_path: Path
) -> None:
    with pytest.raises(Unavailable, match="no connection"):
        await opened(kafka, tmp_path, away=True)


async def test_a_full_spool_sheds_chunks_and_refuses_the_rest_at_once(
    kafka: Config, tmp_path: Path
) -> None:
    await (await opened(kafka, tmp_path)).close(10)
    ladder = await opened(kafka, tmp_path, max_bytes=20_000, away=True)
    chunks = [send(ladder, chunk("full", n)) for n in range(200)]
    outcomes = await asyncio.gather(*chunks, return_exceptions=True)
    kinds = Counter(type(outcome) for outcome in outcomes)
    assert kinds[SpoolFull] > 0 < kinds[Position]
    rungs = [ladder.state.rung]
    assert ladder.state.shed == {"run-chunks": kinds[SpoolFull]}
    assert (await send(ladder, turn("full", 0))).via == "spool"
    with pytest.raises(SpoolFull):
        for n in range(1, 500):
            send(ladder, turn("full", n))
    rungs.append(ladder.state.rung)
    assert rungs == ["shedding", "refusing"]
    await ladder.close(0.1)


async def test_once_the_disk_has_room_again_the_rung_says_so_unasked(
    kafka: Config, tmp_path: Path
) -> None:
    await (await opened(kafka, tmp_path)).close(10)
    ladder = await opened(kafka, tmp_path, away=True)
    with no_file_over(1):
        with pytest.raises(SpoolFull):
            await send(ladder, turn("room", 0))
        rungs = [ladder.state.rung, await ladder.spool.room()]
    assert rungs == ["refusing", "refusing"]
    async with asyncio.timeout(LONG_S):
        while ladder.state.rung != "spool":
            await asyncio.sleep(0.05)
    await ladder.close(0.1)


async def test_what_kafka_was_given_and_the_disk_refuses_is_in_doubt(
    kafka: Config, tmp_path: Path
) -> None:
    ladder = await opened(kafka, tmp_path)
    with stopped(kafka):
        with no_file_over(1), pytest.raises(InDoubt, match="may still write it"):
            await send(ladder, turn("doubt", 0))
        with no_file_over(1), pytest.raises(SpoolFull) as refused:
            await send(ladder, turn("doubt", 1))
        assert type(refused.value) is SpoolFull
    await settled(ladder)
    assert written(kafka, "doubt") == ["doubt_0"]
    await ladder.close(30)


@pytest.mark.parametrize("content", [None, b"{", b"[]", b'{"turnlog.turns": "x"}'])
async def test_a_file_of_partitions_that_is_none_stops_no_producer(
    kafka: Config, tmp_path: Path, content: bytes | None
) -> None:
    known = tmp_path / "partitions.json"
    known.mkdir() if content is None else known.write_bytes(content)
    with pytest.raises(Unavailable):
        await opened(kafka, tmp_path, away=True)
    ladder = await opened(kafka, tmp_path)
    assert (await send(ladder, turn("known", 0))).topic == "turnlog.turns"
    await ladder.close(30)


async def test_what_is_unacknowledged_at_the_end_is_left_on_the_disk(
    kafka: Config, tmp_path: Path
) -> None:
    ladder = await opened(kafka, tmp_path)
    await send(ladder, turn("end", 0))
    with stopped(kafka):
        waiting = [send(ladder, turn("end", n)) for n in range(1, 10)]
        assert await ladder.close(0.1) == 0
        assert {(await future).via for future in waiting} == {"spool"}
    heir = await opened(kafka, tmp_path)
    await settled(heir)
    await heir.close(30)
    assert Counter(written(kafka, "end")).keys() == {f"end_{n}" for n in range(10)}


async def test_acknowledged_numbers_have_no_gap_after_an_outage(
    kafka: Config, tmp_path: Path
) -> None:
    ladder = await opened(kafka, tmp_path)
    with stopped(kafka):
        for n in range(40):
            await asyncio.wait([send(ladder, turn("gap", n, f"c{n}"))])
    await settled(ladder)
    assert {lane.acked_seq == lane.next_seq - 1 for lane in ladder.lanes()} == {True}
    await ladder.close(30)


async def test_a_number_that_the_disk_refused_does_not_stop_the_marks_behind_it(
    kafka: Config, tmp_path: Path
) -> None:
    ladder = await opened(kafka, tmp_path)
    with stopped(kafka):
        assert (await send(ladder, turn("void", 0))).via == "spool"
        with no_file_over(1), pytest.raises(SpoolFull):
            await send(ladder, turn("void", 1))
        assert (await send(ladder, turn("void", 2))).via == "spool"
    await settled(ladder)
    [lane] = [lane for lane in ladder.lanes() if lane.topic == "turnlog.turns"]
    assert (lane.refused, lane.acked_seq) == ([1], 2)
    await ladder.close(30)
    assert set(written(kafka, "void")) == {"void_0", "void_2"}
    last = [
        body
        for message in read_all(kafka, "turnlog.ledger")
        if (body := decode(message.value() or b"").body)["producer_id"] == ladder.producer_id
        and body["topic"] == lane.topic
    ][-1]
    assert (last["acked_seq"], last["closed"]) == (2, True)
    assert last["refused"] == [{"first": 1, "last": 1}]


async def test_after_a_fatal_error_it_goes_on_with_new_clients(
    kafka: Config, tmp_path: Path
) -> None:
    from confluent_kafka import KafkaError

    ladder = await opened(kafka, tmp_path)
    sent = [send(ladder, turn("fatal", n)) for n in range(10)]
    ladder.on_error(KafkaError(KafkaError._FATAL, "made up", True))
    await asyncio.gather(*sent)
    await send(ladder, turn("fatal", 10))
    await settled(ladder)
    await ladder.close(30)
    assert set(written(kafka, "fatal")) == {f"fatal_{n}" for n in range(11)}
