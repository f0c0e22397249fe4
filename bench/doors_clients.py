"""Wrapped clients beside bare ones, in turns, against the local provider in a process of its own.

Two things are measured of the official clients of OpenAI and Anthropic, sync, over a `SyncProducer`
in a thread of the same process. A *call* is one whose answer begins after 200 ms, as a fast model's
does: what comes on top is mostly that `run.created` is durable before the request goes out. A
*chunk* is one of a stream of 1,500 that come as fast as they can, from the first to the last. One
of ours follows one of the bare client's, and the ratio is the median of the ratios of neighbours.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import turnlog
from bench.doors_line import Line
from turnlog import SyncProducer
from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.keeper_client import credential_of

ORG = "local"
FIRST_BYTE_MS = 200
CALLS = 30
STREAMS = 12
STREAM_BYTES = 400_000
SETTLE_S = 0.25
MAX_CALL = 1.05
MAX_CHUNK = 1.1
SAY: Any = [{"role": "user", "content": "Can I put a 1x12 drivetrain on it?"}]
_ROOT = Path(__file__).parents[1]


class Client(NamedTuple):
    """One kind of client.

    Attributes:
        door: name of the door.
        make: makes a client for a base URL.
        call: makes a call whose answer comes whole.
        stream: makes a call whose answer comes in chunks.
    """

    door: str
    make: Callable[[str], Any]
    call: Callable[[Any], object]
    stream: Callable[[Any], Iterable[object]]


class Times(NamedTuple):
    """Seconds of each call, or of each chunk, of both sides; the n-th of ours follows the n-th."""

    bare: list[float]
    ours: list[float]

    @property
    def ratio(self) -> float:
        """Median of the ratios of neighbours."""
        return statistics.median(b / a for a, b in zip(self.bare, self.ours, strict=True))


def measure(config: Config) -> Iterator[Line]:
    """Measure, for about 40 s.

    Args:
        config: of a running stack of this home.

    Raises:
        Unavailable: a part does not answer, or the provider does not start.
    """
    with _provider() as url, SyncProducer.open(config, credential_of(config, ORG)) as producer:
        for client in (_openai(), _anthropic()):
            paced = f"{url}/~delay_ms={FIRST_BYTE_MS}"
            calls = _turns(client, partial(_call_s, client), paced, producer, CALLS)
            yield _call_line(client.door, calls)
            fast = f"{url}/~grow={STREAM_BYTES}"
            chunks = _turns(client, partial(_chunk_s, client), fast, producer, STREAMS)
            yield _chunk_line(client.door, chunks)


@contextmanager
def _provider() -> Iterator[str]:
    command = [sys.executable, "-m", "tests.provider"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=_ROOT, env=dict(os.environ)
    ) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            if not said:
                raise Unavailable("tests.provider does not start")
            yield json.loads(said)["url"]
        finally:
            process.terminate()


def _openai() -> Client:
    import openai

    chat: dict[str, Any] = {"model": "gpt-4o-mini", "messages": SAY}
    return Client(
        "openai",
        lambda url: openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0),
        lambda client: client.chat.completions.create(**chat),
        lambda client: client.chat.completions.create(**chat, stream=True),
    )


def _anthropic() -> Client:
    import anthropic

    chat: dict[str, Any] = {"model": "claude-made", "messages": SAY, "max_tokens": 99}
    return Client(
        "anthropic",
        lambda url: anthropic.Anthropic(base_url=url, api_key="none", max_retries=0),
        lambda client: client.messages.create(**chat),
        lambda client: client.messages.create(**chat, stream=True),
    )


def _turns(
    client: Client,
    seconds: Callable[[Any], float],
    url: str,
    producer: SyncProducer,
    rounds: int,
) -> Times:
    with client.make(url) as bare, client.make(url) as held:
        ours = turnlog.wrap(held, producer)
        for one in (bare, ours):
            seconds(one)
        times = Times([], [])
        for _ in range(rounds):
            times.bare.append(seconds(bare))
            times.ours.append(seconds(ours))
            # What is left to do of a stream is done in the background; not on the bare one's time.
            time.sleep(SETTLE_S)
    return times


def _call_s(client: Client, one: Any) -> float:
    began = time.perf_counter()
    client.call(one)
    return time.perf_counter() - began


def _chunk_s(client: Client, one: Any) -> float:
    """Return the time of a chunk; what comes before the first one is the call's."""
    chunks, began = 0, 0.0
    for _ in client.stream(one):
        began = began or time.perf_counter()
        last = time.perf_counter()
        chunks += 1
    return (last - began) / (chunks - 1)


def _call_line(door: str, times: Times) -> Line:
    bare, ours = statistics.median(times.bare), statistics.median(times.ours)
    return Line(
        door=door,
        events_per_s=round(1 / ours, 2),
        p50_ms=round(ours * 1000, 2),
        p99_ms=round(_p99(times.ours) * 1000, 2),
        added_first_byte_ms=round((ours - bare) * 1000, 2),
        ratio=round(times.ratio, 3),
        bar=MAX_CALL,
        bare_events_per_s=round(1 / bare, 2),
        of=f"time of a bare call whose answer begins after {FIRST_BYTE_MS} ms; calls a second",
    )


def _chunk_line(door: str, times: Times) -> Line:
    bare, ours = statistics.median(times.bare), statistics.median(times.ours)
    return Line(
        door=f"{door}-chunk",
        events_per_s=round(1 / ours),
        p50_ms=round(ours * 1000, 4),
        p99_ms=round(_p99(times.ours) * 1000, 4),
        added_first_byte_ms=0.0,
        ratio=round(times.ratio, 3),
        bar=MAX_CHUNK,
        bare_events_per_s=round(1 / bare),
        of="time of a bare client's chunk in a stream without pauses; chunks a second",
    )


def _p99(times: list[float]) -> float:
    return sorted(times)[min(len(times) - 1, len(times) * 99 // 100)]
