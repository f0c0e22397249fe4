"""Appends of the finalizer, acknowledged before it goes on.

Not transactional. What it writes has an identity of its own, so that a repeat of it is one wherever
it is read, and a second, other end of the same run is a conflict, of which the first one stands: a
finalizer that was paused and wakes up can add a dead letter and nothing else. Transaction markers
in `turnlog.runs` and `turnlog.usage`, on the other hand, would be offsets that no view ever reads
or commits, so that `turnlog wait` would wait for them.
"""

from collections.abc import Iterable, Sequence

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.events import Record
from turnlog.kafka import not_written, producer_settings, unavailable

ACKNOWLEDGED_S = 30.0

Header = tuple[str, str | bytes | None]


class Appends:
    """One producer for ends, estimates, ticks and checkpoints."""

    def __init__(self, config: Config) -> None:
        self._producer = Producer(producer_settings(config))
        self._error: str | None = None

    def events(self, records: Iterable[Record]) -> None:
        """Append events; on return all are acknowledged.

        Raises:
            Unavailable: one is not.
        """
        for topic, key, value, headers, _ in records:
            self.put(topic, key, value, headers=headers)
        self.settle()

    def put(
        self,
        topic: str,
        key: bytes,
        value: bytes | None,
        partition: int = -1,
        headers: Sequence[Header] = (),
    ) -> None:
        """Hand a record over, into the partition of its key unless another is named."""
        try:
            self._produce(topic, key, value, partition, headers)
        except BufferError:
            self._producer.flush(ACKNOWLEDGED_S)
            self._produce(topic, key, value, partition, headers)
        except KafkaException as error:
            raise unavailable(error) from error
        self._producer.poll(0)

    def _produce(
        self,
        topic: str,
        key: bytes,
        value: bytes | None,
        partition: int,
        headers: Sequence[Header],
    ) -> None:
        own = list(headers)
        self._producer.produce(topic, value, key, partition, headers=own, on_delivery=self._note)

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if trouble := not_written(error, message):
            self._error = f"{message.topic()}: {trouble}"

    def settle(self) -> None:
        """Wait until everything that was handed over is acknowledged.

        Raises:
            Unavailable: something is not, now or before.
        """
        left = self._producer.flush(ACKNOWLEDGED_S)
        if left or self._error:
            raise Unavailable(f"kafka did not acknowledge: {self._error or f'{left} records'}")
