"""What `Run.chunk` costs while Kafka is up, stopped, gone and back, under the load of 200 runs.

Each case lasts some seconds: 200 runs stream 30 chunks a second each. One turn of the event loop
gives each stream that is due its chunk, and each call is timed by itself. How late the loop runs
timers is measured beside it. Runs end and begin all the time, as those of a gateway do.
"""

import asyncio
import math
import os
import signal
import sys
import threading
import time
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import psutil

from local.stack import external_addresses, status
from local.workers import environment
from turnlog import Producer
from turnlog.config import Config
from turnlog.errors import Unavailable, UsageError
from turnlog.keeper_client import credential_of
from turnlog.producer import RunFields

ORG = "local"
Case = Literal["up", "stopped", "gone", "back"]
CASES: tuple[Case, ...] = ("up", "stopped", "gone", "back")
CHUNK_BYTES = (80, 700)
RUNS = 200
CHUNKS_A_SECOND = 30
CHUNKS_A_RUN = 150
CASE_S = 20.0
GONE_S = 60.0
LAG_EVERY_S = 0.01
WARM_S = 3.0
# Until the spool of an outage is drained, or most of it.
SETTLE_S = 5.0
RESPONSE = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"answered"}}]}'
USAGE = {"input_uncached": 11, "output_text": 7}


class Line(NamedTuple):
    """One case and size; times are of single calls of `Run.chunk`.

    Attributes:
        case: how Kafka was.
        chunk_bytes: size of a chunk.
        chunk_p50_us: half of the calls took no longer.
        chunk_p99_us: 99 of 100.
        chunk_p999_us: 999 of 1,000.
        loop_lag_p99_ms: how late timers were.
        core_wait_share: of the case's time, how long the loop's thread could have run and had no
            core, because others had them; None where the kernel does not say.
        rss_mb: memory of this process at the end of the case.
        accepted: calls that wait for an answer and were made: runs begun and ended.
        acknowledged: such calls that were answered, by Kafka or by the disk.
        shed: events that found no room.
    """

    case: Case
    chunk_bytes: int
    chunk_p50_us: float
    chunk_p99_us: float
    chunk_p999_us: float
    loop_lag_p99_ms: float
    core_wait_share: float | None
    rss_mb: float
    accepted: int
    acknowledged: int
    shed: int


class Tally:
    """What was measured in one case."""

    def __init__(self) -> None:
        self.chunk_ns = array("q")
        self.lag_ns = array("q")
        self.accepted = 0
        self.acknowledged = 0
        self.shed_before = 0


class Load:
    """Runs that stream, and how long their chunks took."""

    def __init__(self, producer: Producer, chunk_bytes: int) -> None:
        self.producer = producer
        self.tally = Tally()
        self._text = "x" * chunk_bytes
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = False

    def start(self) -> None:
        """Start the streams, spread over the time between two chunks."""
        self._tasks = [asyncio.create_task(self._stream(number)) for number in range(RUNS)]
        self._tasks.append(asyncio.create_task(self._watch()))

    async def stop(self) -> None:
        """End the runs.

        Raises:
            TurnlogError: a stream failed.
        """
        self._stop = True
        await asyncio.gather(*self._tasks)

    def take(self) -> Tally:
        """Return what was measured since the last call."""
        tally, self.tally = self.tally, Tally()
        self.tally.shed_before = sum(self.producer.state.shed.values())
        return tally

    async def _stream(self, number: int) -> None:
        await asyncio.sleep(number / RUNS / CHUNKS_A_SECOND)
        # The first runs end one after the other, as if they had begun so.
        chunks = 1 + number * CHUNKS_A_RUN // RUNS
        while not self._stop:
            await self._run(chunks)
            chunks = CHUNKS_A_RUN

    async def _run(self, chunks: int) -> None:
        fields: RunFields = {"org": ORG, "provider": "openai", "model": "gpt", "request": b"{}"}
        self.tally.accepted += 1
        async with self.producer.run(**fields) as run:
            self.tally.acknowledged += 1
            due = time.perf_counter()
            for _ in range(chunks):
                start = time.perf_counter_ns()
                run.chunk(self._text)
                self.tally.chunk_ns.append(time.perf_counter_ns() - start)
                due += 1 / CHUNKS_A_SECOND
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                if self._stop:
                    break
            self.tally.accepted += 1
            await run.complete(RESPONSE, USAGE, finish_reason="stop")
            self.tally.acknowledged += 1

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stop:
            due = loop.time() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            self.tally.lag_ns.append(max(0, int((loop.time() - due) * 1e9)))


async def measure(
    config: Config,
    say: Callable[[Line], None],
    case_s: float = CASE_S,
    gone_s: float = GONE_S,
    sizes: Sequence[int] = CHUNK_BYTES,
) -> None:
    """Measure each size in each case.

    Args:
        config: of a running stack of this home.
        say: takes each line as it is there.
        case_s: how long `up`, `stopped` and `back` last.
        gone_s: how long Kafka is gone.
        sizes: of chunks, in bytes.

    Raises:
        UsageError: Kafka is not one of this home's own.
        Unavailable: a part does not answer.
        TurnlogError: a run could not be begun or ended.
    """
    kafka_pid(config)
    try:
        for size in sizes:
            async with Producer.open(config, credential_of(config, ORG)) as producer:
                load = Load(producer, size)
                load.start()
                await asyncio.sleep(WARM_S)
                for case in CASES:
                    seconds = gone_s if case == "gone" else case_s
                    say(await _case(config, load, case, seconds, size))
                await load.stop()
    finally:
        await start_kafka(config)  # nothing where it runs


async def _case(config: Config, load: Load, case: Case, seconds: float, size: int) -> Line:
    load.take()
    async with _kafka(config, case):
        began_s, waited_s = time.perf_counter(), _waited_s()
        await asyncio.sleep(seconds)
        tally = load.take()
        share = (_waited_s() - waited_s) / (time.perf_counter() - began_s)
    if case == "stopped":
        await asyncio.sleep(SETTLE_S)
    rss_mb = round(psutil.Process().memory_info().rss / 1e6, 1)
    shed = sum(load.producer.state.shed.values()) - tally.shed_before
    chunk_ns, lag_ns = sorted(tally.chunk_ns), sorted(tally.lag_ns)
    return Line(
        case=case,
        chunk_bytes=size,
        chunk_p50_us=round(_quantile(chunk_ns, 0.5) / 1000, 2),
        chunk_p99_us=round(_quantile(chunk_ns, 0.99) / 1000, 2),
        chunk_p999_us=round(_quantile(chunk_ns, 0.999) / 1000, 2),
        loop_lag_p99_ms=round(_quantile(lag_ns, 0.99) / 1e6, 2),
        core_wait_share=None if math.isnan(share) else round(share, 3),
        rss_mb=rss_mb,
        accepted=tally.accepted,
        acknowledged=tally.acknowledged,
        shed=shed,
    )


@asynccontextmanager
async def _kafka(config: Config, case: Case) -> AsyncIterator[None]:
    """Put Kafka into the state of a case; a stopped one goes on afterwards, a gone one is gone."""
    if case == "stopped":
        pid = kafka_pid(config)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)
        return
    if case == "gone":
        os.kill(kafka_pid(config), signal.SIGKILL)
    elif case == "back":
        await start_kafka(config)
    yield


async def start_kafka(config: Config) -> None:
    """Start Kafka in a process of its own, while the streams go on.

    Raises:
        Unavailable: it does not start.
    """
    env = {**os.environ, **environment(config, external_addresses(config))}
    command = (sys.executable, "-m", "serve", "up", "kafka")
    done = await asyncio.create_subprocess_exec(*command, env=env)
    if await done.wait():
        raise Unavailable("Kafka does not start again: see `turnlog status`")


def kafka_pid(config: Config) -> int:
    """Return the process id of this home's own Kafka.

    Raises:
        UsageError: it is somebody else's.
        Unavailable: it does not run.
    """
    if "kafka" in external_addresses(config):
        raise UsageError("TURNLOG_KAFKA is set: only a Kafka that `turnlog up` started is stopped")
    for part in status(config):
        if part.name == "kafka" and part.pid is not None:
            return part.pid
    raise Unavailable("Kafka does not run")


def _waited_s() -> float:
    """Return how long this thread has waited for a core (proc(5), `schedstat`)."""
    try:
        said = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text()
    except OSError:
        return math.nan
    return int(said.split()[1]) / 1e9


def _quantile(ordered: Sequence[int], share: float) -> int:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0
