"""The raw client: confluent-kafka as anyone would use it, moving bytes that are there already."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from bench.measure import Sample, Stopwatch
from turnlog.errors import Unavailable

# Reports are fetched every so many records; each poll costs half a microsecond.
_POLL_EVERY = 100


class Sent(NamedTuple):
    """A record as our side handed it to Kafka."""

    topic: str
    partition: int
    key: bytes
    value: bytes
    headers: Any


class RawProducer:
    """Sends records again: `produce()` with a delivery callback that counts, then `flush()`."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._client = Producer(dict(settings))
        self._delivered = 0
        self._error: KafkaError | None = None

    def send(self, records: Sequence[Sent]) -> Sample:
        """Send records and wait until each was acknowledged.

        Raises:
            Unavailable: one was not.
        """
        self._delivered = 0
        watch = Stopwatch()
        for at, record in enumerate(records):
            if at % _POLL_EVERY == 0:
                self._client.poll(0)
            self._produce(record)
        self._client.flush()
        sample = watch.sample(len(records))
        if self._delivered != len(records):
            name = self._error.name() if self._error else "no report"
            raise Unavailable(f"the raw client lost records: {name}")
        return sample

    def _produce(self, record: Sent) -> None:
        topic, partition, key, value, headers = record
        while True:
            try:
                self._client.produce(
                    topic, value, key, partition, self._on_delivery, headers=headers
                )
            except BufferError:
                self._client.poll(0.01)
                continue
            return

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._delivered += 1
        else:
            self._error = error
