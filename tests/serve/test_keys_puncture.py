"""`turnlog keys puncture` on a real stack: what it destroys, and how reading goes on."""

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from local.stack import status
from serve.cli import main
from serve.importer import import_file
from serve.puncture_api import Selector, aim
from serve.views import wait_for
from turnlog import Producer
from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.ids import event_id
from turnlog.keeper_client import create, credential_of, fetch_grant, puncture
from turnlog.keys import Locator, Subject
from turnlog.keys.targets import Target
from turnlog.producer.fields import RunFields

RESPONSE = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"Four."}}]}'
VIEWS = ["runs", "usage", "packs", "locator", "conversations"]
# run: user, conversation.
RUNS = {
    "r1": ("ann", "talk"),
    "r2": ("ann", "talk"),
    "r3": ("ben", "talk"),
    "r4": ("ben", ""),
    "r5": ("", ""),
    "a run/6": ("ann@example.com", "a talk/6"),
}


class Done(NamedTuple):
    returncode: int
    stdout: bytes
    stderr: bytes


class Written(NamedTuple):
    """An org whose runs stand in every view."""

    org: str
    turnlog: Callable[..., Done]

    def puncture(self, *arguments: str) -> list[dict[str, Any]]:
        done = self.turnlog(
            "keys", "puncture", "--org", self.org, "--project", "default", "--yes", "--json",
            *arguments,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b"")
        punctures: list[dict[str, Any]] = json.loads(done.stdout)["punctures"]
        return punctures

    def readable(self) -> set[str]:
        found = set()
        for run in RUNS:
            done = self.turnlog("run", run, "--org", self.org, "--response", "--raw")
            assert done in ((0, RESPONSE, b""), missing(run))
            found |= {run} if done.returncode == 0 else set()
        return found


def missing(run: str) -> Done:
    return Done(1, b"", f"turnlog: run {run}: not found\n".encode())


@pytest.fixture
def turnlog(
    stack: Config, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., Done]:
    """The command in this process; the shared stack's home is in the environment."""

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["turnlog", *arguments])
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(int(ended.value.code or 0), *capfdbinary.readouterr())

    return run


@pytest.fixture
def written(stack: Config, turnlog: Callable[..., Done]) -> Written:
    org = f"puncture_{uuid.uuid4().hex[:8]}"
    create(stack, org)
    asyncio.run(write(stack, org))
    assert wait_for(stack, VIEWS, 120) == {}
    return Written(org, turnlog)


async def write(config: Config, org: str) -> None:
    async with Producer.open(config, credential_of(config, org)) as producer:
        for run, (user, conversation) in RUNS.items():
            await write_run(producer, org, run, user, conversation)


async def write_run(producer: Producer, org: str, run: str, user: str, conversation: str) -> None:
    fields: RunFields = {
        "org": org, "run": run, "provider": "openai", "model": "m", "user": user,
        "request": {"messages": [{"role": "user", "content": "2 + 2"}]},
    }  # fmt: skip
    if conversation:
        fields |= {"conversation": conversation, "input": f"asked in {run}"}
    async with producer.run(**fields) as writing:
        writing.chunk("Four.")
        await writing.complete(response=RESPONSE, usage={"output_text": 7}, finish_reason="stop")


def test_an_erased_run_answers_like_one_that_never_was(written: Written) -> None:
    [found] = written.puncture("--run", "r1")
    assert set(found) == {"tree", "prefix", "generation", "rows", "nodes_destroyed"}
    assert (found["generation"], found["rows"], found["nodes_destroyed"]) == (2, 33, 1)
    for how in (
        ("--response", "--raw"), ("--request", "--raw"), ("--json",), ()
    ):  # fmt: skip
        assert written.turnlog("run", "r1", "--org", written.org, *how) == missing("r1")
    assert written.readable() == set(RUNS) - {"r1"}


def test_a_run_that_is_gone_or_never_was_cannot_be_punctured(written: Written) -> None:
    written.puncture("--run", "r1")
    command = ("keys", "puncture", "--project", "default", "--yes", "--json", "--org")
    answers = {
        written.turnlog(*command, written.org, "--run", "r1"),
        written.turnlog(*command, "local", "--run", "r1"),
        written.turnlog(*command, "nobody", "--run", "r1"),
    }
    assert answers == {missing("r1")}
    assert written.turnlog(*command, written.org, "--run", "never") == missing("never")


def test_lists_and_usage_go_on_counting_an_erased_run(written: Written) -> None:
    written.puncture("--run", "r1")
    lines = written.turnlog("runs", "--org", written.org, "--json").stdout.splitlines()
    rows = {row["run"]: row for row in map(json.loads, lines)}
    assert len(rows) == len(RUNS)
    assert (rows["r1"]["status"], rows["r1"]["usage"]["output_text"]) == ("completed", 7)
    used = written.turnlog("usage", "--org", written.org, "--json").stdout.splitlines()
    assert sum(json.loads(line)["output_text"] for line in used) == 7 * len(RUNS)


def test_of_a_conversation_an_erased_answer_is_gone_and_the_rest_reads(written: Written) -> None:
    written.puncture("--run", "r1")
    shown = written.turnlog("conversation", "talk", "--org", written.org, "--json")
    assert (shown.returncode, shown.stderr) == (0, b"")
    texts = {
        turn["run"] or turn["text"]: turn["text"] for turn in json.loads(shown.stdout)["turns"]
    }
    assert (texts["r1"], texts["r2"], texts["r3"]) == (None, "Four.", "Four.")
    assert texts["asked in r1"] == "asked in r1"


def test_a_conversation_is_punctured_for_each_of_its_users(written: Written) -> None:
    assert len(written.puncture("--conversation", "talk")) == 2
    assert written.readable() == set(RUNS) - {"r1", "r2", "r3"}


def test_what_a_client_named_in_its_own_way_is_found(written: Written) -> None:
    assert len(written.puncture("--run", "a run/6")) == 1
    assert written.readable() == set(RUNS) - {"a run/6"}
    # All of it is gone, and saying so is no error.
    [found] = written.puncture("--conversation", "a talk/6")
    assert found["rows"] > 0
    [found] = written.puncture("--history-of", "ann@example.com")
    assert found["rows"] > 0


def test_the_history_of_a_user_goes_and_the_next_run_begins_a_generation(
    stack: Config, written: Written
) -> None:
    [found] = written.puncture("--history-of", "ann")
    assert len(found["prefix"]) == 24
    assert written.readable() == set(RUNS) - {"r1", "r2"}
    assert begin(stack, written.org, "ann").gen == 1
    assert begin(stack, written.org, "ben").gen == 0


def test_a_user_is_locked_out_for_today(stack: Config, written: Written) -> None:
    found = written.puncture("--user", "ben")
    assert {len(each["prefix"]) for each in found} == {22}
    assert written.readable() == set(RUNS) - {"r3", "r4"}
    with pytest.raises(Exception, match="every generation"):
        begin(stack, written.org, "ben")
    assert begin(stack, written.org, "ann").gen == 0
    assert all(each["rows"] == 0 for each in written.puncture("--user", "ben"))


def begin(stack: Config, org: str, user: str) -> Locator:
    grant = fetch_grant(stack, credential_of(stack, org))
    ids = {"user": user, "conversation": "", "subject_id": "new", "kind": "o"}
    return grant.begin(org, "default", **ids)


def test_a_day_takes_all_that_began_on_it_and_no_other_day(written: Written) -> None:
    today = datetime.now(UTC).date()
    [found] = written.puncture("--day", f"{today + timedelta(days=2)}")
    assert len(found["prefix"]) == 2
    assert written.readable() == set(RUNS)
    written.puncture("--day", f"{today}")
    assert written.readable() == set()
    command = ("keys", "puncture", "--org", written.org, "--project", "default", "--yes")
    unminted = written.turnlog(*command, "--day", f"{today + timedelta(days=15)}")
    assert unminted.returncode == 1
    assert b"not minted" in unminted.stderr or b"not found" in unminted.stderr
    long_ago = written.turnlog(*command, "--day", "2020-02-29")
    assert long_ago == Done(1, b"", b"turnlog: day 2020-02-29: not found\n")


def test_a_run_that_began_while_its_months_tree_was_missing_is_part_of_its_own_day(
    stack: Config, turnlog: Callable[..., Done]
) -> None:
    org = f"late_{uuid.uuid4().hex[:8]}"
    create(stack, org)
    place = begin(stack, org, "")
    first = (datetime.now(UTC).replace(day=28) + timedelta(days=4)).replace(day=1)
    last = (first - timedelta(days=1)).day
    asyncio.run(append_created(stack, org, first, place._replace(day=last)))
    assert wait_for(stack, ["runs"], 120) == {}
    found = aim(stack, org, "default", Selector("day", f"{first:%Y-%m-%d}"))
    elsewhere = [target for target in found.targets if target.level != "day"]
    assert elsewhere == [Target("run", place.tree, last, "ann", 0, "", "late")]
    assert found.runs == 1
    days = aim(stack, org, "default", Selector("day", f"{first - timedelta(days=1):%Y-%m-%d}"))
    assert [target.level for target in days.targets] == ["day"]


async def append_created(config: Config, org: str, at: datetime, locator: Locator) -> None:
    async with Producer.open(config, credential_of(config, org)) as producer:
        body = {
            "org": org, "project": "default", "run": "late", "user": "ann", "writer_epoch": 1,
            "event_id": event_id(org, "late", "run.created", "1/0"),
            "occurred_at_us": int(at.timestamp()) * 1_000_000,
        }  # fmt: skip
        await producer.append("run.created", body, None, None, locator)


def test_a_view_that_is_behind_stops_it_and_is_named(stack: Config, written: Written) -> None:
    [pid] = [part.pid for part in status(stack) if part.name == "runs-sink"]
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        asyncio.run(write(stack, written.org))
        with pytest.raises(Unavailable, match="view runs is .* nothing was punctured"):
            aim(stack, written.org, "default", Selector("run", "r1"), wait_s=0.5)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert written.readable() == set(RUNS)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--run", "r1", "--user", "ann"),
        ("--run", ""),
        ("--run", "r1", "--day", ""),
        ("--day", "yesterday"),
        ("--run", "r1", "--project", "a b"),
    ],
)
def test_wrong_use_exits_2(turnlog: Callable[..., Done], arguments: tuple[str, ...]) -> None:
    command = ("keys", "puncture", "--org", "local", "--project", "default", "--yes")
    done = turnlog(*command, *arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"Traceback" not in done.stderr


def test_nothing_goes_without_a_word_that_was_typed(stack: Config, written: Written) -> None:
    command = ["keys", "puncture", "--org", written.org, "--project", "default", "--run", "r2"]
    assert written.turnlog(*command).returncode == 2
    refused, said = typed(stack, command, "r1")
    assert refused == 1 and "nothing was punctured" in said
    assert written.readable() == set(RUNS)
    done, said = typed(stack, command, "r2")
    assert done == 0
    assert "This destroys run r2" in said and "1 run under 1 prefix" in said
    assert "own turn in the conversation stays readable" in said
    assert written.readable() == set(RUNS) - {"r2"}


def typed(stack: Config, command: list[str], word: str) -> tuple[int, str]:
    """Run a command with a terminal as its input, and type a word."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TURNLOG_HOME": str(stack.home)}
    arguments = [sys.executable, "-m", "serve", *command]
    with subprocess.Popen(
        arguments, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    ) as process:
        os.write(ours, f"{word}\n".encode())
        out, error = process.communicate(timeout=120)
    os.close(ours)
    os.close(theirs)
    return process.returncode, (out + error).decode()


def test_a_file_imported_again_writes_nothing_of_an_erased_run(
    stack: Config, turnlog: Callable[..., Done]
) -> None:
    org = f"again_{uuid.uuid4().hex[:8]}"
    create(stack, org)
    file = Path(__file__).parents[2] / "samples" / "exchanges.jsonl"
    first = import_file(stack, file, org)
    assert wait_for(stack, VIEWS, 120) == {}
    runs = [
        json.loads(line)["run"]
        for line in turnlog("runs", "--org", org, "--json").stdout.splitlines()
    ]
    Written(org, turnlog).puncture("--run", runs[0])
    before = turnlog("runs", "--org", org, "--json").stdout
    again = import_file(stack, file, org)
    assert (again.runs, again.already, again.erased) == (0, first.runs - 1, 1)
    assert wait_for(stack, VIEWS, 120) == {}
    assert turnlog("runs", "--org", org, "--json").stdout == before
    assert turnlog("run", runs[0], "--org", org, "--json") == missing(runs[0])


def test_a_run_whose_output_alone_was_erased_can_still_be_punctured(
    stack: Config, written: Written
) -> None:
    place = begin(stack, written.org, "ann")
    target = Target("key", place.tree, place.day, "ann", 0, "talk", "r1", "o")
    puncture(stack, written.org, "default", [target])
    assert len(written.puncture("--run", "r1")) == 1
    subject = Subject(written.org, "ann", "talk", "r1", "q")
    grant = fetch_grant(stack, credential_of(stack, written.org))
    with pytest.raises(Exception, match="erased"):
        grant.data_key(place, subject)


def test_an_operator_sees_what_is_erased_and_no_key(written: Written) -> None:
    written.puncture("--run", "r1")
    written.puncture("--conversation", "talk")
    written.puncture("--run", "r5")
    shown = ("keys", "show", "--org", written.org, "--project", "default")
    first, *_ = map(json.loads, written.turnlog(*shown, "--json").stdout.splitlines())
    # Ann's and Ben's part of the conversation, which swallowed the first run; and the last run.
    assert first["generation"] == 4
    *gone, today = [day for day in first["days"] if day["day"] <= datetime.now(UTC).day]
    assert {day["state"] for day in gone} <= {"gone"}
    assert (today["state"], today["erased"]) == ("punctured", {"conversation": 2, "run": 1})
    assert first["pages"] == today["pages"] + 1
    [place] = json.loads(written.turnlog(*shown, "--run", "r1", "--json").stdout)["places"]
    assert (place["request"], place["response"]) == ("erased", "erased")
    [place] = json.loads(written.turnlog(*shown, "--run", "a run/6", "--json").stdout)["places"]
    assert (place["request"], place["response"]) == ("alive", "alive")
    assert written.turnlog(*shown, "--run", "never") == missing("never")
    assert b"2 conversation, 1 run" in written.turnlog(*shown).stdout
    assert b"erased" in written.turnlog(*shown, "--run", "r1").stdout


def test_a_day_that_is_gone_whole_is_shown_as_gone(written: Written) -> None:
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    written.puncture("--day", f"{tomorrow}")
    lines = written.turnlog(
        "keys", "show", "--org", written.org, "--project", "default", "--json"
    ).stdout.splitlines()
    [days] = [row["days"] for row in map(json.loads, lines) if row["month"] == f"{tomorrow:%Y-%m}"]
    assert [day["state"] for day in days if day["day"] >= tomorrow.day][:2] == ["gone", "whole"]
