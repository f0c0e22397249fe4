"""Dead letters: a record that cannot be processed is kept byte for byte, with the reason.

A dead letter lies in `<topic>.dead` under the original key, with the original bytes and headers;
headers `dlq-*` say where it stood, which view refused it and why. A worker that crashes between
writing a dead letter and committing writes it again; readers count distinct coordinates.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

from confluent_kafka import KafkaError, Message, Producer

from topics import catalogue
from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.kafka import not_written, producer_settings, read_all

logger = logging.getLogger(__name__)

SUFFIX = ".dead"
WRITE_TIMEOUT_S = 30.0

Headers = list[tuple[str, str | bytes | None]]


class Dead(NamedTuple):
    """A record that a view refuses. `reason` names what is wrong, never what is in the record."""

    message: Message
    reason: str


class DeadRecord(NamedTuple):
    """What is written to the dead-letter topic."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers


class DeadLetter(NamedTuple):
    """One dead letter as it is listed: where it stood and why; never its content."""

    view: str
    topic: str
    partition: int
    offset: int
    reason: str
    attempt: int
    bytes: int


def dead_record(
    view: str,
    source: tuple[str, int, int],
    key: bytes | None,
    value: bytes | None,
    reason: str,
    *,
    headers: Sequence[tuple[str, str | bytes | None]] = (),
    attempt: int = 1,
) -> DeadRecord:
    """Make the dead letter of a record.

    Args:
        view: which view refuses it, such as `usage`.
        source: topic, partition and offset where the record stands.
        key: its key as it is.
        value: its bytes as they are.
        reason: what is wrong; never content.
        headers: its own headers, kept before the `dlq-*` ones.
        attempt: 1 for the first time, more after a redrive.
    """
    topic, partition, offset = source
    about = {
        "dlq-topic": topic,
        "dlq-partition": partition,
        "dlq-offset": offset,
        "dlq-view": view,
        "dlq-reason": reason,
        "dlq-attempt": attempt,
    }
    own: Headers = [(name, str(value).encode()) for name, value in about.items()]
    return DeadRecord(topic + SUFFIX, key, value, [*headers, *own])


class DeadLetters:
    """Writes the dead letters of one view; nothing is committed before they are acknowledged."""

    def __init__(self, config: Config, view: str) -> None:
        self._view = view
        self._producer = Producer(producer_settings(config))
        self._errors: list[str] = []

    def write(self, dead: Sequence[Dead]) -> None:
        """Write dead letters; on return all are acknowledged.

        Raises:
            Unavailable: one could not be written; the caller must not commit past it.
        """
        for message, reason in dead:
            logger.warning("%s refuses %s: %s", self._view, _coordinate(message), reason)
            self._produce(_record_of(self._view, message, reason))
        left = self._producer.flush(WRITE_TIMEOUT_S)
        if left or self._errors:
            raise Unavailable(f"{self._errors or left} dead letters of {self._view} not written")

    def _produce(self, record: DeadRecord) -> None:
        topic, key, value, headers = record
        self._producer.produce(topic, value, key, headers=headers, on_delivery=self._delivered)
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if trouble := not_written(error, message):
            self._errors.append(trouble)


def dead_letters(config: Config, topics: Sequence[str] | None = None) -> Iterator[DeadLetter]:
    """Yield every distinct dead letter, as far as the topics reach at the call.

    Args:
        config: where Kafka is.
        topics: dead-letter topics; every one of the catalogue when None.

    Raises:
        Unavailable: Kafka does not answer.
    """
    seen = set()
    for topic in topics if topics is not None else dead_topics():
        for message in read_all(config, topic):
            letter = _letter(message)
            if letter[:4] not in seen:
                seen.add(letter[:4])
                yield letter


def dead_counts(config: Config) -> dict[str, int]:
    """Return how many dead letters each view has, views without any left out.

    Raises:
        Unavailable: Kafka does not answer.
    """
    counts: dict[str, int] = {}
    for letter in dead_letters(config):
        counts[letter.view] = counts.get(letter.view, 0) + 1
    return counts


def dead_topics() -> list[str]:
    """Return the dead-letter topics of the catalogue."""
    return [topic.name for topic in catalogue() if topic.name.endswith(SUFFIX)]


def _record_of(view: str, message: Message, reason: str) -> DeadRecord:
    place = (message.topic(), message.partition(), message.offset())
    source = cast(tuple[str, int, int], place)
    headers = _headers(message)
    return dead_record(view, source, message.key(), message.value(), reason, headers=headers)


def _headers(message: Message) -> Headers:
    return cast(Headers, message.headers() or [])


def _letter(message: Message) -> DeadLetter:
    about = {name: value for name, value in _headers(message) if isinstance(value, bytes)}

    def text(name: str) -> str:
        return about.get(f"dlq-{name}", b"").decode(errors="replace")

    def number(name: str) -> int:
        return int(text(name)) if text(name).isdecimal() else -1

    size = len(message.value() or b"")
    place = (text("topic"), number("partition"), number("offset"))
    return DeadLetter(text("view"), *place, text("reason"), number("attempt"), size)


def _coordinate(message: Message) -> str:
    return f"{message.topic()}/{message.partition()}/{message.offset()}"
