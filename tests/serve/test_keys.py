"""`turnlog keys`, on a real stack."""

import json
import os
import subprocess
import sys

from turnlog.config import Config
from turnlog.keeper_client import create, credential_of, fetch_grant


def turnlog(stack: Config, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TURNLOG_HOME": str(stack.home)}
    return subprocess.run(
        [sys.executable, "-m", "serve", *arguments], env=env, capture_output=True, text=True
    )


def test_the_trees_of_an_org_are_shown_without_a_key(stack: Config) -> None:
    org = f"trees_{os.getpid()}"
    create(stack, org, "support")
    [granted] = fetch_grant(stack, credential_of(stack, org)).to_json()["orgs"]
    done = turnlog(stack, "keys", "tree", "--org", org, "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["tree"] for row in rows} >= {day["tree"] for day in granted["days"]}
    assert all(
        (row["project"], row["generation"], row["pages"]) == ("support", 1, 1) for row in rows
    )
    # 14 days ahead, and today.
    assert sum(row["nodes"] for row in rows) == 15
    for day in granted["days"]:
        assert day["index_key"] not in done.stdout
        assert all(node not in done.stdout for _, _, node in day["cover"])


def test_an_org_that_is_no_id_is_a_mistake_of_the_user(stack: Config) -> None:
    done = turnlog(stack, "keys", "tree", "--org", "a b")
    assert done.returncode == 2 and "org is not an id" in done.stderr


def test_the_trees_of_an_org_that_is_not_here_are_refused(stack: Config) -> None:
    done = turnlog(stack, "keys", "tree", "--org", "nosuch")
    assert (done.returncode, done.stdout) == (2, "")
    assert "org nosuch has no credential" in done.stderr


def test_the_wrong_key_file_is_named(stack: Config, tmp_path: object) -> None:
    env = {**os.environ, "TURNLOG_HOME": str(stack.home), "TURNLOG_KEY_FILE": f"{tmp_path}/none"}
    done = subprocess.run(
        [sys.executable, "-m", "serve", "keys", "tree"], env=env, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert f"key file {tmp_path}/none cannot be read" in done.stderr
    assert "Traceback" not in done.stderr
