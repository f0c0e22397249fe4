"""`turnlog bench spine`: what the spine costs beside the raw client, path by path."""

import asyncio
from collections.abc import Callable, Iterator

from bench.measure import Result
from bench.producer import measure_events, measure_runs
from bench.traces import lengths
from bench.usage_sink import measure_usage_sink
from turnlog.config import Config

RECORDS = 300_000
BLOCK_RECORDS = 25_000
PATHS = ("producer-event", "producer-run", "usage-sink")


def measure(
    config: Config, path: str, records: int = RECORDS, say: Callable[[str], None] = lambda _: None
) -> Result:
    """Measure one path.

    Args:
        config: of a running stack.
        path: one of `PATHS`.
        records: how many each side moves at least.
        say: takes a line about the input, such as where the lengths come from.

    Raises:
        Unavailable: a part of the stack does not answer.
        UsageError: the stack has no address.
    """
    block = min(BLOCK_RECORDS, records)
    if path == "producer-event":
        return asyncio.run(measure_events(config, records, block))
    if path == "producer-run":
        trace, source = lengths()
        say(f"producer-run: lengths from {source}")
        return asyncio.run(measure_runs(config, records, block, trace))
    return measure_usage_sink(config, records, block)


def spine(
    config: Config,
    paths: tuple[str, ...] = PATHS,
    records: int = RECORDS,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Result]:
    """Yield the result of each path as it is there; see `measure`."""
    for path in paths:
        yield measure(config, path, records, say)
