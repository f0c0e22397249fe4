"""The bench of `chunk()` says what it measured, in each case; the figures are not asserted."""

from bench.producer_chunk import CASES, Line, measure
from local.stack import status
from tests.conftest import running_stack


async def test_each_case_is_measured_and_kafka_runs_afterwards() -> None:
    lines: list[Line] = []
    with running_stack(("kafka", "keeper")) as config:
        await measure(config, lines.append, case_s=1.0, gone_s=1.0, sizes=(80,))
        assert {part.state for part in status(config) if part.name == "kafka"} == {"running"}
    assert [line.case for line in lines] == list(CASES)
    assert all(0 < line.chunk_p50_us <= line.chunk_p99_us <= line.chunk_p999_us for line in lines)
    assert all(line.core_wait_share is None or 0 <= line.core_wait_share <= 1 for line in lines)
    assert sum(line.acknowledged for line in lines) > 0
