"""What a forked child may do with its parent's producer: nothing, said clearly and soon."""

import asyncio
import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import psutil
import pytest

from tests.turnlog.producer.test_sync import events_of
from turnlog import Producer
from turnlog.config import Config
from turnlog.errors import UsageError
from turnlog.ids import new_id
from turnlog.keeper_client import create, credential_of
from turnlog.spool import Spool, Spooled

ORG = "producer-sync"
OPENING = """
import asyncio, os, sys
from turnlog import Producer, SyncProducer
from turnlog.config import load
from turnlog.errors import UsageError
from turnlog.keeper_client import credential_of
config = load()
ORG, CONVERSATION = sys.argv[1:]
held = credential_of(config, ORG)
def refused(call):
    try:
        call()
    except UsageError as error:
        print(error, flush=True)
"""

SYNC = """
producer = SyncProducer.open(config, held)
with producer.run(org=ORG, conversation=CONVERSATION) as run:
    run.chunk("before ")
    child = os.fork()
    if not child:
        refused(lambda: producer.run(org=ORG))
        refused(lambda: run.chunk("never"))
        refused(run.complete)
        producer.close()
        sys.exit(0)  # leaves the block and ends the interpreter, as a worker of a server does
    assert os.waitpid(child, 0)[1] == 0
    run.chunk("after")
    run.complete()
producer.close()
"""

ASYNC = """
async def main():
    async with Producer.open(config, held) as producer:
        async with producer.run(org=ORG, conversation=CONVERSATION) as run:
            run.chunk("before ")
            child = os.fork()
            if not child:
                refused(lambda: producer.run(org=ORG))
                refused(lambda: run.chunk("never"))
                body = {"org": ORG, "run": "r", "writer_epoch": 1}
                refused(lambda: producer.append("run.started", body))
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            run.chunk("after")
            await run.complete()
asyncio.run(main())
"""

LOCK_HOLDER = """
import asyncio, os, signal, sys, time
from pathlib import Path
from turnlog.spool import Spool, Spooled
from turnlog.producer import forks
async def main():
    spool = await Spool.open(Path(sys.argv[1]), "parent")
    forks.watch(spool)
    await spool.append("runs", Spooled("turnlog.runs", 0, b"k", b"v", [], 0, 1))
    child = os.fork()
    if not child:
        os.close(1)
        time.sleep(60)
    print(child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


CLIENT = """
import asyncio, os, sys
from turnlog.producer.transport import KafkaTransport
async def main():
    global transport
    transport = KafkaTransport({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
asyncio.run(main())
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_child_that_ends_does_not_wait_for_its_parents_threads() -> None:
    # librdkafka's destructor does: without `keep_for_ever` this child never ends.
    group = subprocess.Popen([sys.executable, "-c", CLIENT], start_new_session=True)
    try:
        assert group.wait(30) == 0
    finally:
        if group.poll() is None:
            os.killpg(group.pid, signal.SIGKILL)
            group.wait()


@pytest.mark.parametrize("code", [SYNC, ASYNC], ids=["sync", "async"])
def test_a_forked_child_is_refused_and_its_parent_goes_on(stack: Config, code: str) -> None:
    create(stack, ORG)
    conversation = new_id("fork")
    done = subprocess.run(
        [sys.executable, "-c", OPENING + code, ORG, conversation],
        env={**os.environ, "TURNLOG_HOME": str(stack.home)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    said = "this producer was opened before the process was forked: open one in each process"
    assert done.stdout.splitlines() == [said] * 3
    found = events_of(stack, conversation)
    ends = [body["output_chars"] for type, body in found if type == "run.completed"]
    assert ends == [len("before after")]
    assert sum(type in ("run.failed", "run.cancelled", "run.interrupted") for type, _ in found) == 0


async def test_a_child_does_not_hold_its_dead_parents_spool(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOCK_HOLDER, tmp_path], stdout=subprocess.PIPE, text=True
    )
    child = psutil.Process(int(done.stdout))
    try:
        heir = await Spool.open(tmp_path, "heir")
        assert heir.adopted == {("runs", b"k"): 1}
        await heir.close()
    finally:
        child.send_signal(signal.SIGKILL)


async def test_a_producer_of_another_loop_is_refused(stack: Config) -> None:
    create(stack, ORG)
    async with Producer.open(stack, credential_of(stack, ORG)) as producer:
        run = producer.run(org=ORG)

        async def elsewhere() -> None:
            with pytest.raises(UsageError, match="event loop that opened it"):
                producer.run(org=ORG)
            with pytest.raises(UsageError, match="event loop that opened it"):
                await run.__aenter__()

        await asyncio.to_thread(lambda: asyncio.run(elsewhere()))


def _open_and_close(spool: Path, n: int) -> int:
    """Open, write, close, again and again; return how many records were left or adopted."""

    async def once(step: int) -> int:
        made = await Spool.open(spool, f"w{n}_{step}", max_bytes=1 << 20)
        adopted = sum(made.adopted.values())
        record = Spooled("turnlog.runs", 0, b"k", b"v", [], step, 1)
        await made.append("runs", record)
        while (read := await made.read("runs")) is not None and step % 2:
            await made.done(read, len(read.records))
        await made.close()
        return adopted

    return sum(asyncio.run(once(step)) for step in range(40))


def test_processes_that_open_and_close_one_spool_at_once_do_not_disturb_each_other(
    tmp_path: Path,
) -> None:
    others = tmp_path / "others"
    others.mkdir()
    (others / "precious").write_text("not the spool's")
    with ProcessPoolExecutor(6, mp_context=get_context("spawn")) as processes:
        left = list(processes.map(_open_and_close, [tmp_path] * 6, range(6)))
    assert len(left) == 6
    assert [path.name for path in others.iterdir()] == ["precious"]
