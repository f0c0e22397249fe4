"""Fold the whole log with the pure processors: what every view must hold.

Knows no store but Kafka. A view's own digest (`turnlog digest`) must be equal to the one made here
(`turnlog digest --fold`), however often workers were killed in between.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, cast

from confluent_kafka import Message

from processors import conversations, locator, packs, runs, usage
from processors.digest import ViewDigest
from streams.views import ARCHIVED
from turnlog.config import Config
from turnlog.errors import DecodeError
from turnlog.events import TYPES, Event, decode, key_of
from turnlog.kafka import partition_of, partitions_of, read_all

Row = tuple[bytes, bytes, dict[str, Any]]
Canonical = Callable[[Event], Row | None]


class Position(NamedTuple):
    """Where a record stands in the log."""

    topic: str
    partition: int
    offset: int


def fold_log(config: Config) -> dict[str, tuple[int, str]]:
    """Fold every event in Kafka, as far as it reached at the call.

    Returns:
        `{view: (distinct events, digest as 64 hex digits)}` of all five views.

    Raises:
        Unavailable: Kafka does not answer.
    """
    folds: dict[str, tuple[tuple[str, ...], Canonical]] = {
        "runs": (("turnlog.runs",), runs.canonical),
        "usage": (("turnlog.usage",), usage.canonical),
        "packs": (ARCHIVED, packs.canonical),
        "locator": (ARCHIVED, locator.canonical),
    }
    digests = {name: ViewDigest() for name in folds}
    turns: list[tuple[Event, Position]] = []
    subjects = runs.Subjects()
    for topic in ARCHIVED:
        partitions = len(partitions_of(config, topic))
        for event, position in first_occurrences(read_all(config, topic), partitions):
            stray = topic == runs.TOPIC and not subjects.agrees(position.partition, event.body)
            for name, (topics, canonical) in folds.items():
                if topic in topics and not (stray and name == "runs"):
                    _add(digests[name], canonical(event))
            if topic == "turnlog.turns":
                turns.append((event, position))
    digests["conversations"] = _digest(conversations.fold_all(turns))
    return {name: digest.result() for name, digest in digests.items()}


def first_occurrences(
    messages: Iterable[Message], partitions: int
) -> Iterator[tuple[Event, Position]]:
    """Decode records, leaving out repeats of an event_id and what belongs to the dead letters.

    Args:
        messages: of one topic.
        partitions: how many it has.
    """
    seen: set[bytes] = set()
    for message in messages:
        event = _readable(message, partitions)
        if event is not None and event.body["event_id"] not in seen:
            seen.add(event.body["event_id"])
            place = (message.topic(), message.partition(), message.offset())
            yield event, Position(*cast(tuple[str, int, int], place))


def _readable(message: Message, partitions: int) -> Event | None:
    """Decode a record; None where its topic, partition or key is not the one that its body says."""
    try:
        event = decode(message.value() or b"")
    except DecodeError:
        return None
    key = key_of(*event)
    right = TYPES[event.type].topic == message.topic() and key == message.key()
    return event if right and partition_of(key, partitions) == message.partition() else None


def _digest(rows: Iterable[Row]) -> ViewDigest:
    digest = ViewDigest()
    for row in rows:
        _add(digest, row)
    return digest


def _add(digest: ViewDigest, row: Row | None) -> None:
    if row is not None:
        digest.add(*row)
