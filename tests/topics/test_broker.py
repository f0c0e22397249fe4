"""Topics on a real broker: made when missing, looked over when there, never changed."""

import json
import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

import topics
from serve.cli.topics import topics as command
from topics import Drift, Topic, broker, schemas
from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.events.schema import versions
from turnlog.kafka import client_settings, producer_settings


@pytest.fixture
def admin(stack: Config) -> AdminClient:
    return AdminClient(client_settings(stack))


@pytest.fixture
def own(stack: Config, admin: AdminClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[Topic]:
    """A catalogue of one topic that no other test knows."""
    kept = {"cleanup.policy": "delete", "segment.ms": "600000"}
    topic = Topic(f"test.{uuid.uuid4().hex}", "stream", 2, "delete", kept, retention_ms=60_000)
    monkeypatch.setattr(broker, "catalogue", lambda: (topic,))
    yield topic
    for future in admin.delete_topics([topic.name]).values():
        future.exception()


def alter(admin: AdminClient, topic: Topic, setting: str, value: str) -> None:
    entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic.name, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()


def test_the_stack_has_every_topic_as_it_should_be(stack: Config) -> None:
    assert topics.verify(stack) == []
    assert topics.ensure(stack) == []


def test_every_schema_is_published_once_under_its_fingerprint(stack: Config) -> None:
    topics.ensure(stack)
    assert schemas.published(stack) == {kind.fingerprint.hex(): kind.text for kind in versions()}
    assert schemas.publish(stack) == 0


def test_a_missing_topic_is_reported_then_made(stack: Config, own: Topic) -> None:
    assert broker.verify(stack) == [Drift(own.name, "exists", "yes", "no")]
    assert broker.create_missing(stack) == []
    assert broker.verify(stack) == []


def test_drift_is_reported_with_both_values_and_left_alone(
    stack: Config, admin: AdminClient, own: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_missing(stack)
    alter(admin, own, "retention.ms", "1000")
    wider = own._replace(partitions=4)
    monkeypatch.setattr(broker, "catalogue", lambda: (wider,))
    expected = [
        Drift(own.name, "partitions", "4", "2"),
        Drift(own.name, "retention.ms", "60000", "1000"),
    ]
    assert broker.verify(stack) == expected
    assert broker.create_missing(stack) == expected
    assert broker.verify(stack) == expected


def test_a_dead_letter_of_the_largest_record_fits(
    stack: Config, own: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, letters = topics.catalogue()[:2]
    assert letters.name == f"{source.name}.dead"
    made = own._replace(settings=letters.settings)
    monkeypatch.setattr(broker, "catalogue", lambda: (made,))
    assert broker.create_missing(stack) == []
    largest = os.urandom(int(source.settings["max.message.bytes"]))  # zstd makes it no smaller
    refused: list[object] = []
    producer = Producer(producer_settings(stack))
    producer.produce(
        made.name,
        largest,
        headers={"dlq-reason": b"r" * 1_000},
        on_delivery=lambda error, _: refused.append(error) if error else None,
    )
    assert producer.flush(30) == 0
    assert refused == []


def test_makers_at_the_same_time_do_not_disturb_each_other(stack: Config, own: Topic) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(broker.create_missing, [stack] * 4)) == [[]] * 4


def test_a_broker_that_is_away_is_said_to_be(
    stack: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "ANSWER_S", 0.2)
    with pytest.raises(Unavailable, match="kafka does not answer"):
        topics.verify(stack.model_copy(update={"kafka": "127.0.0.1:1"}))


def test_the_command_lists_topics_and_exits_by_their_state(
    stack: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = CliRunner().invoke(command, ["--json"])
    rows = [json.loads(line) for line in done.output.splitlines()]
    assert done.exit_code == 0
    assert {row["state"] for row in rows} == {"ok"}
    assert rows[0]["topic"] == "turnlog.runs"
    monkeypatch.setenv("TURNLOG_PARTITIONS", str(stack.partitions + 1))
    drifted = CliRunner().invoke(command, ["--json"])
    first = json.loads(drifted.output.splitlines()[0])
    assert drifted.exit_code == 1
    assert first["state"] == "drifted"
    assert first["drift"] == [
        {"setting": "partitions", "expected": "7", "actual": str(stack.partitions)}
    ]
    told = CliRunner().invoke(command, [])
    assert "turnlog.runs: partitions is 6, the catalogue says 7" in told.output


def test_creating_what_is_there_is_a_success(stack: Config) -> None:
    assert CliRunner().invoke(command, ["create"]).exit_code == 0


def test_the_command_lists_schemas_with_their_fingerprints() -> None:
    done = CliRunner().invoke(command, ["schemas", "--json"])
    rows = {row["event"]: row for row in map(json.loads, done.output.splitlines())}
    assert done.exit_code == 0
    assert rows["run.created"]["topic"] == "turnlog.runs"
    assert len(rows["run.created"]["fingerprint"]) == 16
