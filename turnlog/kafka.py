"""Kafka clients as every part sets them up (`faust-kafka.md` section 4 has the reasons)."""

import logging
import re
import time
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
    murmur2,
)
from confluent_kafka.admin import AdminClient

from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.passing import bounds as bounds_of
from turnlog.passing import in_words, passes
from turnlog.seldom import Seldom

# Of librdkafka's "[thrd:host:port/bootstrap]: host:port/bootstrap: Connect to ... failed: ...".
_PLACE = re.compile(r"\]: (?:\w+: )?(?:\w+://)?([^\s/\]]+:\d{1,5})[/:]")
_AWAY = re.compile(
    r"Connect to|Connection (?:setup|refused|reset)|Failed to resolve|Disconnected"
    r"|brokers are down|timed out"
)
_TIMES = re.compile(r"\d+")


class Remarks(logging.Filter):
    """Lets a remark of librdkafka pass once in a while, whichever client of the process made it.

    Each connection of each client remarks 20 times a second that a broker is away, at a pace of
    its own: that is one thing, said in plain words. What repeats is there at level DEBUG.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seldom = Seldom()

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether it is long enough since the last remark of its kind."""
        kind, said = _remark(record)
        if self._seldom.due(kind):
            record.msg, record.args = said or record.msg, None if said else record.args
            return True
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return logger.isEnabledFor(logging.DEBUG)


def _remark(record: logging.LogRecord) -> tuple[Hashable, str]:
    """Return the kind of a remark, and what is said in its place; empty: its own words."""
    # librdkafka's logger is called with facility, client and text.
    if not isinstance(record.args, tuple) or len(record.args) < 3:
        return record.msg, ""
    facility, text = record.args[0], str(record.args[2])
    if not _AWAY.search(text):
        return (facility, _TIMES.sub("", text)), ""
    place = _PLACE.search(text)
    return "away", f"Kafka does not answer{f' at {place[1]}' if place else ''}"


logger = logging.getLogger(__name__)
# Where nobody set logging up (a command, a notebook), librdkafka's remarks stay out of the output.
logger.addHandler(logging.NullHandler())
logger.addFilter(Remarks())

ANSWER_S = 10.0
"""How long a broker may take over one request before it counts as away."""

SILENCE_S = 30.0
"""How long reading may make no progress before the broker counts as away."""


def client_settings(config: Config) -> dict[str, Any]:
    """Return what every client needs.

    Without a logger librdkafka writes a line to stderr every 50 ms while a broker is away.

    Raises:
        UsageError: Kafka has no address.
    """
    return {
        "bootstrap.servers": config.need("kafka"),
        "logger": logger,
        "log.connection.close": False,
        "reconnect.backoff.ms": 100,
        "reconnect.backoff.max.ms": 2_000,
        "enable.metrics.push": False,
    }


def producer_settings(config: Config) -> dict[str, Any]:
    """Return an idempotent producer's settings.

    `murmur2_random` puts a key where Java, aiokafka and Faust put it; librdkafka's own default
    does not. Idempotence is one producer session's: repeats across restarts are told by event id.
    `message.max.bytes` leaves room for dead letters, which are a record as large as Kafka took it
    and more headers; `batch.size` keeps the batches of other topics under their own limit.
    `linger.ms`: a caller waits for it, and at 3,000 events a second over 18 partitions 5 ms
    gathered no more than one record a batch (decision 0025).

    Raises:
        UsageError: Kafka has no address.
    """
    return {
        **client_settings(config),
        "enable.idempotence": True,
        "acks": "all",
        "partitioner": "murmur2_random",
        "compression.type": "zstd",
        "linger.ms": 1,
        "batch.size": 1_000_000,
        "message.max.bytes": 2_097_152,
        "delivery.timeout.ms": 120_000,
        "queue.buffering.max.kbytes": 1_048_576,
    }


UNPROVEN = "acknowledged, but not said where"


def not_written(error: KafkaError | None, message: Message) -> str:
    """Return why a delivery report does not prove that a record is in Kafka; empty where it does.

    librdkafka takes a batch for written when a later one of its partition is: "implicitly acked".
    A broker that lost its leadership for a moment refuses the first batch of a producer that it
    does not know and takes the second, and the first is never sent again: lost, with a report of
    success (confluent-kafka-go #921; one outage of 5 s in 40 here). Such a report has no offset.
    """
    if error is not None:
        return in_words(error)
    return UNPROVEN if message.offset() is None else ""


def reader_settings(config: Config, isolation: str) -> dict[str, Any]:
    """Return the settings of a consumer that is assigned its partitions and commits nothing.

    Raises:
        UsageError: Kafka has no address.
    """
    return {
        **client_settings(config),
        "group.id": "turnlog.reader",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "isolation.level": isolation,
        "queued.max.messages.kbytes": 50_000,
    }


def partition_of(key: bytes, n: int) -> int:
    """Return the partition of a key among n, as Java's default and `murmur2_random` choose it."""
    return murmur2(key, n)


def partitions_of(config: Config, topic: str) -> list[int]:
    """Return the partitions that a topic has, sorted.

    Raises:
        Unavailable: Kafka does not answer, or has no such topic.
    """
    try:
        found = AdminClient(client_settings(config)).list_topics(topic, timeout=ANSWER_S)
    except KafkaException as error:
        raise unavailable(error) from error
    meta = found.topics[topic]
    if meta.error is not None:
        raise Unavailable(f"topic {topic}: {meta.error.str()}; `turnlog topics create` makes it")
    return sorted(meta.partitions)


def unavailable(error: KafkaException) -> Unavailable:
    """Return a client's error as ours."""
    reason: KafkaError = error.args[0]
    return Unavailable(f"kafka does not answer: {in_words(reason)}")


def end_offsets(config: Config, topic: str, *, isolation: str = "read_committed") -> dict[int, int]:
    """Return the offset behind the last record of each partition.

    Under `read_committed` it is the last stable offset: nothing behind it can be read yet.

    Raises:
        Unavailable: Kafka does not answer, or has no such topic.
    """
    partitions = partitions_of(config, topic)
    consumer = Consumer(reader_settings(config, isolation))
    try:
        return {n: bounds_of(consumer, topic, n, ANSWER_S)[1] for n in partitions}
    finally:
        consumer.close()


def read_all(
    config: Config,
    topic: str,
    partitions: Iterable[int] | None = None,
    *,
    isolation: str = "read_committed",
) -> Iterator[Message]:
    """Yield every record of a topic from its beginning to its end as it is at the first step.

    Records of one partition come in order; partitions interleave.

    Args:
        config: Where Kafka is.
        topic: Topic.
        partitions: Only these; None: all.
        isolation: `read_committed` leaves out what aborted transactions wrote.

    Raises:
        Unavailable: Kafka does not answer, has no such topic, or falls silent for 30 s.
    """
    wanted = partitions_of(config, topic) if partitions is None else list(partitions)
    consumer = Consumer(reader_settings(config, isolation))
    try:
        bounds = {n: bounds_of(consumer, topic, n, ANSWER_S) for n in wanted}
        ends = {n: end for n, (start, end) in bounds.items() if end > start}
        consumer.assign([TopicPartition(topic, n, bounds[n][0]) for n in ends])
        yield from _until(consumer, ends)
    finally:
        consumer.close()


def _until(consumer: Consumer, ends: dict[int, int]) -> Iterator[Message]:
    """Yield records until each partition has reached its end.

    A partition's last offsets may hold no record (transaction marks, aborted or compacted ones):
    the end-of-partition signal carries the offset that was reached all the same.
    """
    open_ends = dict(ends)
    heard = time.monotonic()
    while open_ends:
        messages = consumer.consume(1_000, timeout=0.2)
        if messages:
            heard = time.monotonic()
        elif time.monotonic() - heard > SILENCE_S:
            raise Unavailable(f"kafka fell silent for {SILENCE_S:.0f} s")
        for message in messages:
            yield from _step(message, open_ends)


def _step(message: Message, open_ends: dict[int, int]) -> Iterator[Message]:
    """Yield the message if it is a record below its partition's end; close what is reached."""
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        if passes(error):
            return
        raise Unavailable(f"kafka does not answer: {in_words(error)}")
    partition, offset = _place(message)
    end = open_ends.get(partition)
    if end is None:
        return
    if error is None and offset < end:
        yield message
    if offset + (error is None) >= end:
        del open_ends[partition]


def _place(message: Message) -> tuple[int, int]:
    partition, offset = message.partition(), message.offset()
    assert partition is not None and offset is not None
    return partition, offset
