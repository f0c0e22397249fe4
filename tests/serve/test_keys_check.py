"""`turnlog keys check`, on a real stack."""

import json
import os
import subprocess
import sys
from pathlib import Path

from streams.keys.floors import FloorStore
from streams.keys_reader import TOPIC
from tests.streams.log import write_raw
from turnlog.config import Config
from turnlog.keeper_client import create, credential_of, fetch_grant, public_key_path
from turnlog.keys.heads import Floor
from turnlog.keys.rows import head_row_key


def check(stack: Config, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TURNLOG_HOME": str(stack.home), **variables}
    command = [sys.executable, "-m", "serve", "keys", "check", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True)


def elsewhere(stack: Config, home: Path) -> dict[str, str]:
    """Return what another machine sets to read this stack's topic: its floors are its own."""
    return {
        "TURNLOG_HOME": str(home),
        "TURNLOG_KAFKA": stack.kafka,
        "TURNLOG_KEY_FILE": str(stack.local_key_file),
        "TURNLOG_KEEPER_PUBLIC": public_key_path(stack).read_text().strip(),
    }


def test_trees_that_agree_are_counted_and_nothing_old_is_held(stack: Config) -> None:
    org = f"check_{os.getpid()}"
    create(stack, org, "p")
    done = check(stack, "--org", org)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("all ") and done.stdout.endswith(" trees agree\n")
    gone = check(stack, "--org", org, "--gone", "--json")
    assert (gone.returncode, json.loads(gone.stdout)) == (0, {"kept": 0, "unseen": ""})


def test_a_floor_that_the_topic_does_not_reach_is_a_line_and_exit_1(
    stack: Config, tmp_path: Path
) -> None:
    org = f"floor_{os.getpid()}"
    create(stack, org, "p")
    [granted] = fetch_grant(stack, credential_of(stack, org)).to_json()["orgs"]
    tree = granted["days"][0]["tree"]
    store = FloorStore(tmp_path / "keys" / "floors.db")
    store.raise_to({head_row_key(org, bytes.fromhex(tree)): Floor(9, bytes(32))})
    store.close()
    done = check(stack, "--org", org, "--json", **elsewhere(stack, tmp_path))
    finding, summary = map(json.loads, done.stdout.splitlines())
    assert done.returncode == 1
    assert finding == {
        "org": org,
        "tree": tree,
        "what": "floor",
        "detail": "generation 9 was seen, the topic has 1",
    }
    assert summary["findings"] == 1
    words = check(stack, "--org", org, **elsewhere(stack, tmp_path))
    assert f"{org} {tree} floor: generation 9 was seen, the topic has 1" in words.stdout


def test_of_a_kafka_elsewhere_it_is_said_what_cannot_be_seen(stack: Config, tmp_path: Path) -> None:
    done = check(stack, "--org", "local", "--gone", **elsewhere(stack, tmp_path))
    assert done.returncode == 0
    assert (
        "no old head is held; this Kafka's log directories are not on this machine" in done.stdout
    )


def test_wrong_use_is_told_without_a_trace(stack: Config, tmp_path: Path) -> None:
    done = check(stack, "--org", "a b")
    assert done.returncode == 2 and "org is not an id" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_key_that_a_terminal_would_obey_is_shown(stack: Config) -> None:
    org = f"\x1b]0;forged_{os.getpid()}\x07"
    row_key = f"{org}/{bytes(16).hex()}/{bytes(16).hex()}".encode()
    write_raw(stack, TOPIC, row_key, b"forged")
    try:
        done = check(stack)
        listed = check(stack, "--json")
    finally:
        write_raw(stack, TOPIC, row_key, None)
    shown = org.replace("\x1b", r"\x1b").replace("\x07", r"\x07")
    assert f"{shown} {bytes(16).hex()} orphans: 1 rows that no head reaches\n" in done.stdout
    assert all(line.isprintable() for line in done.stdout.splitlines())
    assert org in [json.loads(line).get("org") for line in listed.stdout.splitlines()]
