"""Following `turnlog.directory`, so that a key that is revoked stops working here in a moment."""

import logging
import threading
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from serve.doors.keys import KeyBook, Keys
from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.kafka import partitions_of, reader_settings, unavailable

logger = logging.getLogger(__name__)

TOPIC = "turnlog.directory"
STALE_S = 60.0
"""So long a revocation may take to hold here; older knowledge is reported as stale."""

_CHECK_EVERY_S = 5.0
_CHECK_S = 3.0
_RETRY_S = 1.0
_TICK_S = 0.1


class Follower:
    """Reads the directory in a thread of its own, from the beginning and then as it grows.

    The keys are known once it has reached the end that the topic had at the start. While Kafka is
    away what is known stays: `age_s` says how old it may be.

    Args:
        config: where Kafka is.
        keys: given the book when it is complete.
    """

    def __init__(self, config: Config, keys: Keys) -> None:
        self._config = config
        self._keys = keys
        self._book = KeyBook()
        self._next: dict[int, int] = {}
        self._fresh_at_s: float | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="turnlog-directory", daemon=True)

    @property
    def age_s(self) -> float | None:
        """Seconds since it was last known that nothing is missing; None: it never was."""
        fresh = self._fresh_at_s
        return None if fresh is None else time.monotonic() - fresh

    def start(self) -> None:
        """Begin to read; returns at once."""
        self._thread.start()

    def close(self) -> None:
        """Stop reading."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._follow(partitions_of(self._config, TOPIC))
            except Unavailable as error:
                logger.warning("API keys are not followed: %s", error)
                self._closing.wait(_RETRY_S)

    def _follow(self, numbers: list[int]) -> None:
        # A book of its own: an old entry, read again, must not bring a revoked key back.
        self._book, self._next = KeyBook(), dict.fromkeys(numbers, 0)
        # A fetch that waits is not woken by a commit, so the wait is how late a reader is.
        settings = {**reader_settings(self._config, "read_committed"), "fetch.wait.max.ms": 100}
        consumer = Consumer(settings)
        try:
            consumer.assign([TopicPartition(TOPIC, n, OFFSET_BEGINNING) for n in numbers])
            check_at_s = 0.0
            while not self._closing.is_set():
                self._take(consumer)
                if time.monotonic() >= check_at_s or self._keys.book is not self._book:
                    self._check(consumer)
                    check_at_s = time.monotonic() + _CHECK_EVERY_S
        finally:
            consumer.close()

    def _take(self, consumer: Consumer) -> None:
        for message in consumer.consume(500, _TICK_S):
            error, partition, offset = message.error(), message.partition(), message.offset()
            if partition is None or offset is None:
                continue
            if error is None:
                self._book.take(message.value())
                self._next[partition] = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                self._next[partition] = offset

    def _check(self, consumer: Consumer) -> None:
        """Take note of the time if everything was read; the first time, put the book to use."""
        asked_at_s = time.monotonic()
        try:
            bounds = [
                (number, consumer.get_watermark_offsets(TopicPartition(TOPIC, number), _CHECK_S))
                for number in self._next
            ]
        except KafkaException as error:
            logger.debug("%s", unavailable(error))
            return
        if any(found is None or self._next[number] < found[1] for number, found in bounds):
            return
        self._fresh_at_s = asked_at_s
        self._keys.book = self._book
