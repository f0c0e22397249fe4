"""How far each view is: committed offsets of its group against the ends of its topics.

A view commits an offset only when what lies before it is durable in the view's own store, so the
committed offset is its durable position.
"""

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol, cast

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from streams.views import View
from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.kafka import client_settings
from turnlog.passing import asked, in_words

logger = logging.getLogger(__name__)

Partition = tuple[str, int]
Offsets = Mapping[Partition, int]
REQUEST_TIMEOUT_S = 5.0
LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]


class Lag(NamedTuple):
    """Distance of a view from the end of its topics.

    Attributes:
        events: records not yet durable in the view.
        seconds: age of the oldest of them by its append time, 0 when there is none.
    """

    events: int
    seconds: float


class Reader(Protocol):
    """Who commits positions: a view is one."""

    @property
    def group(self) -> str:
        """The consumer group."""

    @property
    def topics(self) -> Collection[str]:
        """What it reads."""


class Group(NamedTuple):
    """A consumer group and what it reads."""

    group: str
    topics: Collection[str]


class Progress:
    """Reads positions; one admin connection, no group membership."""

    def __init__(self, config: Config) -> None:
        self._settings = client_settings(config)
        self._admin = AdminClient(self._settings)

    def ends(self, topics: Iterable[str]) -> dict[Partition, int]:
        """Return the next offset of every partition as it is now (transactions included).

        Raises:
            Unavailable: Kafka does not answer.
        """
        return self._offsets(self._partitions(topics), LATEST)

    def starts(self, topics: Iterable[str]) -> dict[Partition, int]:
        """Return the first offset that every partition still has.

        Raises:
            Unavailable: Kafka does not answer.
        """
        return self._offsets(self._partitions(topics), EARLIEST)

    def committed(self, view: Reader) -> dict[Partition, int]:
        """Return the next offset that the view will read, of the partitions it has committed.

        Raises:
            Unavailable: Kafka does not answer.
        """
        request = [ConsumerGroupTopicPartitions(view.group)]
        futures = self._admin.list_consumer_group_offsets(
            request, request_timeout=REQUEST_TIMEOUT_S
        )
        found = _result(futures[view.group]).topic_partitions
        return {
            (part.topic, part.partition): part.offset
            for part in found
            if part.topic in view.topics and part.offset >= 0
        }

    def behind(self, view: Reader, ends: Offsets) -> dict[Partition, tuple[int, int]]:
        """Return `{partition: (position, end)}` where the view has not reached the given ends."""
        done = self.committed(view)
        missing = [part for part in ends if part not in done and ends[part] > 0]
        # Retention may have removed the beginning of a partition that was never committed.
        starts = self._offsets(missing, EARLIEST) if missing else {}
        position = {part: done.get(part, starts.get(part, 0)) for part in ends}
        return {part: (position[part], end) for part, end in ends.items() if position[part] < end}

    def lag(self, view: View) -> Lag:
        """Return how far the view is behind the ends of its topics now."""
        behind = self.behind(view, self.ends(view.topics))
        if not behind:
            return Lag(0, 0.0)
        events = sum(end - position for position, end in behind.values())
        return Lag(events, self._age_s(behind))

    def _age_s(self, behind: Mapping[Partition, tuple[int, int]]) -> float:
        """Return the age of the oldest waiting record, by its append time."""
        oldest_ms = min(self._next_ms(behind).values(), default=0)
        return max(0.0, round(time.time() - oldest_ms / 1000, 1)) if oldest_ms else 0.0

    def readable(self, behind: Mapping[Partition, tuple[int, int]]) -> set[Partition]:
        """Return the partitions of which a record can be read at their position within a second."""
        return set(self._next_ms(behind))

    def _next_ms(self, behind: Mapping[Partition, tuple[int, int]]) -> dict[Partition, int]:
        """Return the append time of the next record of each partition."""
        consumer = Consumer(self._settings | {"group.id": "turnlog.progress", **_READ_ONLY})
        try:
            consumer.assign([TopicPartition(t, p, at) for (t, p), (at, _) in behind.items()])
            return _first_ms(consumer, len(behind))
        finally:
            consumer.close()

    def _partitions(self, topics: Iterable[str]) -> list[Partition]:
        try:
            known = self._admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
        except KafkaException as error:
            raise Unavailable(f"Kafka does not answer: {_reason(error)}") from error
        return [(t, p) for t in topics if t in known for p in known[t].partitions]

    def _offsets(self, partitions: Iterable[Partition], spec: OffsetSpec) -> dict[Partition, int]:
        wanted = {TopicPartition(topic, number): spec for topic, number in partitions}
        if not wanted:
            return {}
        return asked(lambda: self._answered(wanted), REQUEST_TIMEOUT_S)

    def _answered(self, wanted: dict[TopicPartition, OffsetSpec]) -> dict[Partition, int]:
        futures = self._admin.list_offsets(wanted, request_timeout=REQUEST_TIMEOUT_S)
        return {
            (part.topic, part.partition): _in_time(future).offset
            for part, future in futures.items()
        }


_READ_ONLY: dict[str, Any] = {"enable.auto.commit": False, "auto.offset.reset": "earliest"}


def _first_ms(consumer: Consumer, partitions: int) -> dict[Partition, int]:
    """Return the append times of the first records of the assigned partitions."""
    seen: dict[Partition, int] = {}
    deadline = time.monotonic() + 1.0
    while len(seen) < partitions and time.monotonic() < deadline:
        for message in consumer.consume(100, 0.1):
            if message.error() is None:
                part = (cast(str, message.topic()), cast(int, message.partition()))
                seen.setdefault(part, message.timestamp()[1])
    return seen


def _result(future: "Future[Any]") -> Any:
    try:
        return _in_time(future)
    except KafkaException as error:
        raise Unavailable(f"Kafka does not answer: {_reason(error)}") from error


def _in_time(future: "Future[Any]") -> Any:
    try:
        return future.result(timeout=REQUEST_TIMEOUT_S + 1)
    except TimeoutError as error:
        raise Unavailable("Kafka does not answer in time") from error


def _reason(error: KafkaException) -> str:
    return in_words(error.args[0]) if error.args else "unknown"
