import json
from pathlib import Path

import pytest

from turnlog.config import load
from turnlog.errors import UsageError
from turnlog.keeper_client import credential_of


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stack's home with nothing else said in the environment."""
    import os

    for name in [name for name in os.environ if name.startswith("TURNLOG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TURNLOG_HOME", str(tmp_path))
    return tmp_path


def test_arguments_stand_over_environment_over_toml_over_the_local_stack(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = {"kafka": "k:1", "s3": "http://s:1", "redis": "redis://r:1", "keeper": "http://p:1"}
    (home / "addresses.json").write_text(json.dumps(addresses))
    toml = home / "turnlog.toml"
    toml.write_text('s3 = "http://s:2"\nredis = "redis://r:2"\nkeeper = "http://p:2"\nodd = 1\n')
    monkeypatch.setenv("TURNLOG_CONFIG", str(toml))
    monkeypatch.setenv("TURNLOG_REDIS", "redis://r:3")
    monkeypatch.setenv("TURNLOG_KEEPER", "http://p:3")
    config = load(keeper="http://p:4")
    assert config.kafka == "k:1"
    assert (config.s3, config.redis, config.keeper) == ("http://s:2", "redis://r:3", "http://p:4")


def test_an_empty_variable_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNLOG_PARTITIONS", "")
    assert load().partitions == 6
    monkeypatch.setenv("TURNLOG_PARTITIONS", "12")
    assert load().partitions == 12


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("TURNLOG_PARTITIONS", "many", "partitions"),
        ("TURNLOG_KEEPER_PUBLIC", "AB", "keeper_public"),
        ("TURNLOG_PACK_MAX_AGE_S", "0", "pack_max_age_s"),
        ("TURNLOG_REDIS", "garbage", "redis"),
        ("TURNLOG_REDIS", "redis://127.0.0.1:abc", "redis"),
        ("TURNLOG_S3", "garbage", "s3"),
        ("TURNLOG_CLICKHOUSE", "http://127.0.0.1:99999", "clickhouse"),
        ("TURNLOG_KEEPER", "127.0.0.1:7070", "keeper"),
        ("TURNLOG_KAFKA", "127.0.0.1:9092,", "kafka"),
        ("TURNLOG_KAFKA", "127.0.0.1:port", "kafka"),
    ],
)
def test_a_wrong_value_is_named_by_its_field(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, field: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=f"config field {field}: "):
        load()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TURNLOG_KAFKA", "one:9092,[::1]:9093,three"),
        ("TURNLOG_REDIS", "rediss://me:secret@h:6379/0"),
        ("TURNLOG_REDIS", "unix:///run/redis.sock"),
        ("TURNLOG_S3", "https://s3.eu-central-1.amazonaws.com"),
    ],
)
def test_an_address_that_can_be_is_taken(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert getattr(load(), name.removeprefix("TURNLOG_").lower()) == value


def test_a_wrong_address_with_a_password_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNLOG_REDIS", "redis://me:secret@h:abc")
    with pytest.raises(UsageError) as told:
        load()
    assert str(told.value) == "config field redis: needs an address like redis://host:port"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("addresses.json", "not json"),
        ("addresses.json", "[]"),
        ("turnlog.toml", "not = toml = at all"),
    ],
)
def test_a_file_that_is_not_what_it_claims_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str
) -> None:
    (home / file).write_text(text)
    if file.endswith("toml"):
        monkeypatch.setenv("TURNLOG_CONFIG", str(home / file))
    with pytest.raises(UsageError, match=file):
        load()


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNLOG_S3_SECRET_KEY", "very-secret")
    assert "very-secret" not in repr(load())
    assert load().s3_secret_key.get_secret_value() == "very-secret"


def test_the_home_is_absolute_where_nobody_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TURNLOG_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    assert load().home == tmp_path / ".turnlog"


def test_a_home_that_is_not_there_is_no_stack(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TURNLOG_HOME", str(tmp_path / "none"))
    with pytest.raises(UsageError, match=f"no stack at {tmp_path}/none: set TURNLOG_HOME"):
        load().need("kafka")
    with pytest.raises(UsageError, match=f"no stack at {tmp_path}/none: set TURNLOG_HOME"):
        credential_of(load(), "local")
