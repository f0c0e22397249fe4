"""Every route x method x identity, from the table itself: a new route is in it by being served."""

import os
import time
from collections.abc import Iterator

import pytest

from serve.doors.route import OpenRoute, Role, Route
from serve.doors.table import TABLE
from tests.serve.doors.door import Door, eventually, forged, new_key
from turnlog.apikeys import key_id
from turnlog.apikeys import new_key as fresh_key
from turnlog.keeper_client import create_apikey, revoke_apikey

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
GUARDED = [route for route in TABLE if isinstance(route, Route)]
OPEN = [route for route in TABLE if isinstance(route, OpenRoute)]
ORG = f"matrix_{os.getpid()}"


def named(route: Route | OpenRoute) -> str:
    return f"{route.method} {route.path}"


def filled(path: str, value: str = "run_of_nobody") -> str:
    return "/".join(value if part.startswith("{") else part for part in path.split("/"))


@pytest.fixture(scope="module")
def keys(door: Door) -> Iterator[dict[str, str]]:
    """Every identity: a key of each role, and those that no longer hold."""
    made = {str(role): new_key(door.config, ORG, role) for role in Role}
    made["revoked"] = new_key(door.config, ORG, Role.ADMIN)
    made["expired"] = create_apikey(
        door.config, ORG, "default", Role.ADMIN, time.time_ns() // 1000 + 1_000_000
    )
    revoke_apikey(door.config, ORG, key_id(made["revoked"]))
    last = new_key(door.config, ORG, Role.VIEWER)
    # One org's entries lie in one partition: who knows the last one knows them all.
    eventually(lambda: door.ask("GET", "/v1/runs/x", last).status == 404)
    time.sleep(1.1)
    yield made


def test_the_table_names_each_route_once_and_each_guarded_one_has_roles() -> None:
    assert len({named(route) for route in TABLE}) == len(TABLE)
    assert all(route.roles <= frozenset(Role) and route.roles for route in GUARDED)
    assert {route.path for route in OPEN} == {
        "/",
        "/healthz",
        "/readyz",
        "/metrics",
        "/openapi.json",
        "/docs",
    }


def test_a_producer_reads_no_content_and_only_writers_write() -> None:
    writers = {Role.PRODUCER, Role.ADMIN}
    for route in GUARDED:
        if route.method != "GET":
            assert route.roles <= writers, named(route)


@pytest.mark.parametrize("route", GUARDED, ids=named)
def test_without_a_good_credential_a_route_answers_401_and_the_same_to_all(
    door: Door, keys: dict[str, str], route: Route
) -> None:
    path = filled(route.path)
    good = keys["admin"]
    bad = {
        "none": None,
        "empty": "",
        "malformed": "tlk_x",
        "mistyped": good[:-1] + ("A" if good[-1] != "A" else "B"),
        "unknown": fresh_key(),
        "other secret": forged(good),
        "revoked": keys["revoked"],
        "expired": keys["expired"],
        "a token": "eyJhbGciOiJub25lIn0.e30.",
        "huge": "x" * 7000,
    }
    answers = {name: door.ask(route.method, path, key) for name, key in bad.items()}
    assert {name: answer.status for name, answer in answers.items()} == dict.fromkeys(bad, 401)
    assert all("Bearer" in answer.headers["WWW-Authenticate"] for answer in answers.values())
    without = {answers.pop(name).body for name in ("none", "empty")}
    assert len(without) == 1
    assert len({answer.body for answer in answers.values()} - without) == 1


@pytest.mark.parametrize("route", GUARDED, ids=named)
def test_each_role_gets_403_unless_the_route_names_it(
    door: Door, keys: dict[str, str], route: Route
) -> None:
    path = filled(route.path)
    statuses = {role: door.ask(route.method, path, keys[role]).status for role in Role}
    refused = {role for role, status in statuses.items() if status == 403}
    assert refused == set(Role) - route.roles, statuses
    assert not [status for status in statuses.values() if status in (401, 500)], statuses


@pytest.mark.parametrize("route", GUARDED, ids=named)
def test_a_key_in_another_place_than_the_header_is_none(
    door: Door, keys: dict[str, str], route: Route
) -> None:
    key = keys["admin"]
    path = f"{filled(route.path)}?access_token={key}&api_key={key}"
    for headers in (
        {"X-Api-Key": key},
        {"Cookie": f"key={key}"},
        {"Authorization": f"Basic {key}"},
    ):
        assert door.ask(route.method, path, None, None, headers).status == 401


@pytest.mark.parametrize("path", sorted({route.path for route in TABLE}))
def test_a_method_that_a_path_does_not_have_is_405_for_everyone(
    door: Door, keys: dict[str, str], path: str
) -> None:
    served = {route.method for route in TABLE if route.path == path}
    served |= {"HEAD"} if "GET" in served else set()
    for method in sorted(set(METHODS) - served):
        for key in (None, keys["admin"]):
            answer = door.ask(method, filled(path), key)
            assert answer.status == 405, method
            assert set(answer.headers["Allow"].split(",")) == served


@pytest.mark.parametrize("route", OPEN, ids=named)
def test_an_open_route_asks_for_nothing(door: Door, route: OpenRoute) -> None:
    answer = door.ask(route.method, route.path)
    assert answer.status == 200
    assert ORG not in answer.body.decode()
    head = door.ask("HEAD", route.path)
    assert (head.status, head.body) == (200, b"")


def test_what_is_not_in_the_table_is_not_found(door: Door, keys: dict[str, str]) -> None:
    for path in ("/v1", "/v1/", "/v1/nothing", "//", "/%2e%2e/etc/passwd", "/v1/runs/a/b/c"):
        for key in (None, keys["admin"]):
            assert door.ask("GET", path, key).status == 404, path
