"""What a run has shown, read back from the log by who takes it over."""

import logging

from serve.doors.life import Life
from streams.finalizer.ending import Lost, output_of
from streams.finalizer.readback import LogReader
from turnlog.config import Config
from turnlog.errors import TurnlogError
from turnlog.events import TYPES, Event
from turnlog.ids import stream_key
from turnlog.kafka import partition_of, partitions_of
from turnlog.keys import Grant
from turnlog.producer.output import Output

logger = logging.getLogger(__name__)

CHUNKS = "turnlog.run-chunks"
# Clocks of two machines; the log's own time is asked for.
_BEFORE_MS = 60_000
_BATCH = TYPES["chunk.batch"].header


def shown_before(config: Config, grant: Grant, life: Life) -> Output | None:
    """Return what a run has shown so far; None where the log or its key cannot be read now."""
    try:
        return _shown(config, grant, life)
    except TurnlogError as error:
        logger.warning("a run is taken over without what it showed before: %s", error)
        return None


def _shown(config: Config, grant: Grant, life: Life) -> Output:
    common, locator = life.common, life.begun.locator
    key = stream_key(common["org"], common["conversation"], common["run"])
    number = partition_of(key, len(partitions_of(config, CHUNKS)))
    reader = LogReader(config)
    try:
        start = reader.offset_at(CHUNKS, number, life.began_us // 1000 - _BEFORE_MS)
        found = [m for m in reader.scan(CHUNKS, number, start) if m.key() == key]
    finally:
        reader.close()
    batches = [m for m in found if (m.value() or b"").startswith(_BATCH)]
    located = {"key_tree": locator.tree, "key_day": locator.day, "key_gen": locator.gen}
    began = Event("run.taken_over", {**common, **located})
    return output_of(Lost(began, life.epoch, 0, batches), grant)
