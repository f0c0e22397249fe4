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
    """Reads positions; a connection for topics and one a group, no group membership."""

    def __init__(self, config: Config) -> None:
        self._settings = client_settings(config)
        self._admin = AdminClient(self._settings)
        self._groups: dict[str, Consumer] = {}

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

        Not by `AdminClient.list_consumer_group_offsets`: where a broker that came back answers that
        it is not the coordinator, librdkafka 2.16 looks for the consumer of the admin client, which
        has none, and the process is gone (SIGSEGV in `rd_kafka_cgrp_op`).

        Raises:
            Unavailable: Kafka does not answer.
        """
        places = [TopicPartition(*part) for part in self._partitions(view.topics)]
        if not places:
            return {}
        found = asked(lambda: self._committed(view.group, places), REQUEST_TIMEOUT_S)
        return {(part.topic, part.partition): part.offset for part in found if part.offset >= 0}

    def _committed(self, group: str, places: list[TopicPartition]) -> list[TopicPartition]:
        found = self._asking(group).committed(places, timeout=REQUEST_TIMEOUT_S)
        for place in found:
            if place.error is not None:
                raise KafkaException(place.error)
        return found

    def _asking(self, group: str) -> Consumer:
        """Return a client that asks about a group and is no member of it."""
        if group not in self._groups:
            self._groups[group] = Consumer({**self._settings, "group.id": group, **_READ_ONLY})
        return self._groups[group]

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


def _in_time(future: "Future[Any]") -> Any:
    try:
        return future.result(timeout=REQUEST_TIMEOUT_S + 1)
    except TimeoutError as error:
        raise Unavailable("Kafka does not answer in time") from error


def _reason(error: KafkaException) -> str:
    return in_words(error.args[0]) if error.args else "unknown"
