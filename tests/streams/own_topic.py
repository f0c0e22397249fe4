"""Topics of a test's own on the shared Kafka."""

import itertools
import os
from collections.abc import Sequence

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from turnlog.config import Config
from turnlog.kafka import client_settings, producer_settings

_numbers = itertools.count()


def new_topic(config: Config, partitions: int = 2) -> str:
    """Create a topic with its dead letters; return its name."""
    name = f"turnlog.test-{os.getpid()}-{next(_numbers)}"
    settings = {"message.timestamp.type": "LogAppendTime"}
    wanted = [NewTopic(topic, partitions, 1, config=settings) for topic in (name, f"{name}.dead")]
    admin = AdminClient(client_settings(config))
    for future in admin.create_topics(wanted).values():
        future.result(30)
    return name


def produce(config: Config, topic: str, values: Sequence[bytes | None], partition: int = 0) -> None:
    """Append values to a partition, each under the key `k`."""
    producer = Producer(producer_settings(config))
    for value in values:
        producer.produce(topic, value, b"k", partition, headers=[("ce_id", b"1")])
    assert producer.flush(30) == 0


def committed(config: Config, group: str, topic: str, partition: int = 0) -> int:
    """Return the offset that a group committed, below zero when it never did."""
    consumer = Consumer({**client_settings(config), "group.id": group})
    try:
        return consumer.committed([TopicPartition(topic, partition)], timeout=10)[0].offset
    finally:
        consumer.close()


def delete_before(config: Config, topic: str, offset: int) -> None:
    """Let retention remove the beginning of partition 0."""
    admin = AdminClient(client_settings(config))
    for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        future.result(30)
