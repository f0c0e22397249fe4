"""Writes steps of the unit of work, in an order that makes a crash at any point harmless.

1. outputs: the read model and the outcomes in Redis, refusals, dead letters;
2. the changelog of the heads, each head with its rows as redo;
3. the changelog of the turns;
4. the local tables, each with the offset of its changelog.

Only then the position of a partition moves, and offsets below it may be committed. What was not
committed is folded again after a crash: outputs are the same a second time, and an event whose
decision is in the tables changes nothing.
"""

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sinks.redis import connect
from sinks.redis.conversations import Conversations
from streams.conversations import HEADS_CHANGELOG, TURNS_CHANGELOG
from streams.conversations.state import Pairs, stored
from streams.conversations.unit import Step
from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.kafka import not_written, producer_settings

logger = logging.getLogger(__name__)

WRITE_TIMEOUT_S = 30.0
# Redis back from a restart answers within a second. Without it nothing is written: the read model
# must never miss a turn that the tables hold.
REDIS_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 4.0)


class Table(Protocol):
    """A table whose changelog is written here."""

    def keep(self, partition: int, rows: Iterable[tuple[bytes, bytes]], offset: int) -> None:
        """Write acknowledged rows into the local store."""


class Writer:
    """Writes steps, one call at a time.

    Args:
        config: where Kafka and Redis are.
    """

    def __init__(self, config: Config) -> None:
        self._redis = Conversations(connect(config))
        self._producer = Producer(producer_settings(config))

    def write(self, steps: Mapping[int, Step], heads: Table, turns: Table) -> None:
        """Write the steps of some partitions; on return all of it is durable.

        Raises:
            Unavailable: a store does not answer. A part may be written; folding the same events
                again completes it.
        """
        self._show(steps)
        self._say(steps)
        pairs = {number: stored(step.rows) for number, step in steps.items()}
        self._change(HEADS_CHANGELOG, {n: found[0] for n, found in pairs.items()}, heads)
        self._change(TURNS_CHANGELOG, {n: found[1] for n, found in pairs.items()}, turns)

    def _show(self, steps: Mapping[int, Step]) -> None:
        hashes = {
            stream: shown.fields()
            for step in steps.values()
            for stream, shown in step.shown.items()
        }
        outcomes = {key: said for step in steps.values() for key, said in step.outcomes.items()}
        if not hashes and not outcomes:
            return
        for pause_s in REDIS_PAUSES_S:
            try:
                self._redis.write(hashes, outcomes)
            except Unavailable as error:
                logger.warning("the read model waits: %s", error)
                time.sleep(pause_s)
            else:
                return
        self._redis.write(hashes, outcomes)

    def _say(self, steps: Mapping[int, Step]) -> None:
        delivery = Delivery()
        for step in steps.values():
            for said in step.refusals:
                self._produce(said.topic, said.key, said.value, delivery, headers=said.headers)
            for dead in step.dead:
                self._produce(dead.topic, dead.key, dead.value, delivery, headers=dead.headers)
        self._settle(delivery)

    def _change(self, topic: str, changes: Mapping[int, Pairs], table: Table) -> None:
        delivery = Delivery()
        for partition, pairs in changes.items():
            for key, value in pairs:
                self._produce(topic, key, value, delivery, partition=partition)
        self._settle(delivery)
        for partition, pairs in changes.items():
            if pairs:
                table.keep(partition, pairs, delivery.last[partition])

    def _produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        delivery: "Delivery",
        **where: Any,
    ) -> None:
        try:
            self._producer.produce(topic, value, key, on_delivery=delivery.report, **where)
        except (KafkaException, BufferError) as error:
            raise Unavailable(f"{topic} takes no record: {type(error).__name__}") from error
        delivery.open += 1

    def _settle(self, delivery: "Delivery") -> None:
        """Wait until every record is acknowledged."""
        if delivery.open:
            self._producer.flush(WRITE_TIMEOUT_S)
        if delivery.open or delivery.errors:
            what = delivery.errors[0] if delivery.errors else "no acknowledgement in time"
            raise Unavailable(f"{delivery.open} records not written: {what}")


class Delivery:
    """What became of records handed to the producer.

    Attributes:
        open: how many are not acknowledged.
        last: the highest offset written to each partition.
        errors: what became of those that failed.
    """

    def __init__(self) -> None:
        self.open = 0
        self.last: dict[int, int] = {}
        self.errors: list[str] = []

    def report(self, error: KafkaError | None, message: Message) -> None:
        """Take one delivery report."""
        if trouble := not_written(error, message):
            self.errors.append(trouble)
            return
        self.open -= 1
        partition, offset = message.partition(), message.offset()
        if partition is not None and offset is not None:
            self.last[partition] = max(offset, self.last.get(partition, -1))
