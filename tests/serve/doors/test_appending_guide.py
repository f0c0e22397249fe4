"""The examples of docs/http.md, `## Appending`, run as they stand there."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from serve.conversation_api import read_conversation
from serve.runs_api import run_summary
from serve.views import wait_for
from tests.serve.doors.door import Door, eventually, new_key
from turnlog.apikeys import Role
from turnlog.config import Config

GUIDE = (Path(__file__).parents[3] / "docs" / "http.md").read_text()
BLOCKS = dict(re.findall(r"```sh\n# (a [^\n]+)\n(.*?)```", GUIDE, re.DOTALL))
ORG = "appending-guide"


@pytest.fixture(scope="module")
def environment(door: Door, stack: Config) -> dict[str, str]:
    key = new_key(stack, ORG, Role.PRODUCER)
    eventually(lambda: door.ask("POST", "/v1/events", key, []).status == 200)
    return {**os.environ, "URL": f"http://127.0.0.1:{door.port}", "KEY": key}


def ran(environment: dict[str, str], name: str) -> list[str]:
    """Run an example; return what its last call answered."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", BLOCKS[name]],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()


def test_the_run(environment: dict[str, str], stack: Config) -> None:
    (answers,) = ran(environment, "a run")
    noted, ended = answers.split("}{")
    assert json.loads(noted + "}")["noted"] == 2
    run = json.loads("{" + ended)["run"]
    assert not wait_for(stack)
    summary = run_summary(stack, ORG, run)
    assert (summary["status"], summary["usage"]["input_uncached"]) == ("completed", 12)
    assert summary["output"][0]["text"] == "Bonjour, monde"
    turns = read_conversation(stack, ORG, "greetings").turns
    assert [turn["text"] for turn in turns] == ["Greet the world", "Bonjour, monde"]


@pytest.mark.parametrize("name", ["a batch", "a cloudevent", "a run that counts for itself"])
def test_the_events(environment: dict[str, str], name: str) -> None:
    (answer,) = ran(environment, name)
    assert {result["status"] for result in json.loads(answer)["results"]} == {201}
