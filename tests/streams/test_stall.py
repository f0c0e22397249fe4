"""The watch of a consumer group on a real Kafka, and a loop whose client has fallen silent."""

import time
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from streams import batch, stall
from streams.progress import Group
from streams.stall import Watch
from tests.streams.own_topic import committed, new_topic, produce
from tests.streams.test_batch import Remembering, new_name, running, wait_for
from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.kafka import producer_settings

LIMIT_S = 0.3


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall, "LOOK_EVERY_S", 0.05)


def looked_at(watch: Watch, topic: str, seconds: float = 2.0) -> None:
    """Look often for a while."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        watch.look({(topic, 0), (topic, 1)})
        time.sleep(0.02)


def test_a_group_that_commits_nothing_while_records_wait_is_stuck(stores: Config) -> None:
    topic = new_topic(stores)
    produce(stores, topic, [b"waits"])
    watch = Watch(stores, Group(f"turnlog.{new_name()}", [topic]), LIMIT_S)
    with pytest.raises(Unavailable, match=f"records wait in {topic}/0$"):
        looked_at(watch, topic, 30.0)


def test_records_of_others_partitions_are_not_ours_to_move(stores: Config) -> None:
    topic = new_topic(stores)
    produce(stores, topic, [b"waits"], 1)
    watch = Watch(stores, Group(f"turnlog.{new_name()}", [topic]), LIMIT_S)
    until = time.monotonic() + 2
    while time.monotonic() < until:
        watch.look({(topic, 0)})
        time.sleep(0.02)
    with pytest.raises(Unavailable, match="records wait"):
        for _ in range(1000):
            watch.look(())  # who has none answers for all
            time.sleep(0.02)


def test_an_end_that_holds_no_record_is_no_stall(stores: Config) -> None:
    topic = new_topic(stores)
    producer = Producer(
        {
            **producer_settings(stores),
            "transactional.id": new_name(),
            "transaction.timeout.ms": 120_000,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"never", b"k", 0)
    producer.flush(30)
    producer.abort_transaction(30)
    watch = Watch(stores, Group(f"turnlog.{new_name()}", [topic]), LIMIT_S)
    looked_at(watch, topic, 3.0)


def test_a_kafka_that_is_away_is_no_stall(stores: Config) -> None:
    topic = new_topic(stores)
    away = stores.model_copy(update={"kafka": "127.0.0.1:1"})
    looked_at(Watch(away, Group("turnlog.test", [topic]), LIMIT_S), topic)


class Silent(Consumer):
    """A client that reads nothing any more and tells nobody, as librdkafka's does now and then."""

    def consume(self, *arguments: Any, **options: Any) -> list[Any]:
        super().consume(*arguments, **options)
        return []


def test_a_client_that_falls_silent_ends_the_worker(
    stores: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, name, sink = new_topic(stores), new_name(), Remembering()
    produce(stores, topic, [b"waits"])
    with monkeypatch.context() as silent:
        silent.setattr(batch, "LIMIT_S", LIMIT_S)
        silent.setattr(batch, "Consumer", Silent)
        with running(stores, name, topic, sink) as loop:
            error = loop.end()
    assert isinstance(error, Unavailable) and "nothing moves any more" in str(error)
    with running(stores, name, topic, sink):
        wait_for(lambda: committed(stores, f"turnlog.{name}", topic) == 1)
    assert sink.values() == [b"waits"]


def test_reading_what_is_stored_already_is_no_stall(
    stores: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take minutes, in which nothing can be committed."""
    rested: list[bool] = []

    class Resting(Watch):
        def rest(self) -> None:
            rested.append(bool(sink.recovered))
            super().rest()

    monkeypatch.setattr(batch, "Watch", Resting)
    topic, name, sink = new_topic(stores), new_name(), Remembering()
    with running(stores, name, topic, sink):
        wait_for(lambda: rested)
    assert rested == [True]


def test_a_write_that_never_ends_ends_the_worker(
    stores: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "WRITE_TIMEOUT_S", 1.0)
    monkeypatch.setattr(batch, "LEAVE_TIMEOUT_S", 0.1)
    topic, name, sink = new_topic(stores), new_name(), Remembering()
    produce(stores, topic, [b"waits"])
    sink.go_on.clear()
    with running(stores, name, topic, sink) as loop:
        error = loop.end()
        sink.go_on.set()
    assert isinstance(error, Unavailable) and "does not answer" in str(error)
