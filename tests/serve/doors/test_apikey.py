"""Keys: their form, the command, and that a revocation holds in a running server."""

import json
import os
import re
import subprocess
import sys
import time

import pytest

from serve.doors.keys import KeyBook
from tests.serve.doors.door import Door, eventually, forged, new_key
from turnlog.apikeys import Role, key_digest, key_id
from turnlog.apikeys import new_key as fresh_key
from turnlog.config import Config
from turnlog.errors import NotFound, UsageError
from turnlog.events import record
from turnlog.ids import event_id
from turnlog.keeper_client import create, create_apikey, revoke_apikey

FORM = r"tlk_[0-9A-Za-z]{12}_[0-9A-Za-z]{43}_[0-9A-Za-z]{6}"


def turnlog(stack: Config, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TURNLOG_HOME": str(stack.home)}
    return subprocess.run(
        [sys.executable, "-m", "serve", "apikey", *arguments],
        env=env,
        capture_output=True,
        text=True,
    )


def entry(org: str, id: str, value: dict[str, str], revoked: bool = False) -> bytes:
    body = {
        "org": org,
        "event_id": event_id(org, "", "directory.entry", f"{id}{revoked}"),
        "kind": "apikey",
        "id": id,
        "value": value,
        "revoked": revoked,
        "occurred_at_us": 1,
    }
    return record("directory.entry", body).value


def test_a_key_has_its_form_and_a_mistyped_one_is_none() -> None:
    keys = [fresh_key() for _ in range(200)]
    assert all(re.fullmatch(FORM, key) for key in keys)
    assert len({key_id(key) for key in keys}) == 200
    for key in keys[:20]:
        other = "A" if key[30] != "A" else "B"
        assert key_id(key[:30] + other + key[31:]) == ""
        assert key_id(key + "x") == key_id(key[:-1]) == key_id(f" {key}") == ""


def test_a_book_knows_a_key_until_it_is_revoked_or_expired() -> None:
    key, book = fresh_key(), KeyBook()
    value = {"sha256": key_digest(key), "project": "p", "role": "viewer", "expires_at_us": "500"}
    book.take(entry("acme", key_id(key), value))
    found = book.find(key, 499)
    assert found is not None and found == ("acme", "p", Role.VIEWER, key_id(key))
    assert book.find(key, 500) is None
    assert book.find(fresh_key(), 1) is None
    assert key_id(forged(key)) == key_id(key)
    assert book.find(forged(key), 1) is None
    book.take(entry("acme", key_id(key), {}, revoked=True))
    assert book.find(key, 1) is None


def test_a_second_org_cannot_take_a_key_over() -> None:
    key, book = fresh_key(), KeyBook()
    value = {"sha256": key_digest(key), "project": "p", "role": "viewer"}
    book.take(entry("acme", key_id(key), value))
    book.take(entry("evil", key_id(key), {**value, "role": "admin"}))
    book.take(entry("evil", key_id(key), {}, revoked=True))
    found = book.find(key, 1)
    assert found is not None and found.org == "acme"


def test_an_entry_that_cannot_be_read_is_nobodys() -> None:
    book = KeyBook()
    book.take(entry("acme", "0123456789ab", {"sha256": "x"}))
    book.take(b"no event")
    book.take(None)
    assert book.of_org("acme") == []


def test_the_command_makes_lists_and_revokes(stack: Config) -> None:
    org = f"keys_{os.getpid()}"
    create(stack, org, "support")
    made = turnlog(stack, "create", "--org", org, "--project", "support", "--role", "producer",
                   "--expires-days", "2", "--json")  # fmt: skip
    assert made.returncode == 0, made.stderr
    shown = json.loads(made.stdout)
    assert re.fullmatch(FORM, shown["key"])
    assert (shown["id"], shown["org"], shown["role"]) == (key_id(shown["key"]), org, "producer")
    plain = turnlog(stack, "create", "--org", org, "--project", "support", "--role", "viewer")
    assert re.fullmatch(FORM, plain.stdout.strip())
    listed = turnlog(stack, "list", "--org", org, "--json")
    rows = {row["id"]: row for row in map(json.loads, listed.stdout.splitlines())}
    assert rows[shown["id"]]["role"] == "producer" and rows[shown["id"]]["expires_at"]
    assert rows[key_id(plain.stdout.strip())]["expires_at"] is None
    assert shown["key"] not in listed.stdout
    revoked = turnlog(stack, "revoke", shown["id"], "--org", org, "--json")
    assert json.loads(revoked.stdout) == {"id": shown["id"], "org": org, "revoked": True}
    assert shown["id"] not in turnlog(stack, "list", "--org", org, "--json").stdout


def test_what_is_not_there_is_said_in_one_line(stack: Config) -> None:
    org = f"keys_none_{os.getpid()}"
    for arguments, says in (
        (("create", "--org", org, "--role", "viewer"), f"turnlog org create {org}"),
        (("create", "--org", "local", "--project", "nope", "--role", "viewer"), "--project nope"),
        (("revoke", "0123456789ab", "--org", "local"), "no API key 0123456789ab"),
    ):
        done = turnlog(stack, *arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert says in done.stderr and "Traceback" not in done.stderr
    for wrong in (
        ("revoke", "x", "--org", "local"),
        ("create", "--org", "a b", "--role", "viewer"),
    ):
        assert turnlog(stack, *wrong).returncode == 2


def test_the_keeper_takes_a_repeat_and_no_other_key_of_the_same_id(stack: Config) -> None:
    with pytest.raises(NotFound):
        revoke_apikey(stack, "local", "0123456789ab")
    with pytest.raises(UsageError, match="id"):
        revoke_apikey(stack, "local", "../x")
    with pytest.raises(UsageError, match="expires_at_us"):
        create_apikey(stack, "local", "default", Role.VIEWER, -1)


def test_a_revoked_key_stops_working_in_a_running_server(door: Door) -> None:
    key = new_key(door.config, f"revoke_{os.getpid()}", Role.VIEWER)
    path = "/v1/runs/none"
    eventually(lambda: door.ask("GET", path, key).status == 404)
    revoke_apikey(door.config, f"revoke_{os.getpid()}", key_id(key))
    eventually(lambda: door.ask("GET", path, key).status == 401)


def test_an_expired_key_is_refused_as_an_unknown_one(door: Door) -> None:
    org = f"expire_{os.getpid()}"
    new_key(door.config, org, Role.VIEWER)
    soon_us = time.time_ns() // 1000 + 5_000_000
    key = create_apikey(door.config, org, "default", Role.VIEWER, soon_us)
    eventually(lambda: door.ask("GET", "/v1/runs/none", key).status == 404)
    eventually(lambda: door.ask("GET", "/v1/runs/none", key).status == 401)
    unknown = door.ask("GET", "/v1/runs/none", fresh_key())
    assert door.ask("GET", "/v1/runs/none", key).body == unknown.body
