"""`turnlog append`: events of a file, one answer a line."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from serve.appending.batch import Given
from serve.appending.local import read_batches
from serve.conversation_api import read_conversation
from serve.views import wait_for
from turnlog.config import Config
from turnlog.errors import UsageError
from turnlog.keeper_client import create

ORG = "append-command"
A, B = {"type": "a"}, {"type": "b"}


def lines(*texts: str) -> list[Any]:
    batches = read_batches(iter([text.encode() + b"\n" for text in texts]))
    return [event for batch in batches for event in batch]


@pytest.mark.parametrize(
    "texts",
    [
        (json.dumps(A), "", json.dumps(B)),
        (json.dumps([A, B]),),
        (json.dumps({"events": [A, B]}),),
        (json.dumps({"events": [A]}), json.dumps(B)),
        tuple(json.dumps({"events": [A, B]}, indent=1).splitlines()),
        tuple(json.dumps([A, B], indent=1).splitlines()),
    ],
)
def test_the_forms_of_a_file(texts: tuple[str, ...]) -> None:
    assert lines(*texts) == [Given(A), Given(B)]


def test_a_bad_line_is_answered_and_the_rest_goes_on() -> None:
    first = lines("{", json.dumps(A))
    later = lines(json.dumps(A), "{")
    assert [event for event in (*first, *later) if isinstance(event, Given)] == [Given(A)] * 2
    assert first[0].status == later[1].status == 400


def test_long_files_come_in_batches() -> None:
    sizes = [len(batch) for batch in read_batches([json.dumps([A] * 250).encode()])]
    assert sizes == [100, 100, 50]


def test_what_is_no_json_at_all_is_a_mistake() -> None:
    with pytest.raises(UsageError):
        lines("hello")


def test_an_empty_file_has_no_events() -> None:
    assert lines("", " ") == []


def run(stack: Config, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TURNLOG_HOME": str(stack.home)}
    command = [sys.executable, "-m", "serve", "append", *arguments]
    return subprocess.run(command, env=env, input=given, capture_output=True, text=True)


def test_a_file_is_appended_once(stack: Config, tmp_path: Path) -> None:
    create(stack, ORG)
    turn = {"id": "1", "type": "turn.appended", "conversation": "filed", "content": {"text": "Hi"}}
    file = tmp_path / "events.jsonl"
    file.write_text(f"{json.dumps(turn)}\n{json.dumps(turn | {'id': '2', 'role': 'king'})}\n")
    first = run(stack, str(file), "--org", ORG, "--json")
    assert (first.returncode, first.stderr) == (1, "")
    answers = [json.loads(line) for line in first.stdout.splitlines()]
    assert [(a["index"], a["outcome"]) for a in answers] == [(0, "accepted"), (1, "invalid")]
    again = run(stack, "-", "--org", ORG, given=json.dumps(turn))
    assert (again.returncode, again.stdout) == (0, "1 events: 1 duplicate\n")
    assert not wait_for(stack, ["conversations"])
    assert [row["text"] for row in read_conversation(stack, ORG, "filed").turns] == ["Hi"]


def test_an_org_without_a_credential_is_a_mistake(stack: Config) -> None:
    done = run(stack, "-", "--org", "nobody-here", given="{}")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nobody-here" in done.stderr
