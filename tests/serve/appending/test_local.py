"""`turnlog append`: events of a file, one answer a line."""

import json
import os
import signal
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import pytest

from serve.appending.batch import Given
from serve.appending.local import bounded_lines, read_batches
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


def test_a_line_and_a_document_have_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.appending.local.MAX_LINE_BYTES", 1 << 20)
    monkeypatch.setattr("serve.appending.local.MAX_DOCUMENT_BYTES", 2 << 20)
    with pytest.raises(UsageError, match="line 2 has over 1 MiB"):
        list(bounded_lines(BytesIO(b"{}\n" + b"x" * (1 << 20) + b"y")))
    assert sum(map(len, bounded_lines(BytesIO(b"x" * (1 << 20))))) == 1 << 20
    with pytest.raises(UsageError, match="a document has at most 2 MiB"):
        lines("[", *["1," * (1 << 18)] * 5)


@pytest.mark.parametrize("file", ["/dev/zero", "/", "/dev"])
def test_what_is_no_file_is_a_mistake(stack: Config, file: str) -> None:
    done = run(stack, file)
    assert done.returncode == 2
    assert "device" in done.stderr or "directory" in done.stderr.lower()


def test_a_device_as_standard_input_ends_at_the_bound(stack: Config) -> None:
    create(stack, ORG)
    with Path("/dev/zero").open("rb") as endless:
        process = started(stack, endless, "-", "--org", ORG)
        assert process.wait(30) == 2
    assert process.stderr is not None
    assert "device" in process.stderr.read()
    process.stderr.close()


def test_ctrl_c_ends_it_while_a_pipe_says_nothing(stack: Config) -> None:
    create(stack, ORG)
    near, far = os.pipe()
    os.write(far, b'{"type": "x"}\n' * 200)
    with os.fdopen(near, "rb") as silent, os.fdopen(far, "wb"):
        process = started(stack, silent, "-", "--org", ORG, "--json", stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["outcome"] == "invalid"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) != 0
        process.communicate()


def started(
    stack: Config, given: IO[bytes], *arguments: str, stdout: int = subprocess.DEVNULL
) -> "subprocess.Popen[str]":
    env = {**os.environ, "TURNLOG_HOME": str(stack.home)}
    command = [sys.executable, "-m", "serve", "append", *arguments]
    return subprocess.Popen(
        command, env=env, stdin=given, stdout=stdout, stderr=subprocess.PIPE, text=True
    )


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
