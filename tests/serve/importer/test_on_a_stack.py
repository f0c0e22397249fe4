"""Importing on a real stack: `--again` books in the run that is there; a HAR is imported once."""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from serve.importer import Report, import_file
from serve.importer import run as importer
from serve.runs_api import list_runs
from serve.views import wait_for
from tests.serve.importer.test_har import entry, har, other
from tests.turnlog.providers.lines import line
from turnlog.config import Config
from turnlog.keeper_client import create
from turnlog.providers import Exchange, Source, forms, understand

COHERE = line(
    "",
    {
        "id": "r",
        "finish_reason": "COMPLETE",
        "message": {"content": [{"type": "text", "text": "Hi"}]},
        "usage": {"billed_units": {"input_tokens": 7, "output_tokens": 9}},
    },
    host="api.cohere.com",
    path="/v2/chat",
)


def not_understood(source: Source, *, at_us: int) -> Exchange:
    """Read as a version did that did not know the form."""
    known = forms.form_of
    forms.form_of = lambda source, framed: "other"
    try:
        return understand(source, at_us=at_us)
    finally:
        forms.form_of = known


def imported(stack: Config, path: Path, org: str, again: bool = False) -> Report:
    assert wait_for(stack, timeout_s=60) == {}
    return import_file(stack, path, org, again=again)


def usage(stack: Config, org: str) -> list[dict[str, Any]]:
    assert wait_for(stack, timeout_s=60) == {}
    return [row["usage"] for row in list_runs(stack, org)]


def test_usage_is_booked_once_in_the_run_that_is_there(
    stack: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    org = f"again-{uuid4().hex[:12]}"
    create(stack, org)
    path = tmp_path / "lines.jsonl"
    path.write_text(json.dumps(COHERE))
    with monkeypatch.context() as older:
        older.setattr(importer, "understand", not_understood)
        assert imported(stack, path, org).no_usage == {"not_understood": 1}
    assert [row["quality"] for row in usage(stack, org)] == ["unknown"]

    plain = imported(stack, path, org)
    assert (plain.already, plain.read_again) == (1, 0)
    again = imported(stack, path, org, again=True)
    assert (again.already, again.runs, again.read_again) == (1, 0, 1)
    (booked,) = usage(stack, org)
    assert (booked["quality"], booked["input_uncached"], booked["output_text"]) == (
        "measured",
        7,
        9,
    )
    assert imported(stack, path, org, again=True).read_again == 0
    assert usage(stack, org) == [booked]


def test_a_har_is_imported_once_with_its_own_times(stack: Config, tmp_path: Path) -> None:
    org = f"har-{uuid4().hex[:12]}"
    create(stack, org)
    path = har(tmp_path / "traffic", entry(), other("https://example.org/"), entry(time=10))
    first = imported(stack, path, org)
    assert (first.exchanges, first.runs, first.rejected.count) == (2, 2, 0)
    assert wait_for(stack, timeout_s=60) == {}
    runs = list(list_runs(stack, org))
    assert {run["started_at"] for run in runs} == {"2026-11-30T11:00:00.250000Z"}
    assert sorted(run["ended_at"][-8:-1] for run in runs) == [".260000", ".750500"]
    assert all(run["source_ref"].startswith("har/") for run in runs)
    assert imported(stack, path, org).already == 2


def test_again_imports_what_is_new_like_any_import(stack: Config, tmp_path: Path) -> None:
    org = f"again-{uuid4().hex[:12]}"
    create(stack, org)
    path = tmp_path / "lines.jsonl"
    path.write_text(json.dumps(COHERE))
    report = imported(stack, path, org, again=True)
    assert (report.runs, report.read_again, report.usage["measured"]) == (1, 0, 1)
