"""The keeper's door over loopback: who may ask for what."""

import http.client
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.streams.keeper_kafka import Served, at_home, named, new_topic, served
from turnlog.config import Config
from turnlog.errors import Unavailable, UsageError
from turnlog.keeper_client import (
    ADMIN_FILE,
    Credential,
    create,
    credential_of,
    fetch_grant,
    load_credential,
    mint,
    new_token,
)
from turnlog.keys import Subject
from turnlog.keys.rows import id_row_key


@pytest.fixture(scope="module")
def keeper(stores: Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    config = at_home(stores, tmp_path_factory.mktemp("home"))
    with served(config, new_topic(stores)) as found:
        yield found


def ask(
    keeper: Served, path: str, token: str | None, body: Any = None, method: str = "POST"
) -> tuple[int, dict[str, Any]]:
    parts = urlsplit(keeper.config.keeper)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    data = body if isinstance(body, bytes) else json.dumps(body if body is not None else {})
    try:
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def admin(keeper: Served) -> str:
    return load_credential(keeper.config.credentials / ADMIN_FILE).token


def test_an_org_is_created_once_and_a_repeat_changes_nothing(keeper: Served) -> None:
    org = named("acme")
    made = create(keeper.config, org, "support")
    assert made.created
    assert made.credential.stat().st_mode & 0o777 == 0o600
    before = {n: dict(p.state.rows) for n, p in keeper.keeper.partitions.items()}
    token = made.credential.read_bytes()
    assert not create(keeper.config, org, "support").created
    assert {n: dict(p.state.rows) for n, p in keeper.keeper.partitions.items()} == before
    assert made.credential.read_bytes() == token


def test_a_second_project_keeps_the_orgs_id_key_and_credential(keeper: Served) -> None:
    org = named("acme")
    create(keeper.config, org, "one")
    credential = credential_of(keeper.config, org)
    id_key = fetch_grant(keeper.config, credential).id_key(org)
    create(keeper.config, org, "two")
    grant = fetch_grant(keeper.config, credential)
    assert set(grant.projects(org)) == {"one", "two"}
    assert grant.id_key(org) == id_key
    assert credential_of(keeper.config, org) == credential


def test_a_lost_credential_file_is_made_anew(keeper: Served) -> None:
    org = named("acme")
    path = create(keeper.config, org, "p").credential
    path.unlink()
    with pytest.raises(UsageError, match=f"turnlog org create {org}"):
        credential_of(keeper.config, org)
    assert not create(keeper.config, org, "p").created
    assert fetch_grant(keeper.config, credential_of(keeper.config, org)).orgs == (org,)


def test_a_grant_seals_and_opens_for_its_org_alone(keeper: Served) -> None:
    org, other = named("acme"), named("other")
    create(keeper.config, org, "p")
    create(keeper.config, other, "p")
    grant = fetch_grant(keeper.config, credential_of(keeper.config, org))
    assert grant.orgs == (org,)
    locator = grant.begin(org, "p", user="u", conversation="c", subject_id="r", kind="o")
    subject = Subject(org, "u", "c", "r", "o")
    again = fetch_grant(keeper.config, credential_of(keeper.config, org))
    assert grant.data_key(locator, subject).commit == again.data_key(locator, subject).commit
    with pytest.raises(UsageError, match=other):
        grant.data_key(locator, subject._replace(org=other))


def test_the_local_org_is_there_from_the_start(keeper: Served) -> None:
    grant = fetch_grant(keeper.config, credential_of(keeper.config, "local"))
    assert (grant.orgs, grant.projects("local")) == (("local",), ("default",))
    assert grant.expires_at_us - grant.issued_at_us == 24 * 3600 * 1_000_000


@pytest.mark.parametrize("path", ["/v1/create", "/v1/mint", "/v1/grant"])
@pytest.mark.parametrize(
    "token", [None, "", "x", f"tlc_0011223344556677_{'x' * 43}", "tlc_\xff_\xff"]
)
def test_without_a_known_credential_nothing_is_answered(
    keeper: Served, path: str, token: str | None
) -> None:
    status, answer = ask(keeper, path, token, {"org": "a", "project": "p"})
    assert status == 401
    assert set(answer) == {"error"}


def test_an_orgs_credential_creates_nothing_and_the_admins_gets_no_keys(keeper: Served) -> None:
    token = credential_of(keeper.config, "local").token
    body = {"org": named("x"), "project": "p"}
    assert ask(keeper, "/v1/create", token, body)[0] == 401
    assert ask(keeper, "/v1/mint", token)[0] == 401
    assert ask(keeper, "/v1/grant", admin(keeper))[0] == 401


def test_the_id_of_a_known_token_with_another_secret_is_refused(keeper: Served) -> None:
    held = credential_of(keeper.config, "local")
    forged = f"tlc_{held.id}_{new_token().rsplit('_', 1)[1]}"
    assert ask(keeper, "/v1/grant", forged)[0] == 401


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"org": "a b", "project": "p"}, "org"),
        ({"org": "a/b", "project": "p"}, "org"),
        ({"org": "", "project": "p"}, "org"),
        ({"org": "a" * 65, "project": "p"}, "org"),
        ({"org": "a", "project": "ü"}, "project"),
        ({"org": "a"}, "project"),
        ({"org": 3, "project": "p"}, "org"),
        ([], "object"),
        (b"{", "JSON"),
        ({"org": "a", "project": "p", "credential": 3}, "credential"),
        ({"org": "a", "project": "p", "credential": {"id": "x", "sha256": "0"}}, "credential"),
        ({"org": "a", "project": "p", "credential": {"id": "/", "sha256": "0" * 64}}, "credential"),
    ],
)
def test_what_is_wrong_in_a_request_is_named(keeper: Served, body: Any, says: str) -> None:
    status, answer = ask(keeper, "/v1/create", admin(keeper), body)
    assert status == 400
    assert says in answer["error"]


def test_a_body_over_four_megabytes_is_refused(keeper: Served) -> None:
    assert ask(keeper, "/v1/create", admin(keeper), b" " * (4 << 20) + b" {}")[0] == 413


def test_what_is_not_there_is_answered_in_json(keeper: Served) -> None:
    assert ask(keeper, "/v1/nothing", admin(keeper)) == (404, {"error": "404: Not Found"})
    assert ask(keeper, "/v1/grant", admin(keeper), method="GET")[0] == 405
    assert ask(keeper, "/health", None, method="GET") == (200, {"ok": True})


def test_a_round_of_minting_can_be_asked_for(keeper: Served) -> None:
    assert mint(keeper.config) == {"days": 0, "short": []}


def test_no_token_and_no_key_reaches_a_log(
    keeper: Served, caplog: pytest.LogCaptureFixture
) -> None:
    org = named("quiet")
    with caplog.at_level(logging.DEBUG):
        create(keeper.config, org, "p")
        grant = fetch_grant(keeper.config, credential_of(keeper.config, org))
        ask(keeper, "/v1/grant", new_token())
    logged = caplog.text
    for secret in (
        admin(keeper),
        credential_of(keeper.config, org).token,
        grant.id_key(org).hex(),
        str(grant.id_key(org)),
        grant.to_json()["orgs"][0]["days"][0]["index_key"],
    ):
        assert secret not in logged


def test_a_credential_of_an_org_without_rows_is_told_so_and_nothing_is_made(
    keeper: Served,
) -> None:
    org = named("gone")
    path = create(keeper.config, org, "p").credential
    partition = keeper.keeper._of(org)
    with partition.lock:
        partition.state.rows.pop(id_row_key(org))
    answer = ask(keeper, "/v1/grant", load_credential(path).token)
    assert answer == (409, {"error": f"row {org}/id is missing"})


def test_a_keeper_that_is_away_is_named_with_what_to_do(keeper: Served) -> None:
    away = keeper.config.model_copy(update={"keeper": "http://127.0.0.1:9"})
    with pytest.raises(Unavailable, match="turnlog up keeper"):
        fetch_grant(away, credential_of(keeper.config, "local"))


def test_something_else_at_the_keepers_address_is_not_taken_for_it(
    keeper: Served, stores: Config
) -> None:
    wrong = keeper.config.model_copy(update={"keeper": stores.clickhouse})
    with pytest.raises(Unavailable, match="not the keeper|does not answer|refused"):
        fetch_grant(wrong, credential_of(keeper.config, "local"))


def test_a_credential_shows_no_token(tmp_path: Path) -> None:
    credential = Credential(("a",), new_token())
    assert credential.token not in repr(credential)
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"orgs": ["a"], "token": credential.token}))
    path.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600") as caught:
        load_credential(path)
    assert credential.token not in str(caught.value)
    os.chmod(path, 0o600)
    assert load_credential(path) == credential


@pytest.mark.parametrize("value", [{}, {"token": "x", "orgs": []}, {"token": new_token()}])
def test_what_is_not_a_credential_is_named(tmp_path: Path, value: dict[str, Any]) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(value))
    path.chmod(0o600)
    with pytest.raises(UsageError, match=str(path)):
        load_credential(path)
