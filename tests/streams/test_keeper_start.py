"""How a keeper starts: first, again, and with the wrong key file."""

from pathlib import Path

import pytest

from streams.keeper.service import HEARTBEAT_KEY
from streams.keeper.start import start
from tests.streams.keeper_kafka import at_home, keeper_of, new_topic
from turnlog.config import Config
from turnlog.errors import UsageError
from turnlog.kafka import read_all
from turnlog.keeper_client import public_key_path
from turnlog.keys.keyfile import create_key_file, load_key_file


def rows(config: Config, topic: str) -> int:
    return sum(1 for _ in read_all(config, topic))


def test_a_first_start_makes_what_others_need(stores: Config, tmp_path: Path) -> None:
    config, topic = at_home(stores, tmp_path), new_topic(stores)
    keeper, admin = start(config, topic)
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert made == {
        "keys/local.key",
        "keys/keeper.pub",
        "keys/floors.db",
        "credentials/keeper.admin.json",
        "credentials/local.json",
    }
    assert config.local_key_file.stat().st_mode & 0o777 == 0o600
    public = load_key_file(config.local_key_file).public_hex
    assert public_key_path(config).read_text().strip() == public
    assert admin.orgs == ()
    assert keeper.grant(["local"]).projects("local") == ("default",)


def test_a_second_start_changes_nothing(stores: Config, tmp_path: Path) -> None:
    config, topic = at_home(stores, tmp_path), new_topic(stores)
    first = keeper_of(config, topic)
    grant, count = first.grant(["local"]), rows(stores, topic)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    again = keeper_of(config, topic)
    assert rows(stores, topic) == count
    assert {path: path.read_bytes() for path in files} == files
    assert again.grant(["local"]).id_key("local") == grant.id_key("local")


def test_a_missing_key_file_beside_rows_is_never_replaced(stores: Config, tmp_path: Path) -> None:
    config, topic = at_home(stores, tmp_path), new_topic(stores)
    keeper = keeper_of(config, topic)
    config.local_key_file.rename(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=f"{config.local_key_file} is missing.*put it back"):
        start(config, topic)
    assert not config.local_key_file.exists()
    # Nobody was fenced for it.
    keeper.heartbeat()


def test_another_key_file_is_named_and_fences_nobody(stores: Config, tmp_path: Path) -> None:
    config, topic = at_home(stores, tmp_path), new_topic(stores)
    keeper = keeper_of(config, topic)
    config.local_key_file.unlink()
    create_key_file(config.local_key_file)
    before = rows(stores, topic)
    with pytest.raises(UsageError, match=f"key file {config.local_key_file} is not the key"):
        start(config, topic)
    assert rows(stores, topic) == before
    keeper.heartbeat()


def test_a_key_file_made_before_the_first_start_is_used(stores: Config, tmp_path: Path) -> None:
    config = at_home(stores, tmp_path)
    made = create_key_file(config.local_key_file)
    keeper_of(config, new_topic(stores))
    assert load_key_file(config.local_key_file).public_hex == made.public_hex


def test_a_stale_public_key_is_written_anew(stores: Config, tmp_path: Path) -> None:
    config, topic = at_home(stores, tmp_path), new_topic(stores)
    keeper_of(config, topic)
    public_key_path(config).write_text("0" * 64)
    keeper_of(config, topic)
    public = load_key_file(config.local_key_file).public_hex
    assert public_key_path(config).read_text().strip() == public


def test_a_configured_public_key_that_is_another_is_refused(stores: Config, tmp_path: Path) -> None:
    config = at_home(stores, tmp_path).model_copy(update={"keeper_public": "0" * 64})
    create_key_file(config.local_key_file)
    with pytest.raises(UsageError, match="keeper_public"):
        start(config, new_topic(stores))


def test_heartbeats_alone_do_not_make_a_topic_used(stores: Config, tmp_path: Path) -> None:
    topic = new_topic(stores)
    one = at_home(stores, tmp_path / "one")
    keeper = keeper_of(one, topic)
    keeper.heartbeat()
    beats = [m.value() for m in read_all(stores, topic) if m.key() == HEARTBEAT_KEY]
    assert len(beats) == 2
    assert all(value and value[:1] == b"\1" and len(value) == 9 for value in beats)


def test_every_row_of_an_org_lies_in_its_partition(stores: Config, tmp_path: Path) -> None:
    topic = new_topic(stores)
    keeper = keeper_of(at_home(stores, tmp_path), topic)
    for org in ("a", "b", "c", "d"):
        keeper.create(org, "p")
    partitions: dict[bytes, set[int | None]] = {}
    for message in read_all(stores, topic):
        name = (message.key() or b"").split(b"/")[0]
        partitions.setdefault(name, set()).add(message.partition())
    assert set(partitions) == {b"local", b"a", b"b", b"c", b"d"}
    assert all(len(found) == 1 for found in partitions.values())
    assert len(set.union(*partitions.values())) == 2
