"""The transactional writer of a partition, on a real broker."""

import pytest
from confluent_kafka import Producer

from streams.keeper.directory import entry, records
from streams.keeper.partition import Fenced, KeyPartition, _settings, take_over
from tests.streams.keeper_kafka import named, new_topic
from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.events import decode
from turnlog.kafka import read_all
from turnlog.keys.rows import Row


@pytest.fixture
def topic(stores: Config) -> str:
    return new_topic(stores)


def stored(config: Config, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    return [(message.key(), message.value()) for message in read_all(config, topic)]


def test_rows_are_there_for_the_next_keeper(stores: Config, topic: str) -> None:
    first = take_over(stores, 1, topic)
    first.write([(b"a", b"1"), (b"b", b"2")])
    first.write([(b"a", b"3"), (b"b", None)])
    assert first.state.rows == {b"a": b"3"}
    assert take_over(stores, 1, topic).state.rows == {b"a": b"3"}
    assert take_over(stores, 0, topic).state.rows == {}


def test_6_a_keeper_whose_partition_was_taken_is_fenced_for_good(
    stores: Config, topic: str
) -> None:
    old = take_over(stores, 0, topic)
    old.write([(b"a", b"1")])
    new = take_over(stores, 0, topic)
    with pytest.raises(Fenced, match="another keeper"):
        old.write([(b"a", b"stale")])
    with pytest.raises(Fenced):
        old.ready()
    new.write([(b"b", b"2")])
    assert stored(stores, topic) == [(b"a", b"1"), (b"b", b"2")]


def test_6_what_a_stopped_keeper_had_in_flight_is_invisible(stores: Config, topic: str) -> None:
    old = Producer(_settings(stores, topic, 0))
    old.init_transactions(30)
    old.begin_transaction()
    old.produce(topic, b"stale", b"a", 0)
    assert old.flush(30) == 0
    new = take_over(stores, 0, topic)
    assert new.state.rows == {}
    new.write([(b"a", b"1")])
    assert stored(stores, topic) == [(b"a", b"1")]
    assert take_over(stores, 0, topic).state.rows == {b"a": b"1"}


def test_a_write_that_fails_leaves_nothing_and_must_read_anew(stores: Config, topic: str) -> None:
    partition = take_over(stores, 0, topic)
    partition.write([(b"a", b"1")])
    too_large: Row = (b"b", bytes(2_000_000))
    with pytest.raises(Unavailable):
        partition.write([(b"a", b"2"), too_large])
    assert partition.state.rows == {b"a": b"1"}
    with pytest.raises(Unavailable, match="taken over first"):
        partition.write([(b"c", b"3")])
    assert partition.ready().state.rows == {b"a": b"1"}
    partition.write([(b"c", b"3")])
    assert stored(stores, topic) == [(b"a", b"1"), (b"c", b"3")]


def test_a_partition_that_was_not_read_cannot_be_written(stores: Config, topic: str) -> None:
    with pytest.raises(Unavailable, match="taken over first"):
        KeyPartition(stores, 0, topic).write([(b"a", b"1")])


def test_events_are_written_with_the_rows_or_not_at_all(stores: Config, topic: str) -> None:
    org = named("events")
    partition = take_over(stores, 0, topic)
    partition.write([(b"a", b"1")], records([entry(org, "org", org, {})], 5))
    with pytest.raises(Unavailable):
        partition.write([(b"b", bytes(2_000_000))], records([entry(org, "project", "p", {})], 6))
    values = [message.value() for message in read_all(stores, "turnlog.directory")]
    bodies = [decode(value).body for value in values if value]
    assert [(b["kind"], b["occurred_at_us"]) for b in bodies if b["org"] == org] == [("org", 5)]
