"""The end of a process, of a loop: what was accepted is in Kafka or on the disk, and said to be."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.turnlog.producer.test_sync import events_of
from turnlog import Producer
from turnlog.config import Config
from turnlog.ids import new_id
from turnlog.keeper_client import create, credential_of
from turnlog.spool import Spool, Spooled

ORG = "producer-sync"
LONG_S = 60.0

WITHOUT_KAFKA = """
import asyncio, signal, sys
from turnlog import Producer
from turnlog.config import load
from turnlog.keeper_client import credential_of
config = load()
ORG, CONVERSATION, HANDLED = sys.argv[1:]
async def main():
    if HANDLED == "handled":
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
    async with Producer.open(config, credential_of(config, ORG), close_timeout_s=0.5) as producer:
        async with producer.run(org=ORG, conversation=CONVERSATION) as run:
            run.chunk("shown")
            turn = await producer.turn(org=ORG, conversation=CONVERSATION, text="accepted")
            print(turn.position.via, flush=True)
            await asyncio.sleep(600)
try:
    asyncio.run(main())
except asyncio.CancelledError:
    sys.exit(143)
"""

EARLY = """
import asyncio, sys
from turnlog import Producer
from turnlog.config import load
from turnlog.keeper_client import credential_of
config = load()
ORG, CONVERSATION, HOW = sys.argv[1:]
held = []
async def main():
    opening = Producer.open(config, credential_of(config, ORG))
    producer = await opening.__aenter__()
    run = producer.run(org=ORG, conversation=CONVERSATION)
    await run.__aenter__()
    run.chunk("shown")
    held.extend((opening, producer, run))
    turn = await producer.turn(org=ORG, conversation=CONVERSATION, text="accepted")
    print(turn.position.via, flush=True)
if HOW == "returns":
    asyncio.run(main())
else:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
"""


def started(config: Config, code: str, *arguments: str, **more: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, ORG, *arguments],
        env={**os.environ, "TURNLOG_HOME": str(config.home), **more},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


async def test_sigterm_without_kafka_leaves_on_the_disk_what_was_accepted(
    stack: Config, tmp_path: Path
) -> None:
    create(stack, ORG)
    config = stack.model_copy(update={"spool": tmp_path})
    async with Producer.open(config, credential_of(config, ORG)):
        pass  # Kafka's partition counts are known now
    away = {
        "TURNLOG_KAFKA": "127.0.0.1:1",
        "TURNLOG_SPOOL": str(tmp_path),
        "TURNLOG_SPOOL_AFTER_MS": "400",
    }
    talks = {how: new_id(how) for how in ("handled", "killed")}
    processes = {
        how: started(config, WITHOUT_KAFKA, talk, how, **away) for how, talk in talks.items()
    }
    for process in processes.values():
        assert process.stdout is not None
        assert process.stdout.readline() == "spool\n"
        process.terminate()
    said = {how: process.communicate(timeout=LONG_S)[1] for how, process in processes.items()}
    codes = {how: process.returncode for how, process in processes.items()}
    assert codes == {"handled": 143, "killed": -signal.SIGTERM}
    assert "events are on the disk: the next producer sends them" in said["handled"]
    assert "Traceback" not in said["handled"]
    async with Producer.open(config, credential_of(config, ORG)) as heir:
        async with asyncio.timeout(LONG_S):
            while heir.state.spool_events or heir.state.unacknowledged:
                await asyncio.sleep(0.05)
    accepted = {"run.created", "turn.appended"}
    assert {type for type, _ in events_of(stack, talks["killed"])} >= accepted
    handled = [type for type, _ in events_of(stack, talks["handled"])]
    assert {"run.cancelled", "usage.recorded", "chunk.batch", *accepted} <= set(handled)
    assert not list(tmp_path.glob("*/*.seg"))


async def test_a_loop_that_ends_early_loses_nothing_that_was_accepted(stack: Config) -> None:
    create(stack, ORG)
    talks = {how: new_id(how) for how in ("returns", "closed")}
    for how, talk in talks.items():
        process = started(stack, EARLY, talk, how)
        assert process.communicate(timeout=LONG_S)[0] == "broker\n"
        assert process.returncode == 0
    types = {how: [type for type, _ in events_of(stack, talk)] for how, talk in talks.items()}
    assert all({"run.created", "turn.appended"} <= set(found) for found in types.values())
    # `asyncio.run` closes what is open as it returns; a loop that is just closed cannot.
    assert "run.interrupted" in types["returns"]


def test_the_spool_of_a_loop_that_was_closed_is_adopted_in_the_same_process(
    tmp_path: Path,
) -> None:
    record = Spooled("turnlog.runs", 0, b"k", b"v", [], 0, 1)

    async def begin() -> Spool:
        spool = await Spool.open(tmp_path, "early")
        await spool.append("runs", record)
        return spool

    early = asyncio.new_event_loop()
    left = early.run_until_complete(begin())
    early.close()

    async def adopt() -> None:
        heir = await Spool.open(tmp_path, "heir")
        async with asyncio.timeout(LONG_S):
            while not await heir.adopt_dead():
                await asyncio.sleep(0.1)
        read = await heir.read("runs")
        assert read is not None and read.records == [record]
        await heir.done(read, 1)
        await heir.close()

    asyncio.run(adopt())
    assert left.bytes_taken
    assert list(tmp_path.iterdir()) == []
