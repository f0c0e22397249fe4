"""The catalogue: what DESIGN.md says about topics, as data."""

import pytest

from topics import Topic, catalogue
from turnlog.config import Config, load
from turnlog.events import TYPES

BY_NAME = {topic.name: topic for topic in catalogue()}
DAY_MS = 86_400_000

DESIGNED = {
    "turnlog.runs": ("delete", 7),
    "turnlog.run-chunks": ("delete", 2),
    "turnlog.turns": ("delete", 7),
    "turnlog.usage": ("delete", 7),
    "turnlog.refusals": ("delete", 30),
    "turnlog.ledger": ("compact", None),
    "turnlog.directory": ("compact", None),
    "turnlog.billing": ("delete", 30),
    "turnlog.audit": ("delete", 30),
    "turnlog.erasures": ("delete", 30),
    "turnlog.keys": ("compact", None),
    "turnlog.packs": ("compact", None),
    "turnlog.schemas": ("compact", None),
}


@pytest.fixture
def production() -> Config:
    return load(kafka="broker:9092", partitions=96, replication=3, min_insync=2)


@pytest.mark.parametrize("name", DESIGNED)
def test_policies_are_those_of_the_design(name: str, production: Config) -> None:
    policy, days = DESIGNED[name]
    settings = BY_NAME[name].expected(production)
    assert settings["cleanup.policy"] == policy
    assert settings.get("retention.ms") == (None if days is None else str(days * DAY_MS))
    assert settings["message.timestamp.type"] == "LogAppendTime"
    assert settings["min.insync.replicas"] == "2"


def test_topics_of_the_stream_key_share_one_number_of_partitions(production: Config) -> None:
    streams = [topic for topic in catalogue() if topic.key == "stream"]
    assert [topic.name.removeprefix("turnlog.") for topic in streams] == [
        *("runs", "run-chunks", "turns", "usage", "refusals")
    ]
    tables = [topic for topic in catalogue() if topic.policy == "changelog"]
    assert {topic.partition_count(production) for topic in (*streams, *tables)} == {96}


def test_wrapped_keys_leave_the_disks_soon(production: Config) -> None:
    settings = BY_NAME["turnlog.keys"].expected(production)
    assert settings["segment.ms"] == "600000"
    assert settings["max.compaction.lag.ms"] == "3600000"
    assert settings["min.cleanable.dirty.ratio"] == "0.01"
    assert settings["delete.retention.ms"] == "1209600000"


def test_every_event_has_a_topic_and_every_topic_its_events() -> None:
    homes = {kind.topic for kind in TYPES.values()}
    assert homes <= BY_NAME.keys()
    assert "run.completed" in BY_NAME["turnlog.runs"].events
    assert BY_NAME["turnlog.keys"].events == ()


def test_what_consumers_read_has_dead_letters_of_its_width(production: Config) -> None:
    for topic in catalogue():
        if not topic.dead:
            continue
        letters = BY_NAME[f"{topic.name}.dead"]
        assert letters.partition_count(production) == topic.partition_count(production)
        assert letters.expected(production)["retention.ms"] == str(30 * DAY_MS)
        # The original, as large as Kafka took it, and headers that say where it came from.
        assert int(letters.settings["max.message.bytes"]) > int(topic.settings["max.message.bytes"])


def test_the_archive_holds_what_the_design_says() -> None:
    archived = {topic.name.removeprefix("turnlog.") for topic in catalogue() if topic.archived}
    assert archived == {"runs", "turns", "usage", "billing", "erasures", "schemas"}


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(catalogue())
    assert all(isinstance(topic, Topic) for topic in catalogue())
