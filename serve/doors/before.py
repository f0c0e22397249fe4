"""What the log has of a run, read back by who takes it over."""

import logging
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from confluent_kafka import Message

from processors.runs import TERMINAL
from processors.runs import TOPIC as RUNS
from processors.usage import TOPIC as USAGE
from serve.doors.life import Life
from streams.finalizer.ending import Lost, output_of
from streams.finalizer.readback import LogReader
from turnlog.config import Config
from turnlog.errors import DecodeError, TurnlogError
from turnlog.events import TYPES, Event, decode
from turnlog.ids import stream_key
from turnlog.kafka import partition_of, partitions_of
from turnlog.keys import Grant
from turnlog.producer.output import Output
from turnlog.producer.transport import Position
from turnlog.producer.writer import natural_event_id

logger = logging.getLogger(__name__)

CHUNKS = "turnlog.run-chunks"
RECORDED = "usage.recorded"
# Clocks of two machines; the log's own time is asked for.
_BEFORE_MS = 60_000
_BATCH = TYPES["chunk.batch"].header


class Before(NamedTuple):
    """How far the end of a run had come.

    Attributes:
        status: as its writer's own terminal event says; empty where there is none.
        position: where that is.
        counted: whether its writer's usage stands in the log.
    """

    status: str = ""
    position: str = ""
    counted: bool = False

    @property
    def whole(self) -> bool:
        """Whether nothing of the end is missing."""
        return bool(self.status) and self.counted


def ended_before(config: Config, life: Life) -> Before:
    """Return how far the process that held a run had come with its end.

    Raises:
        Unavailable: the log cannot be read now.
    """
    found = Before()
    with closing(LogReader(config)) as reader:
        for message, event in _own(config, reader, RUNS, life):
            if event.type in TERMINAL:
                place = Position(RUNS, message.partition() or 0, message.offset() or 0)
                found = Before(event.body["status"], str(place))
        used = any(event.type == RECORDED for _, event in _own(config, reader, USAGE, life))
    return found._replace(counted=used)


def _own(
    config: Config, reader: LogReader, topic: str, life: Life
) -> Iterator[tuple[Message, Event]]:
    """Yield what the run's holder wrote; the finalizer's events have no number of the writer's."""
    for message in _records(config, reader, topic, life):
        try:
            event = decode(message.value() or b"")
        except DecodeError:
            continue  # a dead letter of the sinks'
        body = event.body
        is_the_runs = body["run"] == life.common["run"] and body["writer_epoch"] == life.epoch
        if is_the_runs and body["event_id"] == natural_event_id(event.type, body):
            yield message, event


def shown_before(config: Config, grant: Grant, life: Life) -> Output | None:
    """Return what a run has shown so far; None where the log or its key cannot be read now."""
    try:
        return _shown(config, grant, life)
    except TurnlogError as error:
        logger.warning("a run is taken over without what it showed before: %s", error)
        return None


def _shown(config: Config, grant: Grant, life: Life) -> Output:
    with closing(LogReader(config)) as reader:
        found = list(_records(config, reader, CHUNKS, life))
    batches = [m for m in found if (m.value() or b"").startswith(_BATCH)]
    locator = life.begun.locator
    located = {"key_tree": locator.tree, "key_day": locator.day, "key_gen": locator.gen}
    began = Event("run.taken_over", {**life.common, **located})
    return output_of(Lost(began, life.epoch, 0, batches), grant)


def _records(config: Config, reader: LogReader, topic: str, life: Life) -> Iterator[Message]:
    """Yield the records of the run's stream since it began."""
    common = life.common
    key = stream_key(common["org"], common["conversation"], common["run"])
    number = partition_of(key, len(partitions_of(config, topic)))
    start = reader.offset_at(topic, number, life.began_us // 1000 - _BEFORE_MS)
    return (message for message in reader.scan(topic, number, start) if message.key() == key)
