"""The examples of docs/http.md, `## Appending`, run as they stand there."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from serve.conversation_api import read_conversation
from serve.runs_api import run_summary
from serve.views import wait_for
from tests.serve.doors.door import Door, eventually, new_key
from turnlog.apikeys import Role
from turnlog.config import Config

ROOT = Path(__file__).parents[3]
GUIDE, OTLP, PROXY = (
    (ROOT / "docs" / f"{name}.md").read_text() for name in ("http", "otlp", "proxy")
)
BLOCKS = dict(re.findall(r"```sh\n# (an? [^\n]+)\n(.*?)```", GUIDE + OTLP, re.DOTALL))
TITLES = re.compile(r"\b[45]\d\d[,:]\s*\(?\s*\"([a-z_]+)\"(?!:)")
ORG = "appending-guide"


@pytest.fixture(scope="module")
def environment(door: Door, stack: Config) -> dict[str, str]:
    key = new_key(stack, ORG, Role.PRODUCER)
    eventually(lambda: door.ask("POST", "/v1/events", key, []).status == 200)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    url = f"http://127.0.0.1:{door.port}"
    return {**os.environ, "PATH": path, "URL": url, "KEY": key}


def ran(environment: dict[str, str], name: str, folder: Path = ROOT) -> list[str]:
    """Run an example; return what its last call answered."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", BLOCKS[name]],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=60,
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


def test_the_avro_container(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "schemas").symlink_to(ROOT / "schemas")
    (answer,) = ran(environment, "an avro container", tmp_path)
    assert [result["status"] for result in json.loads(answer)["results"]] == [201]


def test_the_span(environment: dict[str, str]) -> None:
    (answer,) = ran(environment, "a span")
    (span,) = json.loads(answer)["turnlog"]["spans"]
    assert span["outcome"] == "recorded"


def titles(folder: str) -> set[str]:
    """Return the titles of refusals that the code of a folder has."""
    texts = [file.read_text() for file in (ROOT / "serve" / folder).glob("*.py")]
    return {title for text in texts for title in TITLES.findall(text)}


def test_the_pages_have_every_title_of_a_refusal() -> None:
    refusals = GUIDE.partition("## Refusals")[2].partition("\n## ")[0]
    assert {"ended", "method", "keys_unavailable", "bad_request"} <= titles("doors")
    assert titles("doors") - set(re.findall(r"`([a-z_]+)`", refusals)) == set()
    assert titles("proxy") - set(re.findall(r"`([a-z_]+)`", PROXY)) == set()
