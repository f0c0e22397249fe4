"""Worker `ingest-sink`: moves archived topics into ingest objects in S3 (docs/pack-format.md).

One batch becomes one object with all its partitions and orgs, then a manifest for each org; then
the loop commits. A worker that died in between left at most an object that nobody owns, or an
object some of whose orgs have their manifest: on assignment the sink reads the manifests and
leaves out what they list.
"""

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from io import BytesIO
from operator import itemgetter
from typing import Any

from confluent_kafka import Message

from processors.digest import ViewDigest
from processors.packs import Claims, archivable, canonical
from sinks.packs.layout import COLUMNS
from sinks.packs.store import PackStore
from sinks.packs.writer import PackRecord, PackSummary, write_pack
from streams.archive import Archive, first_occurrences, place_of
from streams.batch import Partition, Sink, run_sink
from streams.dead import Dead
from streams.manifests import Manifests, live_manifests
from streams.views import named
from turnlog.config import Config
from turnlog.errors import DecodeError
from turnlog.events import TYPES, decode, key_of
from turnlog.events.slices import frame_span
from turnlog.ids import uuid7, uuid_text
from turnlog.kafka import partition_of, partitions_of

logger = logging.getLogger(__name__)

WORKER = "ingest-sink"
VIEW = "packs"
GROUP = named(VIEW).group
TOPICS = named(VIEW).topics
TABLE = named(VIEW).table
KIND = "ingest"
MISPLACED = "partition_mismatch"
MAX_RECORDS = 50_000


def run(config: Config) -> None:
    """Run the worker until SIGTERM.

    Raises:
        Unavailable: Kafka or S3 failed; start again.
    """
    run_sink(config, WORKER, TOPICS, IngestSink(config))


class IngestSink(Sink):
    """Makes one object of each batch.

    Memory: the batch's values (`max_bytes`) and the object made of them, besides about 1.5 KB of
    Python objects a record; frames are copied once, into the object.
    """

    def __init__(self, config: Config) -> None:
        self.max_age_s = config.pack_max_age_s
        self.max_bytes = config.pack_max_bytes
        self.max_records = MAX_RECORDS
        self._config = config
        self._store = PackStore(config)
        self._manifests = Manifests(config)
        self._claims: dict[Partition, Claims] = {}
        self._partitions: dict[str, int] = {}

    def recover(self, assignments: Mapping[Partition, int]) -> None:
        """Learn from the manifests which records from the committed offsets on are archived."""
        self._claims |= {partition: Claims() for partition in assignments}
        for topic in {topic for topic, _ in assignments} - self._partitions.keys():
            self._partitions[topic] = len(partitions_of(self._config, topic))
        for span in (s for found in live_manifests(self._config) for s in found.spans):
            partition = (span.topic, span.partition)
            if partition in assignments and span.last >= assignments[partition]:
                self._claims[partition].claim(span)

    def forget(self, partitions: Collection[Partition]) -> None:
        """Drop what was read about partitions that another worker owns now."""
        for partition in partitions:
            self._claims.pop(partition, None)

    def write(self, messages: Sequence[Message]) -> list[Dead]:
        """Put the batch into an object and its manifests; on return both are durable."""
        dead: list[Dead] = []
        records: dict[Any, PackRecord] = {}
        elsewhere = []
        for message in messages:
            try:
                record = pack_record(message, self._partitions.get(message.topic() or "", 0))
            except DecodeError as error:
                dead.append(Dead(message, str(error)))
                continue
            org, topic, partition, offset = record.entry[:4]
            if (org, topic, partition, offset) in self._claims.get((topic, partition), ()):
                elsewhere.append((topic, partition, offset))
            else:
                records[topic, partition, offset] = record
        if records:
            self._archive(records.values(), elsewhere)
        return dead

    def _archive(
        self, records: Collection[PackRecord], elsewhere: Collection[tuple[str, int, int]]
    ) -> None:
        started = time.monotonic()
        out = BytesIO()
        summary = write_pack(records, out, kind=KIND, elsewhere=elsewhere)
        name = self._put(out, summary)
        self._manifests.write(name, KIND, summary)
        logger.info(
            "%s: %d records of %d orgs, %d bytes in %.2f s",
            name,
            summary.records,
            len(summary.orgs),
            summary.size_bytes,
            time.monotonic() - started,
        )

    def _put(self, out: BytesIO, summary: PackSummary) -> str:
        out.seek(0)
        key = f"{KIND}/{datetime.now(UTC):%Y-%m-%d}/{uuid_text(uuid7())}"
        self._store.put(key, out, summary.digest)
        return self._store.name(key)


def pack_record(message: Message, partitions: int = 0) -> PackRecord:
    """Part a record into frame and rest, with what the index says of it.

    The rest is decoded, half of the work done here: what does not decode must not get into the
    archive, or packs and locator would hold what the fold of the log leaves out.

    Args:
        message: the record.
        partitions: how many its topic has; 0: where it stands is not checked.

    Raises:
        DecodeError: the record is not an event, its key is another's, it stands in another
            partition than its key says, or an id of it is none.
    """
    value = message.value()
    if value is None:
        raise DecodeError("the record has no value")
    at, start, end = frame_span(value)
    rest = value if start == end else value[:at] + b"\0" + value[end:]
    event = decode(rest)
    key = message.key()
    if TYPES[event.type].topic != message.topic():
        raise DecodeError(f"{event.type} does not belong in {message.topic()}")
    if key != key_of(event.type, event.body):
        raise DecodeError("the key disagrees with the body")
    if partitions and partition_of(key, partitions) != message.partition():
        raise DecodeError(MISPLACED)
    if not archivable(event.body):
        raise DecodeError("an id of the body has not the form of one")
    place = (message.topic(), message.partition(), message.offset(), message.timestamp()[1] * 1000)
    entry = (event.body["org"], *place, event.type, *_indexed(event.body))
    return PackRecord(entry, key, rest, memoryview(value)[start:end])


# The rest of the index, COLUMNS from `event_id` to `time_basis`, comes from the body as it is.
_indexed = itemgetter(*COLUMNS[COLUMNS.index("event_id") : COLUMNS.index("frame_offset")])


def digest(config: Config) -> tuple[int, str]:
    """Digest of the view `packs`, from the objects themselves.

    Every object that a manifest names is read whole and verified; a record counts where the first
    manifest that lists it says it is, and of several occurrences of an event the first.

    Returns:
        `(distinct events, 64 hex digits)`.

    Raises:
        PackError: an object is missing or damaged.
        Unavailable: Kafka or S3 does not answer.
    """
    view = ViewDigest(keep_repeats=True)
    archive = Archive(config)
    first = first_occurrences(archive.rows())
    for name in archive.objects:
        owned = archive.owned(name)
        for row, _, body in archive.pack(name).stored():
            here = first.get((row.topic, row.event_id)) == (row.partition, row.offset)
            found = canonical(decode(body)) if here and place_of(row) in owned else None
            if found is not None:
                view.add(*found)
    return view.result()
