"""One conversation folded again from the log: packs first, then Kafka from where they end."""

from collections.abc import Iterator
from contextlib import closing
from typing import cast

from confluent_kafka import Consumer

from processors.conversation_rows import Head, MemoryRows, pack
from processors.conversations import CREATED, apply, fold
from sinks.redis.conversations import APPLIED, CREATED_FRAME, HEAD, frame_field, turn_field
from streams.archive import Archive, place_of
from streams.conversations.unit import TOPIC, Source
from turnlog.config import Config
from turnlog.errors import DecodeError
from turnlog.events import Event, decode, key_of
from turnlog.kafka import ANSWER_S, partition_of, partitions_of, read_all, reader_settings
from turnlog.passing import bounds

Fields = dict[bytes, bytes]


def rebuild(config: Config, stream: bytes) -> tuple[Head, Fields] | None:
    """Fold every event of a conversation that the log holds now.

    Args:
        config: where the log is.
        stream: the conversation's stream key.

    Returns:
        Its head and all fields of its hash in the read model; None where the log knows nothing.

    Raises:
        Unavailable: Kafka or S3 does not answer.
        PackError: an object that is needed is damaged.
    """
    partition = partition_of(stream, len(partitions_of(config, TOPIC)))
    rows, frames = MemoryRows(), Fields()
    for offset, value in records(config, stream, partition, _start(config, partition)):
        event = _event(stream, value)
        if event is not None:
            _take(rows, frames, event, Source(partition, offset, stream, value))
    head = rows.heads.get(stream)
    if head is None:
        return None
    turns = {turn_field(name): pack(turn) for (_, name), turn in rows.turns.items()}
    return head, turns | frames | {HEAD: pack(head), APPLIED: str(head.applied).encode()}


def _take(rows: MemoryRows, frames: Fields, event: Event, source: Source) -> None:
    outcome = fold(rows, event, source)
    apply(rows, outcome, event.body["event_id"])
    frame: bytes = event.body["frame"]
    if frame and outcome.changed and outcome.own_frame:
        created = event.type == CREATED
        frames[CREATED_FRAME if created else frame_field(event.body["turn"])] = frame


def _event(stream: bytes, value: bytes) -> Event | None:
    """Return the event, None for what the worker left to the dead letters."""
    try:
        event = decode(value)
    except DecodeError:
        return None
    return event if key_of(event.type, event.body) == stream else None


def records(
    config: Config, stream: bytes, partition: int, start: int
) -> Iterator[tuple[int, bytes]]:
    """Yield offsets and values of a stream, in the order of the log, each once.

    Args:
        config: where the log is.
        stream: the stream key.
        partition: the partition that the stream lies in.
        start: the offset from which on Kafka is read; what lies below is read from packs.

    Raises:
        Unavailable: Kafka or S3 does not answer.
        PackError: an object that is needed is damaged.
    """
    if start:
        yield from _archived(config, stream, partition, start)
    for message in read_all(config, TOPIC, [partition]):
        offset, value = cast(int, message.offset()), message.value()
        if message.key() == stream and value is not None and offset >= start:
            yield offset, value


def _start(config: Config, partition: int) -> int:
    """Return the first offset that Kafka still has."""
    with closing(Consumer(reader_settings(config, "read_committed"))) as consumer:
        return bounds(consumer, TOPIC, partition, ANSWER_S)[0]


def _archived(
    config: Config, stream: bytes, partition: int, end: int
) -> Iterator[tuple[int, bytes]]:
    """Yield what the archive holds of a stream below an offset."""
    org = stream.partition(b"/")[0].decode()
    archive = Archive(config)
    found: dict[int, bytes] = {}
    for name, parts in archive.objects.items():
        spans = [span for part in parts for span in part.owned]
        if not any((s.org, s.topic, s.partition) == (org, TOPIC, partition) for s in spans):
            continue
        owned = archive.owned(name)
        for row, key, value in archive.pack(name).records():
            mine = key == stream and row.topic == TOPIC and row.offset < end
            if mine and place_of(row) in owned:
                found[row.offset] = value
    yield from sorted(found.items())
