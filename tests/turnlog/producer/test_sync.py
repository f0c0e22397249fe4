"""The producer for threads: many of them, a loop that is busy, every way in which a block ends."""

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.turnlog.producer.parts import ORG as MEMORY_ORG
from tests.turnlog.producer.parts import producer_in_memory
from turnlog import SyncProducer
from turnlog.config import Config
from turnlog.errors import UsageError
from turnlog.events import decode
from turnlog.ids import new_id
from turnlog.kafka import read_all
from turnlog.keeper_client import create, credential_of

ORG = "producer-sync"


@pytest.fixture(scope="module")
def org(stack: Config) -> str:
    create(stack, ORG)
    return ORG


@pytest.fixture
def producer(stack: Config, org: str) -> Iterator[SyncProducer]:
    with SyncProducer.open(stack, credential_of(stack, org)) as opened:
        yield opened


def events_of(config: Config, conversation: str) -> list[tuple[str, dict[str, Any]]]:
    """Type and body of what the log holds of a conversation."""
    key = f"{ORG}/{conversation}".encode()
    topics = ("turnlog.runs", "turnlog.run-chunks", "turnlog.turns", "turnlog.usage")
    found = [
        decode(message.value() or b"")
        for topic in topics
        for message in read_all(config, topic)
        if message.key() == key
    ]
    return [(event.type, dict(event.body)) for event in found]


def test_many_threads_write_their_runs_whole(stack: Config, producer: SyncProducer) -> None:
    conversation = new_id("threads")

    def one(n: int) -> str:
        with producer.run(org=ORG, conversation=conversation, provider="openai") as run:
            for piece in range(20):
                run.chunk(f"{n}:{piece} ")
            assert run.complete(b"{}", {"output_text": 20}).via == "broker"
        return run.run

    with ThreadPoolExecutor(8) as threads:
        runs = list(threads.map(one, range(40)))
    producer.close()
    found = events_of(stack, conversation)
    per_run = Counter((body["run"], type) for type, body in found if body["run"])
    once = ("run.created", "run.started", "run.completed", "usage.recorded")
    assert {per_run[run, type] for run in runs for type in once} == {1}
    assert sum(per_run[run, "chunk.batch"] >= 1 for run in runs) == 40


def test_a_chunk_waits_for_nobody(producer: SyncProducer) -> None:
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        release.wait()

    with producer.run(org=ORG) as run:
        holder = threading.Thread(target=producer.call, args=(hold,))
        holder.start()
        held.wait()
        for _ in range(1000):
            run.chunk("x")  # would never return if it needed the loop, which is held
        release.set()
        holder.join()
        run.complete()


def test_chunks_that_are_noted_while_others_are_sealed_are_all_there(
    stack: Config, producer: SyncProducer
) -> None:
    conversation = new_id("race")
    with producer.run(org=ORG, conversation=conversation) as run:
        for _ in range(200_000):
            run.chunk("ab")
        run.complete()
    producer.close()
    found = events_of(stack, conversation)
    batches = [body for type, body in found if type == "chunk.batch"]
    (end,) = (body for type, body in found if type == "run.completed")
    assert end["output_chars"] == 400_000
    # More than one, so that some were sealed while others were noted.
    assert len(batches) > 1


async def test_a_chunk_whose_thread_was_interrupted_while_it_was_noted_is_not_lost() -> None:
    async with producer_in_memory() as opened, opened.producer.run(org=MEMORY_ORG) as run:
        run.chunk("one")
        note = run._pending.append  # where another thread may stand as the ticker seals
        run.seal()
        note((time.perf_counter_ns(), 0, "text", "two", 0, "", ""))
        await run.complete()
        assert opened.transport.of("run.completed")[0]["output_chars"] == 6


@pytest.mark.parametrize(
    ("raised", "status"),
    [
        (ValueError, "run.failed"),
        (GeneratorExit, "run.cancelled"),
        (KeyboardInterrupt, "run.cancelled"),
        (None, "run.interrupted"),
    ],
)
def test_a_block_that_ends_by_itself_ends_its_run(
    stack: Config, producer: SyncProducer, raised: type[BaseException] | None, status: str
) -> None:
    conversation = new_id("left")

    def block() -> None:
        with producer.run(org=ORG, conversation=conversation) as run:
            run.chunk("shown")
            if raised is not None:
                raise raised

    if raised is None:
        block()
    else:
        with pytest.raises(raised):
            block()
    ends = [body for type, body in events_of(stack, conversation) if type == status]
    assert [(end["output_chars"]) for end in ends] == [5]
    assert ends[0]["error_code"] == ("exception" if raised is ValueError else "")


def test_errors_are_those_of_the_asynchronous_producer(producer: SyncProducer) -> None:
    with pytest.raises(UsageError, match="does not name org 'another'"):
        producer.run(org="another")
    with pytest.raises(UsageError, match="text"):
        producer.turn(org=ORG, conversation="c")  # type: ignore[call-arg]
    with producer.run(org=ORG) as run:
        with pytest.raises(UsageError, match="chunk is str"):
            run.chunk(b"bytes")  # type: ignore[arg-type]
        run.complete()
        with pytest.raises(UsageError, match="not open: it cannot be completed"):
            run.complete()
        with pytest.raises(UsageError, match="not open: it takes no chunk"):
            run.chunk("late")
    with pytest.raises(UsageError, match="begun before"), run:
        pass


def test_closing_twice_is_fine_and_nothing_works_after_it(producer: SyncProducer) -> None:
    producer.close()
    producer.close()
    for call in (lambda: producer.run(org=ORG), lambda: producer.append("run.started", {})):
        with pytest.raises(UsageError, match="the producer is closed"):
            call()


def test_a_run_that_is_open_as_the_producer_closes_is_interrupted_with_its_output(
    stack: Config, producer: SyncProducer
) -> None:
    conversation = new_id("open")
    run = producer.run(org=ORG, conversation=conversation)
    run.__enter__()
    run.chunk("shown")
    producer.close()
    with pytest.raises(UsageError, match="not open"):
        run.chunk("late")
    ends = [body for type, body in events_of(stack, conversation) if type == "run.interrupted"]
    assert [end["output_chars"] for end in ends] == [5]


def test_an_interpreter_that_ends_flushes_what_is_open(stack: Config, org: str) -> None:
    conversation = new_id("exit")
    code = f"""
from turnlog import SyncProducer
from turnlog.config import load
from turnlog.keeper_client import credential_of
config = load()
producer = SyncProducer.open(config, credential_of(config, {org!r}))
run = producer.run(org={org!r}, conversation={conversation!r})
run.__enter__()
run.chunk("shown")
"""
    environment = {**os.environ, "TURNLOG_HOME": str(stack.home)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert "still open as the producer closes: interrupted" in done.stderr
    assert "Traceback" not in done.stderr
    types = [type for type, _ in events_of(stack, conversation)]
    assert types.count("run.interrupted") == types.count("chunk.batch") == 1
