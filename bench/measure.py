"""Measuring two ways of moving the same records, turn by turn.

Two cores are shared by the broker, the stores and both sides, and the machine's speed drifts, so
the sides take turns in blocks. The ratio is the median of the ratios of neighbouring blocks: a
stall that hits one block does not decide it. Rates are of all blocks together.
"""

import resource
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Sample(NamedTuple):
    """One block of one side.

    Attributes:
        records: moved in it.
        wall_s: seconds that it took.
        cpu_s: seconds of processor time of this process, all threads.
    """

    records: int
    wall_s: float
    cpu_s: float


class Stopwatch:
    """Takes the time of one block."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), _cpu_s()

    def sample(self, records: int) -> Sample:
        """Return the block that ends now."""
        return Sample(records, time.perf_counter() - self._wall, _cpu_s() - self._cpu)


class Result(NamedTuple):
    """What a path of the bench prints."""

    path: str
    events_per_s: int
    raw_events_per_s: int
    ratio: float
    cpu_us_per_event: float
    raw_cpu_us_per_event: float


def result(path: str, ours: Sequence[Sample], raw: Sequence[Sample]) -> Result:
    """Sum up neighbouring blocks of both sides.

    Args:
        path: name of the path.
        ours: blocks of the code under test.
        raw: blocks of the raw client; the n-th follows the n-th of ours.
    """
    ratios = [_rate([b]) / _rate([a]) for a, b in zip(raw, ours, strict=True)]
    return Result(
        path,
        round(_rate(ours)),
        round(_rate(raw)),
        round(statistics.median(ratios), 3),
        round(_cpu_us(ours), 2),
        round(_cpu_us(raw), 2),
    )


def blocks(records: int, block: int) -> Iterator[int]:
    """Yield the sizes of blocks that make up at least this many records."""
    for _ in range(-(-records // block)):
        yield block


def _rate(samples: Sequence[Sample]) -> float:
    return sum(s.records for s in samples) / sum(s.wall_s for s in samples)


def _cpu_us(samples: Sequence[Sample]) -> float:
    return 1e6 * sum(s.cpu_s for s in samples) / sum(s.records for s in samples)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
