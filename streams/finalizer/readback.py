"""Reading the log again by offset: what a run showed, and whether somebody ended or measured it."""

import time
from collections.abc import Iterator, Sequence
from typing import cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.kafka import ANSWER_S, SILENCE_S, reader_settings
from turnlog.passing import asked, bounds, in_words, passes

# Records in between are cheaper to read past than a new fetch: 1 µs each against a round trip.
GAP = 2_000
_READ = 500
_WAIT_S = 0.2


class LogReader:
    """Reads single partitions; a consumer of its own that commits nothing."""

    def __init__(self, config: Config) -> None:
        # A broker answers one connection's requests in order: what is asked next would wait for a
        # fetch at the end of a partition, half a second by default.
        settings = {**reader_settings(config, "read_committed"), "fetch.wait.max.ms": 10}
        self._consumer = Consumer(settings)

    def close(self) -> None:
        """Leave Kafka."""
        self._consumer.close()

    def fetch(self, topic: str, partition: int, offsets: Sequence[int]) -> dict[int, Message]:
        """Return the records at offsets; those that retention has removed are missing.

        Raises:
            Unavailable: Kafka does not answer.
        """
        wanted = set(offsets)
        found: dict[int, Message] = {}
        for first, last in _spans(sorted(wanted)):
            for message in self._between(topic, partition, first, last):
                if message.offset() in wanted:
                    found[cast(int, message.offset())] = message
        return found

    def scan(self, topic: str, partition: int, start: int) -> Iterator[Message]:
        """Yield the records from an offset to the end as it is now.

        Raises:
            Unavailable: Kafka does not answer.
        """
        _, end = bounds(self._consumer, topic, partition, ANSWER_S)
        if start < end:
            yield from self._between(topic, partition, start, end - 1)

    def offset_at(self, topic: str, partition: int, append_ms: int) -> int:
        """Return the first offset appended at a time or later, a very high one behind the end.

        Raises:
            Unavailable: Kafka does not answer.
        """
        place = TopicPartition(topic, partition, max(append_ms, 0))

        def first() -> int:
            found = self._consumer.offsets_for_times([place], timeout=ANSWER_S)[0]
            if found.error is not None:
                raise KafkaException(found.error)
            return found.offset if found.offset >= 0 else 1 << 62

        return asked(first, ANSWER_S)

    def _between(self, topic: str, partition: int, first: int, last: int) -> Iterator[Message]:
        self._consumer.assign([TopicPartition(topic, partition, first)])
        heard = time.monotonic()
        try:
            while True:
                messages = self._consume()
                heard = _heard(messages, heard)
                for message in messages:
                    error = message.error()
                    if error is None and message.offset() <= last:  # type: ignore[operator]
                        yield message
                    if _is_end(message, last):
                        return
        finally:
            self._consumer.unassign()

    def _consume(self) -> list[Message]:
        """Return what is there, waiting for the first message and for no other."""
        messages = self._consumer.consume(_READ, 0)
        if messages:
            return messages
        message = self._consumer.poll(_WAIT_S)
        return [] if message is None else [message]


def _heard(messages: Sequence[Message], before: float) -> float:
    if messages:
        return time.monotonic()
    if time.monotonic() - before > SILENCE_S:
        raise Unavailable(f"kafka fell silent for {SILENCE_S:.0f} s")
    return before


def _is_end(message: Message, last: int) -> bool:
    error = message.error()
    if error is None:
        return cast(int, message.offset()) >= last
    if error.code() == KafkaError._PARTITION_EOF:
        return True
    if passes(error):
        return False
    raise Unavailable(f"kafka does not answer: {in_words(error)}")


def _spans(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield first and last offset of stretches that are read at once."""
    first = last = -1
    for offset in offsets:
        if first < 0:
            first = offset
        elif offset - last > GAP:
            yield first, last
            first = offset
        last = offset
    if first >= 0:
        yield first, last
