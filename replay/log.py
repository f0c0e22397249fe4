"""One partition of the log as one sequence: packs first, then Kafka from where it begins."""

import heapq
import time
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple, Self, cast

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from sinks.packs.reader import Pack
from streams.archive import Archive, place_of
from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.kafka import ANSWER_S, SILENCE_S, reader_settings
from turnlog.passing import bounds, in_words, passes

# `consume` waits so long for more where less is there than it may take.
_BATCH = 1_000
_WAIT_S = 0.02


class LogRecord(NamedTuple):
    """A record at its offset; out of a pack it comes without its frame."""

    offset: int
    key: bytes | None
    value: bytes | None


class Part(NamedTuple):
    """Offsets of one partition: Kafka has them from `start` on, and they are read up to `end`."""

    topic: str
    partition: int
    start: int
    end: int


class LogReader:
    """Reads partitions one after the other, with one consumer: to make one takes 0.2 s.

    Raises:
        UsageError: Kafka has no address.
    """

    def __init__(self, config: Config) -> None:
        settings = reader_settings(config, "read_committed")
        # A fetch that waits at the end of the last partition would hold the next one up.
        self._consumer = Consumer(settings | {"fetch.wait.max.ms": 5})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._consumer.close()

    def read(
        self, topic: str, partition: int, start: int = 0, end: int | None = None
    ) -> Iterator[LogRecord]:
        """Yield the records of a partition in the order of their offsets.

        Args:
            topic: its topic.
            partition: its number.
            start: the first offset, or the first that is there behind it.
            end: the offset behind the last; None: where the partition ends.

        Raises:
            Unavailable: Kafka does not answer, or falls silent for 30 s.
        """
        if end is None:
            end = self._end(topic, partition)
        if start >= end:
            return
        self._consumer.assign([TopicPartition(topic, partition, start)])
        heard = time.monotonic()
        while True:
            messages = self._consumer.consume(_BATCH, _WAIT_S)
            if messages:
                heard = time.monotonic()
            elif time.monotonic() - heard > SILENCE_S:
                raise Unavailable(f"kafka fell silent for {SILENCE_S:.0f} s")
            for message in messages:
                offset = _offset(message)
                # The last offsets may hold no record any more: then the partition's end is heard.
                if message.error() is None and offset < end:
                    yield LogRecord(offset, message.key(), message.value())
                if offset >= end - 1:
                    return

    def _end(self, topic: str, partition: int) -> int:
        first, end = bounds(self._consumer, topic, partition, ANSWER_S)
        return 0 if first == end else end

    def read_part(self, archive: Archive | None, part: Part) -> Iterator[LogRecord]:
        """Yield the records of a partition, first those that Kafka has forgotten.

        Args:
            archive: holds those; None where the topic is not archived.
            part: which records.

        Raises:
            PackError: an object is missing or damaged.
            Unavailable: Kafka or S3 does not answer.
        """
        if archive is not None and part.start > 0:
            yield from _archived(archive, part)
        if part.start < part.end:
            yield from self.read(*part)


def _offset(message: Message) -> int:
    """Return the offset of a record, or where a partition ends; -1 for an error that passes.

    Raises:
        Unavailable: it is another error.
    """
    error = message.error()
    if error is None or error.code() == KafkaError._PARTITION_EOF:
        return cast(int, message.offset())
    if passes(error):
        return -1
    raise Unavailable(f"kafka does not answer: {in_words(error)}")


def _archived(archive: Archive, part: Part) -> Iterator[LogRecord]:
    """Yield what lies in packs below Kafka's first offset; objects overlap after a crash."""
    waiting: list[LogRecord] = []
    for first, name in _objects(archive, part):
        while waiting and waiting[0].offset < first:
            yield heapq.heappop(waiting)
        for record in _of_object(archive, name, part):
            heapq.heappush(waiting, record)
    while waiting:
        yield heapq.heappop(waiting)


def _objects(archive: Archive, part: Part) -> list[tuple[int, str]]:
    """Return the objects that own something of a partition below `start`, by their first offset."""
    found: dict[str, int] = {}
    for name, parts in archive.objects.items():
        spans = (span for owner in parts for span in owner.owned)
        firsts = [s.first for s in spans if s[1:3] == part[:2] and s.first < part.start]
        if firsts:
            found[name] = min(firsts)
    return sorted((first, name) for name, first in found.items())


def _of_object(archive: Archive, name: str, part: Part) -> Iterator[LogRecord]:
    owned = archive.owned(name)
    pack: Pack = archive.pack(name)
    for row, key, body in pack.stored():
        if row[1:3] == part[:2] and row.offset < part.start and place_of(row) in owned:
            yield LogRecord(row.offset, key, body)
