"""What commands say where there is nothing, or too much, to show."""

import json
import sys
import uuid
from collections.abc import Callable

import pytest

from serve.cli import main
from serve.cli.conversation import _say
from serve.cli.imports import unknown_usage
from serve.views import wait_for
from tests.serve.runs_written import Written, created, ended, used, write_runs
from turnlog.config import Config

Turnlog = Callable[..., tuple[int, bytes, bytes]]

_END = {"occurred_at_us": 1_760_000_001_500_000, "status": "failed", "writer_epoch": 1, "seq": 1}
RUNS = {
    "empty": [created(), ended("completed", b"")],
    "none": [created(), Written("run.failed", _END, {"error": "overloaded"})],
    "repeated": [
        created(),
        ended("completed"),
        used(quality="unknown", reason="repeated", provider="p", model="unknown"),
    ],
    "dear": [created(), ended("completed"), used(provider="p", model="dear", cost_nano_usd=9)],
    "some": [created(), ended("completed"), used(provider="p", model="some", output_text=3)],
    "more": [created(), ended("completed"), used(provider="p", model="more", output_text=4)],
}


@pytest.fixture
def turnlog(
    stack: Config, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Turnlog:
    def run(*arguments: str) -> tuple[int, bytes, bytes]:
        monkeypatch.setattr(sys, "argv", ["turnlog", *arguments])
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), *capfdbinary.readouterr()

    return run


@pytest.fixture(scope="module")
def org(stack: Config) -> str:
    name = f"answers_{uuid.uuid4().hex[:8]}"
    write_runs(stack, name, RUNS)
    assert wait_for(stack, ["runs", "usage"], 120) == {}
    return name


def test_no_bytes_are_a_response_and_no_response_is_an_error(turnlog: Turnlog, org: str) -> None:
    assert turnlog("run", "empty", "--org", org, "--response", "--raw") == (0, b"", b"")
    said = b"turnlog: run none: it has no stored response\n"
    assert turnlog("run", "none", "--org", org, "--response", "--raw") == (1, b"", said)
    assert turnlog("run", "none", "--org", org, "--request", "--raw") == (0, b"asked", b"")


def test_a_run_says_why_its_usage_is_unknown(turnlog: Turnlog, org: str) -> None:
    assert b"unknown (repeated)" in turnlog("run", "repeated", "--org", org)[1]
    assert b"unknown (not_recorded)" in turnlog("run", "empty", "--org", org)[1]
    for run, reason in (("repeated", "repeated"), ("dear", None)):
        shown = json.loads(turnlog("run", run, "--org", org, "--json")[1])
        assert shown["usage_reason"] == reason


def test_usage_is_cut_after_the_costliest_and_says_how_to_see_the_rest(
    turnlog: Turnlog, org: str
) -> None:
    code, shown, _ = turnlog("usage", "--org", org, "--by", "model", "--limit", "2")
    assert code == 0
    assert [line.split()[0] for line in shown.splitlines()[1:3]] == [b"dear", b"more"]
    assert shown.splitlines()[3] == b"and 2 more: leave out --limit"
    listed = turnlog("usage", "--org", org, "--by", "model", "--limit", "1", "--json")[1]
    assert [json.loads(line)["model"] for line in listed.splitlines()] == ["dear"]


@pytest.mark.parametrize(
    ("status", "said"), [("completed", "(no output)"), ("running", "(no output yet)")]
)
def test_a_turn_without_output_says_so(
    capsys: pytest.CaptureFixture[str], status: str, said: str
) -> None:
    _say({"text": "", "status": status}, [], "[erased]")
    assert capsys.readouterr().out.strip() == said


def test_an_import_says_why_runs_have_no_usage() -> None:
    counted = {"repeated": 2, "no_usage": 5, "invalid": 2}
    said = unknown_usage(counted)
    assert said == "without usage: 9 runs (5 no_usage, 2 invalid, 2 repeated)"
