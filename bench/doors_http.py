"""The HTTP door beside the in-process producer: the same turns, in batches of 100, turn by turn.

The server is a process of its own, as it is in production; this one posts to it, and in its turn
writes the same turns through a producer. Both have 400 events on their way at a time.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count

import aiohttp
import orjson

from bench.doors_line import Line
from bench.measure import Sample, Stopwatch
from bench.traces import Text
from turnlog.apikeys import Role
from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.keeper_client import create, create_apikey, credential_of
from turnlog.producer import Producer

ORG, PROJECT = "bench-doors", "default"
BATCH = 100
WORKERS = 4
BLOCK = 2_000
BLOCKS = 5
TEXT_CHARS = 600
CONVERSATIONS = 200
BAR = 0.5
START_S = 60.0


def measure(config: Config) -> Iterator[Line]:
    """Yield the line of the HTTP door.

    Raises:
        Unavailable: a part of the stack, or the server, does not answer.
    """
    create(config, ORG, PROJECT)
    key = create_apikey(config, ORG, PROJECT, Role.PRODUCER, 0)
    with _server(config) as url:
        yield asyncio.run(_measure(config, url, key))


class _server:
    """A server process; leaving the block drains it."""

    def __init__(self, config: Config) -> None:
        environment = {**os.environ, "TURNLOG_HOME": str(config.home)}
        command = [sys.executable, "-m", "serve", "serve", "--port", "0", "--json"]
        self._process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def __enter__(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Unavailable("the server did not start: run `turnlog serve` to see why")
        return str(json.loads(line)["address"])

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.wait(START_S)


async def _measure(config: Config, url: str, key: str) -> Line:
    turns = _Turns()
    ours: list[Sample] = []
    bare: list[Sample] = []
    times_s: list[float] = []
    async with (
        Producer.open(config, credential_of(config, ORG)) as producer,
        _client(url, key) as session,
    ):
        await _posted(session, turns.batches(BATCH * WORKERS * 2), [])
        for _ in range(BLOCKS):
            bare.append(await _written(producer, turns))
            ours.append(await _posted(session, turns.batches(BLOCK), times_s))
    ratios = [_rate(a) / _rate(b) for a, b in zip(ours, bare, strict=True)]
    times_ms = sorted(1000 * time_s for time_s in times_s)
    return Line(
        door="http",
        events_per_s=round(statistics.median(map(_rate, ours))),
        p50_ms=round(statistics.median(times_ms), 2),
        p99_ms=round(times_ms[len(times_ms) * 99 // 100], 2),
        added_first_byte_ms=0.0,
        ratio=round(statistics.median(ratios), 3),
        bar=BAR,
        bare_events_per_s=round(statistics.median(map(_rate, bare))),
        of="events_per_s of the in-process producer",
    )


class _Turns:
    """Turns to write: 600 characters each, in 200 conversations."""

    def __init__(self) -> None:
        text = Text()
        self._texts = [text.of(TEXT_CHARS) for _ in range(1000)]
        self._number = count()
        self._mark = f"{time.time_ns():x}"

    def next(self) -> tuple[str, str, str]:
        """Return name, conversation and text of a new turn."""
        n = next(self._number)
        conversation = f"bench_{self._mark}_{n % CONVERSATIONS}"
        return f"{self._mark}-{n}", conversation, self._texts[n % len(self._texts)]

    def batches(self, events: int) -> list[bytes]:
        """Return bodies of requests."""
        return [self._batch() for _ in range(events // BATCH)]

    def _batch(self) -> bytes:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        events = []
        for _ in range(BATCH):
            name, conversation, text = self.next()
            event = {"id": name, "type": "turn.appended", "time": now}
            events.append(event | {"conversation": conversation, "content": {"text": text}})
        return orjson.dumps({"events": events})


@asynccontextmanager
async def _client(url: str, key: str) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    async with aiohttp.ClientSession(url, headers=headers) as session:
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s:
            async with session.post("/v1/events", data=b"[]") as response:
                if response.status == 200:
                    break
            await asyncio.sleep(0.2)  # the key is on its way to the server
        yield session


async def _posted(
    session: aiohttp.ClientSession, bodies: list[bytes], times_s: list[float]
) -> Sample:
    queue, events = iter(bodies), len(bodies) * BATCH
    watch = Stopwatch()
    await asyncio.gather(*(_post(session, queue, times_s) for _ in range(WORKERS)))
    return watch.sample(events)


async def _post(
    session: aiohttp.ClientSession, bodies: Iterator[bytes], times_s: list[float]
) -> None:
    for body in bodies:
        begun_s = time.perf_counter()
        async with session.post("/v1/events", data=body) as response:
            answer = await response.read()
        times_s.append(time.perf_counter() - begun_s)
        if response.status != 200:
            raise Unavailable(f"the server answered {response.status}: {answer[:200]!r}")


async def _written(producer: Producer, turns: _Turns) -> Sample:
    new = [[turns.next() for _ in range(BATCH)] for _ in range(BLOCK // BATCH)]
    queue = iter(new)
    watch = Stopwatch()
    await asyncio.gather(*(_write(producer, queue) for _ in range(WORKERS)))
    return watch.sample(BLOCK)


async def _write(producer: Producer, batches: Iterator[list[tuple[str, str, str]]]) -> None:
    for batch in batches:
        await asyncio.gather(
            *(
                producer.turn(org=ORG, conversation=talk, text=text, idempotency_key=name)
                for name, talk, text in batch
            )
        )


def _rate(sample: Sample) -> float:
    return sample.records / sample.wall_s
