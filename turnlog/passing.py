"""Errors of Kafka that pass by themselves, and questions that are asked again until they do.

While a broker starts, moves a leader or is away, its clients hear "not now". Where librdkafka
fetches, it goes on by itself and only tells. Where it is asked something (the ends of a partition)
it answers with the error, having thrown away what it believed of the cluster: asked again, it looks
anew. A worker that ended at each of them would read its checkpoint and the log again for nothing.

`KafkaError.retriable()` does not tell them: it is set for errors of transactions alone.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from turnlog.errors import Unavailable

Answer = TypeVar("Answer")

NOT_NOW = frozenset(
    (
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.FETCH_SESSION_ID_NOT_FOUND,
        KafkaError.INVALID_FETCH_SESSION_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.LISTENER_NOT_FOUND,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        # librdkafka's own, of a broker that came back: its handle was thrown away, or it was not
        # told of its partitions yet.
        KafkaError._DESTROY_BROKER,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
    )
)
"""What a broker answers that will answer otherwise soon: the retriable codes of the protocol
(https://kafka.apache.org/protocol#protocol_error_codes) that a consumer can be told."""

_AWAY = frozenset(
    (
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_COORD,
    )
)
# The group gave this member's place away; it joins anew by itself, and hears of what it lost.
_REJOINS = frozenset(
    (
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.UNKNOWN_MEMBER_ID,
    )
)
# The names of librdkafka's own errors say little to who reads a message.
_WORDS = {
    KafkaError._ALL_BROKERS_DOWN: "no broker can be reached",
    KafkaError._DESTROY_BROKER: "the connection was given up",
    KafkaError._MAX_POLL_EXCEEDED: "silent for longer than the group allows",
    KafkaError._MSG_TIMED_OUT: "no acknowledgement in time",
    KafkaError._PURGE_INFLIGHT: "given up at the end, and perhaps written",
    KafkaError._PURGE_QUEUE: "given up at the end",
    KafkaError._RESOLVE: "the address has no host",
    KafkaError._TIMED_OUT: "no answer in time",
    KafkaError._TRANSPORT: "no connection",
    KafkaError._UNKNOWN_PARTITION: "the partition is not known",
    KafkaError._UNKNOWN_TOPIC: "the topic is not known",
    KafkaError._WAIT_COORD: "the group has no coordinator yet",
}
# A topic that is not there should be seen: who reads it ends, and begins again until it is.
_MISSING = frozenset((KafkaError.UNKNOWN_TOPIC_ID, KafkaError.UNKNOWN_TOPIC_OR_PART))
_PASSING = (NOT_NOW | _AWAY | _REJOINS) - _MISSING
_AGAIN_S = 0.1


def in_words(error: KafkaError) -> str:
    """Return what an error is in plain words, or by its name in Kafka's protocol."""
    return _WORDS.get(error.code()) or error.name()


def passes(error: KafkaError) -> bool:
    """Say whether a consumer that was told this goes on where it was, by itself."""
    return error.code() in _PASSING and not error.fatal()


def asked(question: Callable[[], Answer], patience_s: float) -> Answer:
    """Return Kafka's answer to a question, asked again while brokers say "not now".

    Args:
        question: asks, with a time-out of its own.
        patience_s: a question is not begun later than this.

    Raises:
        Unavailable: Kafka did not answer, or with an error.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return question()
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            if reason.code() not in NOT_NOW or time.monotonic() > deadline:
                raise Unavailable(f"kafka does not answer: {in_words(reason)}") from error
        time.sleep(_AGAIN_S)


def bounds(consumer: Consumer, topic: str, partition: int, timeout_s: float) -> tuple[int, int]:
    """Return a partition's first offset and that behind its last record.

    Under `read_committed` the second is the last stable offset.

    Raises:
        Unavailable: Kafka did not answer in time, or with an error.
    """
    place = TopicPartition(topic, partition)
    found = asked(lambda: consumer.get_watermark_offsets(place, timeout=timeout_s), timeout_s)
    if found is None:
        raise Unavailable("kafka does not answer: no offsets in time")
    return found
