"""Importing on a real stack: once, in any order, byte for byte, and what goes wrong is named."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner

from serve.cli import cli
from serve.importer import Report, import_file
from serve.importer.found import Views
from serve.importer.lines import LOOKED_AT, NO_LINES
from serve.runs_api import list_runs, run_content
from serve.views import wait_for
from sinks.clickhouse.client import ClickHouse
from streams.content import subject_of
from streams.keys_reader import KeyReader
from tests.turnlog.providers.lines import DONE, delta, line, stream
from turnlog.config import Config
from turnlog.errors import UsageError
from turnlog.events import Event, decode
from turnlog.kafka import read_all
from turnlog.keeper_client import create
from turnlog.keys import Locator, open_content
from turnlog.providers import read_source

SAMPLES = Path(__file__).parents[2] / "samples" / "exchanges.jsonl"
USAGE = {"prompt_tokens": 10, "completion_tokens": 2}

Write = Callable[..., Path]


@pytest.fixture
def org(stack: Config) -> str:
    name = f"import-{uuid4().hex[:12]}"
    create(stack, name)
    return name


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    """Write lines, given as objects or bytes, to a new file and return its path."""
    count = iter(range(1000))

    def write_lines(*rows: Any) -> Path:
        path = tmp_path / f"lines-{next(count)}.jsonl"
        texts = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
        path.write_bytes(b"\n".join(texts) + b"\n")
        return path

    yield write_lines


def imported(stack: Config, path: Path, org: str) -> Report:
    """Import a file when the views have all that was written before."""
    assert wait_for(stack, ("runs", "usage"), 60) == {}
    return import_file(stack, path, org)


def rows(stack: Config, org: str) -> dict[str, dict[str, Any]]:
    """Return the runs of an org by the id that the source gave them."""
    assert wait_for(stack, timeout_s=60) == {}
    return {row["source_ref"]: row for row in list_runs(stack, org)}


def sources() -> list[dict[str, Any]]:
    return [json.loads(text) for text in SAMPLES.read_text(encoding="utf-8").splitlines()]


def test_the_samples_read_back_byte_for_byte_and_a_second_import_adds_nothing(
    stack: Config, org: str
) -> None:
    first = imported(stack, SAMPLES, org)
    assert (first.runs, first.exchanges, first.rejected.count) == (25, 25, 0)
    assert first.by_status == {"completed": 21, "failed": 3, "cancelled": 0, "interrupted": 1}
    assert first.usage == {"measured": 17, "estimated": 0, "unknown": 8}
    runs = rows(stack, org)
    contents = stored(stack, org)
    given = {source.id: source for source in map(read_source, sources())}
    assert runs.keys() == given.keys()
    for ref, source in given.items():
        assert contents[runs[ref]["run"]] == (source.request, source.response)
    cut = given["smp-anthropic-cut"]
    assert run_content(stack, org, runs[cut.id]["run"], "response") == cut.response
    ends = _offsets(stack, org)
    second = imported(stack, SAMPLES, org)
    assert (second.runs, second.already, second.rejected.count) == (0, 25, 0)
    assert _offsets(stack, org) == ends


def stored(stack: Config, org: str) -> dict[str, tuple[bytes, bytes]]:
    """Return request and response of each run of an org, opened from the log itself."""
    found: dict[str, dict[str, bytes]] = {}
    with KeyReader(stack, [org]) as keys:
        for message in read_all(stack, "turnlog.runs"):
            event = decode(message.value() or b"")
            if event.body["org"] == org:
                found.setdefault(event.body["run"], {}).update(opened(keys, event))
    return {run: (held["request"], held["response"]) for run, held in found.items()}


def opened(keys: KeyReader, event: Event) -> dict[str, Any]:
    body = event.body
    subject = subject_of(event.type, body)
    locator = Locator(body["key_tree"], body["key_day"], body["key_gen"])
    return open_content(
        keys.data_key(locator, subject),
        body["frame"],
        org=body["org"],
        tree=body["key_tree"],
        event_id=body["event_id"],
        subject_id=subject.id,
        writer_epoch=body["writer_epoch"],
        seq=body["seq"],
        kind=event.type,
        content_mac=body["content_mac"],
    )


def _offsets(stack: Config, org: str) -> list[tuple[Any, ...]]:
    """Return the coordinates of every row of an org, repeats included."""
    assert wait_for(stack, ("runs", "usage"), 60) == {}
    clickhouse = ClickHouse(stack)
    sql = "SELECT partition, offset FROM {table} WHERE org = {{org:String}} ORDER BY ALL"
    names = [f"{clickhouse.database}.{name}" for name in ("runs", "usage")]
    return [row for n in names for row in clickhouse.rows(sql.format(table=n), {"org": org})]


def test_the_order_of_lines_has_no_effect(stack: Config, write: Write) -> None:
    found = []
    for seed in (1, 2):
        name = f"import-{uuid4().hex[:12]}"
        create(stack, name)
        shuffled = sources()
        random.Random(seed).shuffle(shuffled)
        imported(stack, write(*shuffled), name)
        runs = rows(stack, name)
        found.append(
            {ref: (run["status"], run["usage"], run["cost_nano_usd"]) for ref, run in runs.items()}
        )
    assert found[0] == found[1]
    quality = {ref: usage["quality"] for ref, (_, usage, _) in found[0].items()}
    assert quality["smp-responses-done"] == "measured"
    assert quality["smp-responses-again"] == "unknown"


def test_a_response_that_was_booked_by_an_earlier_import_is_not_booked_again(
    stack: Config, org: str, write: Write
) -> None:
    answer = {"id": "resp_1", "choices": [], "usage": USAGE}
    one, two = (line("chat", answer, id=f"poll-{n}", n=n) for n in (5, 2))
    assert imported(stack, write(one), org).usage["measured"] == 1
    assert imported(stack, write(two, one), org).usage == {
        "measured": 0, "estimated": 0, "unknown": 1
    }  # fmt: skip


def test_other_content_under_a_known_id_is_a_conflict_and_nothing_is_written(
    stack: Config, org: str, write: Write
) -> None:
    good, other = line("chat", {"choices": []}), line("chat", {"choices": [], "x": 1})
    assert imported(stack, write(good, good, other), org).rejected.rows() == [
        {"id": "line-1", "reason": "conflict", "line": 3}
    ]
    report = imported(stack, write(other), org)
    conflict = [{"id": "line-1", "reason": "conflict", "line": 1}]
    assert (report.runs, report.rejected.rows()) == (0, conflict)
    create(stack, org, "second")
    elsewhere = import_file(stack, write(good), org, "second")
    assert elsewhere.rejected.rows() == conflict


def test_a_line_that_was_written_in_part_is_completed_under_its_own_keys(
    stack: Config, org: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = stream("chat", delta("a"), delta(finish="stop"), end=DONE)
    before = _locators(stack, org, write(row))
    complete = Views.runs

    def without_usage(self: Views, runs: list[str]) -> dict[str, Any]:
        known = complete(self, runs)
        for each in known.values():
            each.complete = False
        return known

    # As if the usage had never been written: the views are asked, and what they lack is not there.
    monkeypatch.setattr(Views, "runs", without_usage)
    assert imported(stack, write(row), org).runs == 1
    assert _locators(stack, org, None) == before


def _locators(stack: Config, org: str, path: Path | None) -> set[tuple[Any, ...]]:
    if path is not None:
        imported(stack, path, org)
    assert wait_for(stack, ("runs", "usage"), 60) == {}
    clickhouse = ClickHouse(stack)
    sql = (
        "SELECT type, hex(event_id), hex(key_tree), key_day, key_gen, hex(content_mac)"
        f" FROM {clickhouse.database}.runs WHERE org = {{org:String}}"
    )
    found = set(clickhouse.rows(sql, {"org": org}))
    assert len(found) == 2
    return found


def test_a_frame_that_is_too_large_is_rejected_whole(stack: Config, org: str, write: Write) -> None:
    noise = random.Random(1).randbytes(1_000_000).hex()
    large = line("chat", {"choices": [], "noise": noise}, id="large")
    report = imported(stack, write(large, line("chat", {"choices": []})), org)
    large_one = {"id": "large", "reason": "too_large", "line": 1}
    assert (report.runs, report.rejected.rows()) == (1, [large_one])
    assert rows(stack, org).keys() == {"line-1"}


def test_wrong_lines_are_listed_and_the_rest_goes_on(stack: Config, org: str, write: Write) -> None:
    path = write(b"nonsense", line("chat", {"choices": []}), b"{}", b"\x00\xff")
    report = imported(stack, path, org)
    assert (report.exchanges, report.runs) == (4, 1)
    assert [row["id"] for row in report.rejected.rows()] == ["line:1", "line:3", "line:4"]


def test_a_file_of_something_else_is_one_rejection_and_no_hundred(
    stack: Config, org: str, tmp_path: Path
) -> None:
    path = tmp_path / "README.md"
    path.write_text("# Words\n" * LOOKED_AT)
    assert import_file(stack, path, org).rejected.rows() == [{"id": "line:1", "reason": NO_LINES}]
    path.write_text("# Words\n" * (LOOKED_AT - 1))
    assert import_file(stack, path, org).rejected.count == LOOKED_AT - 1


def test_an_empty_file_is_rejected(stack: Config, org: str, tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.write_bytes(b"\n\n")
    report = import_file(stack, path, org)
    assert report.rejected.rows() == [{"id": "line:1", "reason": "the file is empty"}]


@pytest.mark.parametrize(("org_name", "project"), [("nobody", "default"), ("local", "nothing")])
def test_an_org_or_project_that_is_not_there_is_the_users_mistake(
    stack: Config, org_name: str, project: str
) -> None:
    with pytest.raises(UsageError, match="nobody|nothing"):
        import_file(stack, SAMPLES, org_name, project)


def test_the_command_prints_one_object_and_says_by_its_exit_that_lines_were_rejected(
    stack: Config, org: str, write: Write
) -> None:
    path = write(line("chat", {"choices": []}), b"nonsense")
    result = CliRunner().invoke(cli, ["import", str(path), "--org", org, "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "exchanges": 2,
        "runs": 1,
        "already": 0,
        "erased": 0,
        "read_again": 0,
        "by_status": {"completed": 1, "failed": 0, "cancelled": 0, "interrupted": 0},
        "usage": {"measured": 0, "estimated": 0, "unknown": 1},
        "warnings": [],
        "rejected": [{"id": "line:2", "reason": "not JSON"}],
    }
    people = CliRunner().invoke(cli, ["import", "-", "--org", org], input=path.read_bytes())
    # Nothing was written this time, and of nothing there is no status to tell.
    assert people.stdout.splitlines() == [
        "2 exchanges: 0 runs written, 1 there already, 0 erased, 1 rejected",
        "rejected: 1",
        "  line:2: not JSON",
    ]
