"""Reading a topic whole from a real broker, and keys in their partitions."""

import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from topics.broker import await_leaders
from turnlog import kafka
from turnlog.config import Config
from turnlog.errors import Unavailable, UsageError

PARTITIONS = 3


@pytest.fixture
def topic(stack: Config) -> Iterator[str]:
    admin = AdminClient(kafka.client_settings(stack))
    name = f"test.{uuid.uuid4().hex}"
    admin.create_topics([NewTopic(name, num_partitions=PARTITIONS)])[name].result()
    await_leaders(admin, {name})
    yield name
    admin.delete_topics([name])[name].exception()


def transactional(config: Config, name: str) -> Producer:
    own = {"transactional.id": name, "transaction.timeout.ms": 120_000}
    producer = Producer({**kafka.producer_settings(config), **own})
    producer.init_transactions()
    return producer


def write(producer: Producer, topic: str, values: list[bytes]) -> None:
    for value in values:
        producer.produce(topic, value, key=value)
    assert producer.flush(30) == 0


def test_all_is_read_in_the_order_of_each_partition(stack: Config, topic: str) -> None:
    values = [b"%d" % n for n in range(500)]
    write(Producer(kafka.producer_settings(stack)), topic, values)
    read = list(kafka.read_all(stack, topic))
    assert sorted(m.value() or b"" for m in read) == sorted(values)
    for n in range(PARTITIONS):
        offsets = [message.offset() for message in read if message.partition() == n]
        assert offsets == list(range(len(offsets)))
        assert kafka.end_offsets(stack, topic)[n] == len(offsets)


def test_an_empty_topic_ends_at_once(stack: Config, topic: str) -> None:
    assert list(kafka.read_all(stack, topic)) == []
    assert kafka.end_offsets(stack, topic) == {0: 0, 1: 0, 2: 0}


def test_only_asked_for_partitions_are_read(stack: Config, topic: str) -> None:
    write(Producer(kafka.producer_settings(stack)), topic, [b"%d" % n for n in range(60)])
    read = list(kafka.read_all(stack, topic, [1]))
    assert {message.partition() for message in read} == {1}


def test_what_was_aborted_is_not_read_and_does_not_hold_the_end_up(
    stack: Config, topic: str
) -> None:
    producer = transactional(stack, topic)
    for number, commit in enumerate((True, False, True, False)):
        producer.begin_transaction()
        write(producer, topic, [b"%d/%d" % (number, n) for n in range(30)])
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    read = [message.value() or b"" for message in kafka.read_all(stack, topic)]
    assert {value.split(b"/")[0] for value in read} == {b"0", b"2"}
    assert len(read) == 60
    every = list(kafka.read_all(stack, topic, isolation="read_uncommitted"))
    assert len(every) == 120


def test_reading_stops_at_an_open_transaction(stack: Config, topic: str) -> None:
    producer = transactional(stack, topic)
    producer.begin_transaction()
    write(producer, topic, [b"%d" % n for n in range(30)])
    assert list(kafka.read_all(stack, topic)) == []
    assert sum(kafka.end_offsets(stack, topic).values()) == 0
    uncommitted = kafka.end_offsets(stack, topic, isolation="read_uncommitted")
    assert sum(uncommitted.values()) == 30
    producer.commit_transaction()
    assert len(list(kafka.read_all(stack, topic))) == 30


def test_what_comes_later_is_not_waited_for(stack: Config, topic: str) -> None:
    producer = Producer(kafka.producer_settings(stack))
    write(producer, topic, [b"%d" % n for n in range(30)])
    reading = kafka.read_all(stack, topic)
    first = next(reading)
    write(producer, topic, [b"late/%d" % n for n in range(30)])
    assert len([first, *reading]) == 30


def test_keys_lie_where_the_producer_puts_them(stack: Config, topic: str) -> None:
    write(Producer(kafka.producer_settings(stack)), topic, [b"%d" % n for n in range(60)])
    for message in kafka.read_all(stack, topic):
        assert message.partition() == kafka.partition_of(message.key() or b"", PARTITIONS)


@pytest.mark.parametrize(
    ("key", "hashed"),
    # Of Kafka's own UtilsTest.
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_partitions_are_those_of_javas_murmur2(key: bytes, hashed: int) -> None:
    assert kafka.partition_of(key, 96) == (hashed & 0x7FFFFFFF) % 96


def test_a_missing_topic_is_named(stack: Config) -> None:
    with pytest.raises(Unavailable, match=r"turnlog\.nothing"):
        list(kafka.read_all(stack, "turnlog.nothing"))


def test_a_broker_that_is_away_is_said_to_be(
    stack: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "ANSWER_S", 0.2)
    with pytest.raises(Unavailable, match="kafka does not answer"):
        kafka.end_offsets(stack.model_copy(update={"kafka": "127.0.0.1:1"}), "turnlog.runs")


def test_no_address_is_the_users_mistake() -> None:
    with pytest.raises(UsageError, match="turnlog up"):
        kafka.client_settings(Config.model_construct(kafka=""))
