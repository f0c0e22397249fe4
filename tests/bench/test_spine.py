"""The bench runs and prints what it promises; what it measures is not asserted."""

import json
from itertools import islice

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient

from bench.measure import Sample, result
from bench.spine import PATHS
from bench.topics import PREFIX
from bench.traces import SYNTHETIC, Text, lengths
from serve.cli.bench import bench
from turnlog.config import Config
from turnlog.kafka import client_settings, end_offsets

COLUMNS = {
    "path",
    "events_per_s",
    "raw_events_per_s",
    "ratio",
    "cpu_us_per_event",
    "raw_cpu_us_per_event",
}


@pytest.mark.parametrize("path", PATHS)
def test_a_path_prints_its_line_and_leaves_nothing_behind(stack: Config, path: str) -> None:
    before = {topic: end_offsets(stack, topic) for topic in ("turnlog.runs", "turnlog.usage")}
    arguments = ["spine", "--path", path, "--records", "400", "--json"]
    ran = CliRunner().invoke(bench, arguments, catch_exceptions=False)
    line = json.loads(ran.stdout)
    assert line.keys() == COLUMNS
    assert line["path"] == path
    assert all(line[name] > 0 for name in COLUMNS - {"path"})
    assert before == {topic: end_offsets(stack, topic) for topic in before}
    topics = AdminClient(client_settings(stack)).list_topics(timeout=10).topics
    assert [name for name in topics if name.startswith(PREFIX)] == []


def test_the_ratio_is_the_median_of_neighbouring_blocks() -> None:
    raw = [Sample(100, wall_s, 0.1) for wall_s in (1.0, 1.0, 1.0)]
    ours = [Sample(100, wall_s, 0.2) for wall_s in (2.0, 50.0, 4.0)]
    found = result("p", ours, raw)
    assert found.ratio == 0.25
    assert (found.events_per_s, found.raw_events_per_s) == (5, 100)
    assert (found.cpu_us_per_event, found.raw_cpu_us_per_event) == (2000, 1000)


def test_lengths_never_end_and_say_where_they_come_from() -> None:
    trace, source = lengths()
    assert all(given.prompt >= 0 and given.answer >= 0 for given in islice(trace, 20_000))
    assert source
    assert all(given.prompt > given.answer > 0 for given in SYNTHETIC)


def test_text_is_as_long_as_asked_for() -> None:
    text = Text(chars=10_000)
    assert [len(text.of(chars)) for chars in (0, 1, 9_999)] == [0, 1, 9_999]
