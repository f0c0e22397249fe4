"""What a reader remembers on disk: floors that outlive it, and a copy that it starts from."""

import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from streams.keys import local_copy
from streams.keys.floors import FloorStore, floors_path
from streams.keys.local_copy import copies_folder, open_rows, read_meta, read_rows
from streams.keys_reader import KeyReader
from tests.streams.keeper_kafka import named, new_topic
from tests.streams.keys_kept import Kept, index_in
from turnlog.config import Config
from turnlog.errors import Erased, KeyUnavailable
from turnlog.kafka import producer_settings, read_all
from turnlog.keys.rows import head_row_key


@pytest.fixture(scope="module")
def kept(stores: Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    yield Kept(stores, tmp_path_factory.mktemp("home"))


def copied(config: Config, topic: str) -> str:
    """Return a topic that holds what this one holds now, as a restored backup does."""
    backup = new_topic(config)
    producer = Producer(producer_settings(config))
    for message in read_all(config, topic):
        producer.produce(backup, message.value(), message.key(), message.partition() or 0)
    assert producer.flush(30) == 0
    return backup


def test_5_an_old_head_with_all_its_pages_is_refused_by_the_floor(
    kept: Kept, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    org, other = named("rolled"), named("rolled_other")
    for name in (org, other):
        kept.keeper.create(name, "p")
    _, locator, subject = kept.begin(org)
    _, foreign, others = kept.begin(other)
    with kept.reader() as reader:
        before = reader.data_key(locator, subject).commit
        index = index_in(reader, locator, subject)
    backup = copied(kept.config, kept.topic)
    kept.puncture(org, locator.tree, index[:32])
    with kept.reader() as reader, pytest.raises(Erased):
        reader.data_key(locator, subject)
    caplog.set_level(logging.ERROR)
    with KeyReader(kept.config, topic=backup) as reader:
        with pytest.raises(KeyUnavailable, match="generation 1 in the log, 2 seen before"):
            reader.data_key(locator, subject)
        assert "a head of a key tree is refused" in caplog.text
        # The others' trees stood still and are read as ever.
        assert reader.data_key(foreign, others).commit
    # It is the floor alone that refuses: a home that never saw the puncture believes the backup.
    fresh = kept.config.model_copy(
        update={
            "home": tmp_path,
            "key_file": kept.config.local_key_file,
            "keeper_public": kept.keeper.signer.public_key().public_bytes_raw().hex(),
        }
    )
    with KeyReader(fresh, topic=backup) as reader:
        assert reader.data_key(locator, subject).commit == before


def test_a_floor_is_on_disk_before_a_new_head_is_used(kept: Kept) -> None:
    org = named("floor")
    kept.keeper.create(org, "p")
    _, locator, subject = kept.begin(org)
    head = head_row_key(org, locator.tree)
    with kept.reader([org]) as reader:
        kept.puncture(org, locator.tree, index_in(reader, locator, subject)[:32])
        reader.catch_up()
        with pytest.raises(Erased):
            reader.data_key(locator, subject)
        store = FloorStore(floors_path(kept.config))
        assert store.load()[head] == reader.floors()[head]
        assert store.load()[head].gen == 2
        store.close()


def test_a_tree_whose_head_was_seen_once_and_is_missing_is_not_no_tree(
    kept: Kept, stores: Config, caplog: pytest.LogCaptureFixture
) -> None:
    org = named("emptied")
    kept.keeper.create(org, "p")
    _, locator, subject = kept.begin(org)
    with kept.reader([org]) as reader:
        reader.data_key(locator, subject)
    with KeyReader(kept.config, [org], topic=new_topic(stores)) as reader:
        with pytest.raises(KeyUnavailable, match="seen once and is missing"):
            reader.data_key(locator, subject)
        assert "missing now" in caplog.text


def test_a_reader_starts_from_its_copy_and_reads_what_came_since(kept: Kept) -> None:
    org = named("copy")
    kept.keeper.create(org, "p")
    _, locator, subject = kept.begin(org)
    _, _, other = kept.begin(org, "run_2")
    folder = copies_folder(kept.config) / "tested"
    with kept.reader(role="tested") as reader:
        wanted = reader.data_key(locator, subject).commit
        index = index_in(reader, locator, other)
        rows = dict(reader.rows())
    stored = open_rows(folder)
    meta = read_meta(stored)
    assert meta is not None
    assert read_rows(stored, meta) == rows
    # A row that is in the copy alone: who starts from the copy has it.
    stored[b"r/mark/mark"] = b"1"
    one_more = meta._replace(rows=meta.rows + 1)
    stored[b"meta"] = json.dumps(one_more._asdict()).encode()
    stored.flush()
    stored.close()
    kept.puncture(org, locator.tree, index[:32])
    with kept.reader(role="tested") as reader:
        assert b"mark/mark" in reader.rows()
        assert reader.data_key(locator, subject).commit == wanted
        with pytest.raises(Erased):
            reader.data_key(locator, other)
    with kept.reader() as reader:
        assert b"mark/mark" not in reader.rows()


def test_a_copy_never_brings_an_older_head_back(kept: Kept) -> None:
    org = named("stale")
    kept.keeper.create(org, "p")
    _, locator, subject = kept.begin(org)
    with kept.reader(role="stale") as reader:
        index = index_in(reader, locator, subject)
    kept.puncture(org, locator.tree, index[:32])
    # Another process has seen the puncture; this copy has not.
    with kept.reader() as reader, pytest.raises(Erased):
        reader.data_key(locator, subject)
    with kept.reader(role="stale") as reader, pytest.raises(Erased):
        reader.data_key(locator, subject)


def test_a_running_reader_lets_go_of_a_copy_that_has_become_too_old(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    org = named("aged")
    kept.keeper.create(org, "p")
    _, locator, subject = kept.begin(org)
    folder = copies_folder(kept.config) / "aged"
    with kept.reader(role="aged") as reader:
        assert folder.exists()
        monkeypatch.setattr(local_copy, "MAX_AGE_S", 0)
        until = time.monotonic() + 30
        while folder.exists() and time.monotonic() < until:
            time.sleep(0.05)
        assert not folder.exists()
        assert reader.data_key(locator, subject).commit


def test_a_second_reader_of_a_role_reads_the_topic(kept: Kept) -> None:
    org = named("two")
    kept.keeper.create(org, "p")
    _, locator, subject = kept.begin(org)
    with kept.reader(role="shared") as one, kept.reader(role="shared") as two:
        assert one.data_key(locator, subject).commit == two.data_key(locator, subject).commit


def test_what_a_running_reader_saw_removed_leaves_its_copys_files(kept: Kept) -> None:
    org = named("purged")
    kept.keeper.create(org, "p")
    _, locator, subject = kept.begin(org)
    folder = copies_folder(kept.config) / "purged"
    with kept.reader(role="purged") as reader:
        index = index_in(reader, locator, subject)
        stored = reader.stored_tree(org, locator.tree)
        kept.puncture(org, locator.tree, index[:32])
        reader.catch_up()
    old = kept.keeper._of(org).state.rows
    assert head_row_key(org, locator.tree) in old
    data = b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())
    assert old[head_row_key(org, locator.tree)] in data
    assert stored.head.digest in data  # as `prev` of the new head
    assert stored.head.page_key not in data
    with kept.reader(role="purged") as reader:
        assert reader.stored_tree(org, locator.tree).head.gen == 2


def test_no_copy_and_no_floor_holds_a_secret(kept: Kept) -> None:
    org = named("secret")
    kept.keeper.create(org, "p")
    _, locator, subject = kept.begin(org)
    with kept.reader(role="secret") as reader:
        tree = reader.stored_tree(org, locator.tree)
        secrets = [tree.head.page_key, tree.head.index_key, reader.id_key(org)]
        secrets += [node.node for node in tree.cover()]
        secrets += [kept.keeper._book(kept.keeper._of(org)).sealer(org).org_key]
        assert reader.data_key(locator, subject)
    for folder, _, names in os.walk(kept.config.home / "keys"):
        for name in names:
            if name != "local.key":
                data = (Path(folder) / name).read_bytes()
                assert not any(secret in data for secret in secrets), name
