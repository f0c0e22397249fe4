"""One run over HTTP: at once, as each role may see it, and to no one else."""

import os
from typing import Any

import pytest

from serve.doors.route import Role
from tests.serve.doors.door import Door, eventually, new_key

ORG = f"views_{os.getpid()}"


@pytest.fixture(scope="module")
def keys(door: Door) -> dict[str, str]:
    made = {str(role): new_key(door.config, ORG, role) for role in Role}
    made["other project"] = new_key(door.config, ORG, Role.ADMIN, "other")
    made["other org"] = new_key(door.config, f"{ORG}_other", Role.ADMIN)
    for last in ("other project", "other org"):
        eventually(lambda key=made[last]: door.ask("GET", "/v1/runs/x", key).status == 404)
    return made


@pytest.fixture(scope="module")
def run(door: Door, keys: dict[str, str]) -> str:
    """A run that is in the view."""
    key = keys["producer"]
    begun = door.ask("POST", "/v1/runs", key, {"provider": "openai", "request": {"q": "why"}})
    run: str = begun.json["run"]
    assert door.ask("GET", f"/v1/runs/{run}", key).json == {"run": run, "status": "running"}
    door.ask("POST", f"/v1/runs/{run}/chunks", key, ["a secret"])
    ended = door.ask("POST", f"/v1/runs/{run}/complete", key, {"response": {"a": "a secret"}})
    assert ended.status == 200, ended.body
    eventually(lambda: is_packed(shown(door, keys["admin"], run)))
    return run


def is_packed(found: dict[str, Any]) -> bool:
    """Say whether the packs hold both ends: until then references move from Kafka to there."""
    refs = (found.get(name, "") for name in ("request_ref", "content_ref"))
    return all(ref.startswith("s3://") for ref in refs)


def shown(door: Door, key: str, run: str) -> dict[str, Any]:
    answer = door.ask("GET", f"/v1/runs/{run}", key)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    return found


def test_each_role_sees_what_it_may(door: Door, keys: dict[str, str], run: str) -> None:
    whole = shown(door, keys["admin"], run)
    assert whole["status"] == "completed" and whole["provider"] == "openai"
    assert whole["output"][0]["text"] == "a secret"
    assert shown(door, keys["viewer"], run) == shown(door, keys["editor"], run) == whole
    audited = shown(door, keys["auditor"], run)
    assert audited == {name: whole[name] for name in whole if name not in ("output", "error")}
    assert shown(door, keys["producer"], run) == {"run": run, "status": "completed"}


def test_a_foreign_run_a_missing_one_and_another_projects_are_one_answer(
    door: Door, keys: dict[str, str], run: str
) -> None:
    asked = [
        (keys["other org"], run),
        (keys["other project"], run),
        (keys["admin"], "run_that_never_was"),
        (keys["admin"], "a name / that a client gave"),
    ]
    answers = [
        door.ask("GET", f"/v1/runs/{name.replace(' ', '%20').replace('/', '%2F')}", key)
        for key, name in asked
    ]
    assert {answer.status for answer in answers} == {404}
    assert len({answer.body for answer in answers}) == 1
    headers = [{**answer.headers, "Date": ""} for answer in answers]
    assert all(found == headers[0] for found in headers)


def test_a_young_run_is_nobody_elses_either(door: Door, keys: dict[str, str]) -> None:
    run = door.ask("POST", "/v1/runs", keys["producer"], {}).json["run"]
    missing = door.ask("GET", "/v1/runs/none", keys["admin"])
    for other in ("other org", "other project"):
        answer = door.ask("GET", f"/v1/runs/{run}", keys[other])
        assert (answer.status, answer.body) == (404, missing.body)
    assert door.ask("POST", f"/v1/runs/{run}/cancel", keys["producer"], {}).status == 200
