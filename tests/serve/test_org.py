"""`turnlog org`, on a real stack."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from turnlog.config import Config


def turnlog(stack: Config, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TURNLOG_HOME": str(stack.home)}
    return subprocess.run(
        [sys.executable, "-m", "serve", *arguments], env=env, capture_output=True, text=True
    )


def listed(stack: Config) -> dict[str, Any]:
    lines = turnlog(stack, "org", "list", "--json").stdout.splitlines()
    return {row["org"]: row["projects"] for row in map(json.loads, lines)}


def test_orgs_are_created_and_listed_with_their_projects(stack: Config) -> None:
    org = f"cli_{os.getpid()}"
    for project in ("two", "one", "two"):
        done = turnlog(stack, "org", "create", org, "--project", project, "--json")
        assert done.returncode == 0
        made = json.loads(done.stdout)
        assert (made["org"], made["project"]) == (org, project)
        assert made["credential"] == str(stack.credentials / f"{org}.json")
    assert made["created"] is False
    found = listed(stack)
    assert found[org] == ["one", "two"]
    assert found["local"] == ["default"]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [(("a b",), "org"), (("",), "org"), (("ok", "--project", "a/b"), "project")],
)
def test_what_is_not_an_id_is_named_with_exit_2(
    stack: Config, arguments: tuple[str, ...], field: str
) -> None:
    done = turnlog(stack, "org", "create", *arguments)
    assert done.returncode == 2
    assert f"{field} is not an id" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_without_a_keeper_the_command_says_what_to_run(stack: Config) -> None:
    env = {**os.environ, "TURNLOG_HOME": str(stack.home), "TURNLOG_KEEPER": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-m", "serve", "org", "create", "acme"],
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "turnlog up keeper" in done.stderr and "Traceback" not in done.stderr
