from collections.abc import Iterator

import pytest
from redis import Redis

from sinks.redis import connect
from sinks.redis.conversations import (
    APPLIED,
    HEAD,
    HOT_S,
    OUTCOME_S,
    Conversations,
    frame_field,
    hash_key,
    outcome_key,
    turn_field,
)
from tests.conftest import running_stack
from turnlog.config import Config, load
from turnlog.errors import Unavailable, UsageError

STREAM = b"org_a/conv_1"


@pytest.fixture(scope="module")
def config() -> Iterator[Config]:
    with running_stack(("redis",)) as running:
        yield running


@pytest.fixture
def redis(config: Config) -> Iterator[Redis]:
    with connect(config) as client:
        client.flushall()
        yield client


def test_keys_begin_with_the_org() -> None:
    assert hash_key(STREAM) == b"org_a/conversation/conv_1"
    assert outcome_key("org_a", 3, 17) == b"org_a/outcome/3/17"


def test_fields_are_added_to_a_hash_that_lives_for_a_day(redis: Redis) -> None:
    conversations = Conversations(redis)
    conversations.write({STREAM: {HEAD: b"1", turn_field("a"): b"row"}}, {})
    redis.expire(hash_key(STREAM), 10)
    conversations.write({STREAM: {HEAD: b"2", frame_field("a"): b"frame"}}, {})
    assert conversations.read(STREAM) == {HEAD: b"2", b"t:a": b"row", b"f:a": b"frame"}
    assert HOT_S - 5 <= redis.ttl(hash_key(STREAM)) <= HOT_S


def test_an_outcome_lives_for_an_hour(redis: Redis) -> None:
    conversations = Conversations(redis)
    conversations.write({}, {outcome_key("org_a", 3, 17): b"said"})
    assert conversations.outcome("org_a", 3, 17) == b"said"
    assert conversations.outcome("org_b", 3, 17) is None
    ttl = redis.ttl(outcome_key("org_a", 3, 17))
    assert OUTCOME_S - 5 <= ttl <= OUTCOME_S


def test_a_rebuilt_hash_replaces_what_is_there_field_by_field(redis: Redis) -> None:
    conversations = Conversations(redis)
    conversations.write({STREAM: {HEAD: b"old", APPLIED: b"5", b"t:gone": b"x"}}, {})
    rebuilt = {HEAD: b"new", APPLIED: b"7"} | {turn_field(f"t{n}"): b"r" for n in range(5_000)}
    assert conversations.replace(STREAM, 7, rebuilt)
    assert conversations.read(STREAM) == rebuilt
    assert redis.ttl(hash_key(STREAM)) > 0


def test_a_rebuilt_hash_does_not_replace_a_later_one(redis: Redis) -> None:
    conversations = Conversations(redis)
    conversations.write({STREAM: {HEAD: b"later", APPLIED: b"10"}}, {})
    assert not conversations.replace(STREAM, 9, {HEAD: b"earlier", APPLIED: b"9"})
    assert conversations.read(STREAM)[HEAD] == b"later"


def test_a_redis_that_is_away_is_unavailable() -> None:
    away = load(redis="redis://127.0.0.1:1/0")
    with connect(away) as client, pytest.raises(Unavailable, match="redis does not answer"):
        Conversations(client).read(STREAM)


def test_no_address_is_the_users_mistake(tmp_path: str) -> None:
    with pytest.raises(UsageError, match="redis has no address"):
        connect(load(home=tmp_path, redis=""))
