"""Compaction is real: after the cleaner no byte of what was replaced is on any disk."""

import errno
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from streams.keys.checking import Checking
from streams.keys.local_copy import copies_folder
from tests.streams.keeper_kafka import named
from tests.streams.keys_kept import Kept, index_in
from turnlog.config import Config
from turnlog.kafka import client_settings
from turnlog.keys.rows import head_row_key, page_row_key
from turnlog.keys.tree import StoredTree

PATIENCE_S = 90.0
SHORT = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "min.compaction.lag.ms": "0",
    "delete.retention.ms": "0",
    "file.delete.delay.ms": "100",
    "message.timestamp.type": "LogAppendTime",
}


@pytest.fixture(scope="module")
def quick_cleaner(stores: Config) -> Iterator[Config]:
    """Let the cleaner look for work ten times a second instead of every 15 s."""
    admin = AdminClient(client_settings(stores))
    broker = ResourceType.BROKER, "1"
    _alter(admin, broker, "log.cleaner.backoff.ms", AlterConfigOpType.SET)
    yield stores
    _alter(admin, broker, "log.cleaner.backoff.ms", AlterConfigOpType.DELETE)


def _alter(
    admin: AdminClient, place: tuple[ResourceType, str], name: str, how: AlterConfigOpType
) -> None:
    entry = ConfigEntry(name, "100", incremental_operation=how)
    resource = ConfigResource(*place, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


class Stage:
    """A keeper on a topic that is cleaned quickly, and who looks at the disks."""

    def __init__(self, stores: Config, home: Path) -> None:
        self.topic = named("test.gone")
        admin = AdminClient(client_settings(stores))
        made = NewTopic(self.topic, 1, 1, config=SHORT)
        admin.create_topics([made])[self.topic].result(30)
        self.kept = Kept(stores, home, self.topic)
        self.data = stores.home / "kafka" / "data"
        # The stack's own home, where the broker's log directory is, with this keeper's keys.
        self.at_stack = stores.model_copy(
            update={
                "key_file": self.kept.config.local_key_file,
                "keeper_public": self.kept.keeper.signer.public_key().public_bytes_raw().hex(),
            }
        )
        self.org = named("gone")
        self.kept.keeper.create(self.org, "p")

    def in_kafka(self, values: Sequence[bytes]) -> set[bytes]:
        """Return which of the values are in a file of the broker, of whatever topic."""
        return _found(self.data, values)

    def in_copies(self, values: Sequence[bytes]) -> set[bytes]:
        return _found(copies_folder(self.kept.config), values)

    def why(self) -> set[str]:
        return {kept.why for kept in Checking(self.at_stack, self.org, self.topic).kept()}

    def until_gone(self, values: list[bytes]) -> None:
        """Let heartbeats roll segments, now short ones, until no file holds any of the values.

        Until here all lies in the active segment, so that nothing can be gone too early.
        """
        admin = AdminClient(client_settings(self.kept.config))
        place = ResourceType.TOPIC, self.topic
        _alter(admin, place, "segment.ms", AlterConfigOpType.SET)
        until = time.monotonic() + PATIENCE_S
        while _found(self.data / f"{self.topic}-0", values):
            assert time.monotonic() < until, f"the cleaner did not come: {self.why()}"
            self.kept.keeper.heartbeat()
            time.sleep(0.3)


def _found(folder: Path, values: Sequence[bytes]) -> set[bytes]:
    files = [_bytes(path) for path in folder.rglob("*") if path.is_file()]
    return {value for value in values if any(value in data for data in files)}


def _bytes(path: Path) -> bytes:
    """Return a file without its holes: the indexes beside a segment are 20 MB of them."""
    parts, at = [], 0
    try:
        with path.open("rb") as file:
            while at < os.fstat(file.fileno()).st_size:
                start = os.lseek(file.fileno(), at, os.SEEK_DATA)
                at = os.lseek(file.fileno(), start, os.SEEK_HOLE)
                parts.append(os.pread(file.fileno(), at - start, start))
    except OSError as error:
        # Nothing but a hole is left, or the cleaner removed the file.
        assert error.errno in (errno.ENXIO, errno.ENOENT)
    return b"".join(parts)


@pytest.fixture
def stage(quick_cleaner: Config, tmp_path: Path) -> Stage:
    return Stage(quick_cleaner, tmp_path)


def row_values(stored: StoredTree) -> dict[bytes, bytes]:
    """Return the rows of a tree's head and first page, as ciphertext."""
    keys = (
        head_row_key(stored.org, stored.tree),
        page_row_key(stored.org, stored.tree, stored.head.page_key),
    )
    return {key: stored.rows[key] for key in keys}


def test_after_the_cleaner_no_byte_of_the_old_tree_is_left(stage: Stage) -> None:
    kept = stage.kept
    _, locator, subject = kept.begin(stage.org)
    with kept.reader(role="gone") as reader:
        stored = reader.stored_tree(stage.org, locator.tree)
        index = index_in(reader, locator, subject)
        old = list(row_values(stored).values())
        secrets = [stored.head.page_key, stored.derive(index[:32], 256), stored.covering(index)[1]]
    kept.puncture(stage.org, locator.tree, index[:32])
    # Before: the broker and the copy have every byte of it, or this test could not fail.
    assert stage.in_kafka(old) == stage.in_copies(old) == set(old)
    assert stage.why() == {"active segment"}
    with kept.reader(role="gone"):
        pass
    stage.until_gone(old)
    assert not stage.in_kafka([*old, *secrets]) | stage.in_copies([*old, *secrets])
    assert stage.why() == set()
    with kept.reader([stage.org]) as reader:
        assert reader.stored_tree(stage.org, locator.tree).head.gen == 2


def test_an_open_transaction_keeps_an_old_head_and_is_named(stage: Stage) -> None:
    kept = stage.kept
    _, locator, subject = kept.begin(stage.org)
    with kept.reader([stage.org]) as reader:
        index = index_in(reader, locator, subject)
        old = list(row_values(reader.stored_tree(stage.org, locator.tree)).values())
    hanging = Producer({**client_settings(kept.config), "transactional.id": f"hang-{stage.topic}"})
    hanging.init_transactions(30)
    hanging.begin_transaction()
    hanging.produce(stage.topic, b"x", b"hanging", 0)
    assert hanging.flush(30) == 0
    kept.puncture(stage.org, locator.tree, index[:32])
    assert stage.why() == {"open transaction"}
    assert stage.in_kafka(old) == set(old)
    hanging.abort_transaction(30)
    stage.until_gone(old)
    assert stage.why() == set()


def test_a_copy_that_nobody_opens_any_more_is_named(stage: Stage) -> None:
    kept = stage.kept
    _, locator, subject = kept.begin(stage.org)
    at_stack = stage.at_stack.model_copy(update={"home": kept.config.home})
    with kept.reader(role="left") as reader:
        index = index_in(reader, locator, subject)
    kept.puncture(stage.org, locator.tree, index[:32])
    found = list(Checking(at_stack, stage.org, stage.topic).kept())
    assert [(one.why, one.where, one.generation) for one in found if one.why == "local copy"] == [
        ("local copy", "copy left", 1)
    ]


def test_of_a_remote_kafka_it_says_what_cannot_be_seen(stage: Stage) -> None:
    kept = stage.kept
    _, locator, subject = kept.begin(stage.org)
    with kept.reader([stage.org]) as reader:
        index = index_in(reader, locator, subject)
    kept.puncture(stage.org, locator.tree, index[:32])
    elsewhere = Checking(
        stage.at_stack.model_copy(update={"home": kept.config.home}), stage.org, stage.topic
    )
    assert {one.why for one in elsewhere.kept()} <= {"in the log"}
    assert "cannot be seen from here" in elsewhere.summary(0, gone=True)["unseen"]
