"""`turnlog runs`, `turnlog run` and `turnlog packs` as a user calls them."""

import json
import subprocess
import sys
import uuid
from collections.abc import Callable
from typing import NamedTuple

import pytest

from serve.cli import main
from serve.views import wait_for
from tests.serve.runs_written import created, ended, used, write_runs
from turnlog.config import Config

RUNS = {
    "run_1": [
        created(b"\x00ask\n", provider="openai", model="gpt", source_ref="line-1"),
        ended("completed", "Crème brûlée".encode()),
        used(output_text=3, cost_nano_usd=1_200_000_000),
    ],
    "run_2": [created(occurred_at_us=1_760_000_002_000_000)],
}


class Done(NamedTuple):
    returncode: int
    stdout: bytes
    stderr: bytes


Turnlog = Callable[..., Done]


@pytest.fixture
def turnlog(
    stack: Config, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Turnlog:
    """The command in this process; the shared stack's home is in the environment."""

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["turnlog", *arguments])
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(int(ended.value.code or 0), *capfdbinary.readouterr())

    return run


@pytest.fixture(scope="module")
def org(stack: Config) -> str:
    name = f"commands_{uuid.uuid4().hex[:8]}"
    write_runs(stack, name, RUNS)
    assert wait_for(stack, ["runs", "usage", "packs", "locator"], 120) == {}
    return name


def test_runs_prints_one_object_a_line(turnlog: Turnlog, org: str) -> None:
    done = turnlog("runs", "--org", org, "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["run"] for row in rows] == ["run_2", "run_1"]
    assert rows[1]["source_ref"] == "line-1"


def test_runs_prints_a_table_for_people(turnlog: Turnlog, org: str) -> None:
    done = turnlog("runs", "--org", org, "--limit", "1", "--status", "completed")
    assert done.returncode == 0
    assert b"1.200000000" in done.stdout
    assert b"run_2" not in done.stdout


@pytest.mark.parametrize(
    ("which", "stored"), [("--response", "Crème brûlée".encode()), ("--request", b"\x00ask\n")]
)
def test_raw_writes_exactly_the_stored_bytes(
    turnlog: Turnlog, org: str, which: str, stored: bytes
) -> None:
    done = turnlog("run", "run_1", "--org", org, which, "--raw")
    assert done == (0, stored, b"")


def test_raw_bytes_reach_a_pipe_as_they_are(stack: Config, org: str) -> None:
    command = [sys.executable, "-m", "serve", "run", "run_1", "--org", org, "--request", "--raw"]
    done = subprocess.run(command, capture_output=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"\x00ask\n", b"")


def test_a_run_is_shown_for_people_and_as_one_object(turnlog: Turnlog, org: str) -> None:
    shown = turnlog("run", "run_1", "--org", org).stdout.decode()
    for part in ("completed", "openai", "output_text 3", "1.200000000", "Crème brûlée", "s3://"):
        assert part in shown
    summary = json.loads(turnlog("run", "run_1", "--org", org, "--json").stdout)
    assert summary["output"] == [{"index": 0, "text": "Crème brûlée"}]
    assert summary["usage"]["output_text"] == 3


def test_what_is_not_found_says_only_that(turnlog: Turnlog, org: str) -> None:
    answers = {
        turnlog("run", "run_9", "--org", org, "--response", "--raw"),
        turnlog("run", "run_9", "--org", "local", "--response", "--raw"),
        turnlog("run", "run_9", "--org", "nobody", "--request", "--raw"),
        turnlog("run", "run_9", "--org", org, "--json"),
    }
    assert answers == {(1, b"", b"turnlog: run run_9: not found\n")}
    foreign = turnlog("run", "run_1", "--org", "local", "--response", "--raw")
    assert foreign == (1, b"", b"turnlog: run run_1: not found\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "run_1", "--raw", "--org", "local"),
        ("run", "run_1", "--raw", "--request", "--response", "--org", "local"),
        ("run", "run_1"),
        ("runs", "--org", "not an id"),
        ("runs", "--org", "nobody"),
        ("runs", "--org", "local", "--limit", "0"),
        ("runs", "--org", "local", "--status", "lost"),
    ],
)
def test_wrong_use_exits_2_in_words(turnlog: Turnlog, arguments: tuple[str, ...]) -> None:
    done = turnlog(*arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"Traceback" not in done.stderr


def test_packs_lists_the_objects_that_hold_an_org(
    turnlog: Turnlog, org: str, stack: Config
) -> None:
    rows = [
        json.loads(line) for line in turnlog("packs", "--org", org, "--json").stdout.splitlines()
    ]
    assert sum(row["records"] for row in rows) == 4
    for row in rows:
        assert set(row) == {"object", "kind", "records", "bytes", "orgs", "ranges"}
        assert row["object"].startswith(f"s3://{stack.content_bucket}/ingest/")
        assert (row["kind"], row["orgs"]) == ("ingest", [org])
        assert sum(found["records"] for found in row["ranges"]) == row["records"]
    assert org.encode() not in turnlog("packs").stdout
