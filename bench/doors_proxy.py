"""The recording proxy beside a pass-through that records nothing, in turns.

A provider, both proxies and the client are four processes on one machine. Two things are measured,
each with 100 streams at once that repeat one recorded chat of 26 events: streams that begin after
200 ms and whose events come every 20 ms, as a fast model writes them, for the time to the first
byte; and streams that begin at once and come as fast as they can, for throughput. A block of ours
follows a block of the bare one, and the ratio is the median of the ratios of neighbours. The time
to the first byte holds the model's 200 ms on both sides, as the call of a wrapped client does
(`bench.doors_clients`); what the proxy adds is beside it, in milliseconds. Processor time is that
of the proxy's process alone.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.doors_line import Line
from bench.stream_client import Streams, Took
from local.stack import external_addresses
from local.workers import environment
from turnlog.config import Config
from turnlog.errors import Unavailable

ORG = "local"
STREAMS = 100
BLOCKS = 5
BLOCK_S = 2.0
FIRST_BYTE_MS = 200
PACED = f"delay_ms={FIRST_BYTE_MS},pace_ms=20"
MAX_FIRST_BYTE = 1.5
MIN_THROUGHPUT = 0.5
REQUEST = json.dumps(
    {
        "model": "gpt-4o-mini",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "Can I put a 1x12 drivetrain on it?"}],
    }
).encode()
_ROOT = Path(__file__).parents[1]


class Block(NamedTuple):
    """What one side did in a block."""

    wall_s: float
    cpu_s: float
    took: list[Took]

    @property
    def a_second(self) -> float:
        """Streams a second."""
        return len(self.took) / self.wall_s

    def first_byte_ms(self, share: float) -> float:
        """Return a quantile of the time to the first byte."""
        return _quantile([took.first_byte_ns for took in self.took], share)


class Server(NamedTuple):
    """A server in a process of its own."""

    url: str
    process: psutil.Process


class Side(NamedTuple):
    """One of the two proxies, and the connections to it."""

    process: psutil.Process
    connections: list[Streams]

    @classmethod
    async def of(cls, server: Server) -> "Side":
        """Connect to a proxy."""
        return cls(server.process, [await Streams.to(server.url) for _ in range(STREAMS)])

    def cpu_s(self) -> float:
        """Return the processor time that the process has used."""
        used = self.process.cpu_times()
        return float(used.user + used.system)


def measure(config: Config, blocks: int = BLOCKS) -> list[Line]:
    """Measure, for about 45 s.

    Args:
        config: of a running stack of this home.
        blocks: of each side and kind.

    Raises:
        Unavailable: a part does not answer, or a process does not start.
    """
    with ExitStack() as stack:
        provider = stack.enter_context(_serving(config, "tests.provider")).url
        bare = stack.enter_context(_serving(config, "bench.bare_proxy", "--upstream", provider))
        arguments = ("proxy", "--json", "--upstream", provider, "--org", ORG)
        ours = stack.enter_context(_serving(config, "serve", *arguments))
        return asyncio.run(_measure(ours, bare, blocks))


@contextmanager
def _serving(config: Config, module: str, *arguments: str) -> Iterator[Server]:
    """Run a server that prints its URL."""
    command = [sys.executable, "-m", module, *arguments]
    env = {**os.environ, **environment(config, external_addresses(config))}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=_ROOT, env=env
    ) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline().strip()
            if not said:
                raise Unavailable(f"{module} does not start")
            url = json.loads(said)["url"] if said.startswith("{") else said
            yield Server(url, psutil.Process(process.pid))
        finally:
            process.terminate()


async def _measure(ours: Server, bare: Server, blocks: int) -> list[Line]:
    sides = await Side.of(ours), await Side.of(bare)
    try:
        await _turns(*sides, "", 1)
        paced = await _turns(*sides, PACED, blocks)
        fast = await _turns(*sides, "", blocks)
    finally:
        for side in sides:
            for connection in side.connections:
                connection.close()
    return [_first_byte(*paced), _throughput(*fast)]


async def _turns(
    ours: Side, bare: Side, scenario: str, blocks: int
) -> tuple[list[Block], list[Block]]:
    path = f"/~{scenario}/v1/chat/completions" if scenario else "/v1/chat/completions"
    done: tuple[list[Block], list[Block]] = ([], [])
    for _ in range(blocks):
        for side, found in zip((bare, ours), reversed(done), strict=True):
            found.append(await _block(side, path))
    return done


async def _block(side: Side, path: str) -> Block:
    loop = asyncio.get_running_loop()
    began, used_s = loop.time(), side.cpu_s()
    until = began + BLOCK_S
    took = await asyncio.gather(*(_repeat(one, path, until) for one in side.connections))
    found = [one for each in took for one in each]
    return Block(loop.time() - began, side.cpu_s() - used_s, found)


async def _repeat(connection: Streams, path: str, until: float) -> list[Took]:
    loop = asyncio.get_running_loop()
    took = [await connection.post(path, REQUEST)]
    while loop.time() < until:
        took.append(await connection.post(path, REQUEST))
    return took


def _first_byte(ours: Sequence[Block], bare: Sequence[Block]) -> Line:
    pairs = zip(ours, bare, strict=True)
    ratio = statistics.median(a.first_byte_ms(0.5) / b.first_byte_ms(0.5) for a, b in pairs)
    first = [took.first_byte_ns for block in ours for took in block.took]
    of = (
        "time to first byte of a bare pass-through, 100 paced streams at once that begin after "
        f"{FIRST_BYTE_MS} ms; streams a second"
    )
    return _line("proxy-first-byte", ours, bare, first, (ratio, MAX_FIRST_BYTE), of)


def _throughput(ours: Sequence[Block], bare: Sequence[Block]) -> Line:
    pairs = zip(ours, bare, strict=True)
    ratio = statistics.median(a.a_second / b.a_second for a, b in pairs)
    whole = [took.whole_ns for block in ours for took in block.took]
    of = "streams a second of a bare pass-through, 100 at once as fast as they come"
    return _line("proxy", ours, bare, whole, (ratio, MIN_THROUGHPUT), of)


def _line(
    door: str,
    ours: Sequence[Block],
    bare: Sequence[Block],
    times_ns: Sequence[int],
    held: tuple[float, float],
    of: str,
) -> Line:
    firsts = [[took.first_byte_ns for b in side for took in b.took] for side in (ours, bare)]
    return Line(
        door=door,
        events_per_s=round(_rate(ours)),
        p50_ms=round(_quantile(times_ns, 0.5), 2),
        p99_ms=round(_quantile(times_ns, 0.99), 2),
        added_first_byte_ms=round(_quantile(firsts[0], 0.5) - _quantile(firsts[1], 0.5), 2),
        ratio=round(held[0], 3),
        bar=held[1],
        bare_events_per_s=round(_rate(bare)),
        of=f"{of}; {_cpu_ms(ours)} ms of processor time a stream, {_cpu_ms(bare)} bare",
    )


def _cpu_ms(blocks: Sequence[Block]) -> float:
    streams = sum(len(block.took) for block in blocks)
    return round(1000 * sum(block.cpu_s for block in blocks) / streams, 2)


def _rate(blocks: Sequence[Block]) -> float:
    return sum(len(block.took) for block in blocks) / sum(block.wall_s for block in blocks)


def _quantile(values_ns: Sequence[int], share: float) -> float:
    """Return a quantile in milliseconds."""
    ordered = sorted(values_ns)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] / 1e6
