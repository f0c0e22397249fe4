"""API keys at the keeper's door: who may set one, what is refused, and what is kept of it."""

from collections.abc import Iterator

import pytest

from tests.streams.keeper_kafka import Served, at_home, named, new_topic, served
from tests.streams.test_keeper_door import admin, ask
from turnlog.apikeys import KIND, Role, key_digest, key_id, new_key
from turnlog.config import Config
from turnlog.errors import NotFound
from turnlog.kafka import read_all
from turnlog.keeper_client import create, create_apikey, credential_of, revoke_apikey


@pytest.fixture(scope="module")
def keeper(stores: Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    config = at_home(stores, tmp_path_factory.mktemp("home"))
    with served(config, new_topic(stores)) as found:
        yield found


def entries(keeper: Served) -> bytes:
    return b"".join(m.value() or b"" for m in read_all(keeper.config, "turnlog.directory"))


def test_only_the_digest_of_a_key_is_kept(keeper: Served) -> None:
    org = named("acme")
    create(keeper.config, org, "p")
    key = create_apikey(keeper.config, org, "p", Role.PRODUCER, 7)
    value = keeper.keeper.directory.value_of(org, KIND, key_id(key))
    assert value == {
        "sha256": key_digest(key),
        "project": "p",
        "role": "producer",
        "expires_at_us": "7",
    }
    stored = entries(keeper)
    assert key_id(key).encode() in stored
    assert key.split("_")[2].encode() not in stored


def test_a_revoked_key_is_gone_and_nobody_elses(keeper: Served) -> None:
    org, other = named("acme"), named("other")
    create(keeper.config, org, "p")
    create(keeper.config, other, "p")
    key = key_id(create_apikey(keeper.config, org, "p", Role.VIEWER))
    with pytest.raises(NotFound):
        revoke_apikey(keeper.config, other, key)
    assert keeper.keeper.directory.has(org, KIND, key)
    revoke_apikey(keeper.config, org, key)
    assert not keeper.keeper.directory.has(org, KIND, key)
    with pytest.raises(NotFound):
        revoke_apikey(keeper.config, org, key)


def test_keys_are_of_orgs_and_projects_that_are_there(keeper: Served) -> None:
    org = named("acme")
    with pytest.raises(NotFound, match=f"turnlog org create {org}"):
        create_apikey(keeper.config, org, "p", Role.VIEWER)
    create(keeper.config, org, "p")
    with pytest.raises(NotFound, match="--project q"):
        create_apikey(keeper.config, org, "q", Role.VIEWER)


def test_a_repeat_changes_nothing_and_another_key_of_the_id_is_refused(keeper: Served) -> None:
    org, key = named("acme"), new_key()
    create(keeper.config, org, "p")
    body = {"org": org, "project": "p", "role": "viewer", "id": key_id(key)}
    body["sha256"] = key_digest(key)
    for _ in range(2):
        assert ask(keeper, "/v1/apikeys", admin(keeper), body)[0] == 200
    status, answer = ask(keeper, "/v1/apikeys", admin(keeper), {**body, "role": "admin"})
    assert status == 400 and key_id(key) in answer["error"]


@pytest.mark.parametrize("path", ["/v1/apikeys", "/v1/apikeys/revoke"])
def test_only_the_admin_sets_and_revokes(keeper: Served, path: str) -> None:
    body = {"org": "local", "id": "0123456789ab"}
    for token in (None, "x", credential_of(keeper.config, "local").token):
        assert ask(keeper, path, token, body)[0] == 401


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"org": "a/b"}, "org"),
        ({"project": ""}, "project"),
        ({"project": 7}, "project"),
        ({"role": "root"}, "role"),
        ({"role": None}, "role"),
        ({"id": "short"}, "id"),
        ({"id": "0123456789a/"}, "id"),
        ({"sha256": "0" * 63}, "sha256"),
        ({"sha256": "G" * 64}, "sha256"),
        ({"expires_at_us": "1"}, "expires_at_us"),
        ({"expires_at_us": -1}, "expires_at_us"),
        ({"expires_at_us": 1 << 70}, "expires_at_us"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(keeper: Served, wrong: dict[str, object], says: str) -> None:
    good = {"org": "local", "project": "default", "role": "viewer"}
    good |= {"id": "0123456789ab", "sha256": "0" * 64}
    status, answer = ask(keeper, "/v1/apikeys", admin(keeper), {**good, **wrong})
    assert status == 400 and says in answer["error"]
