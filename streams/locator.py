"""Worker `locator`: folds the manifests and the packs' footers into the ClickHouse table `locator`.

For each manifest it reads the footer of the object by one ranged GET, verifies it, and inserts
what of the manifest's org the table does not have yet: so the first manifest that lists a
coordinate owns it, and a manifest that is read again after a crash adds just what was missing.
"""

import logging
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, cast

from confluent_kafka import Message

from processors.digest import ViewDigest
from processors.locator import canonical_row
from sinks.clickhouse.locator import LocatorRow, LocatorTable
from sinks.packs.layout import IndexRow, PackError
from sinks.packs.reader import Footer
from sinks.packs.store import PackStore
from streams.archive import first_occurrences, footer_of, rows_of
from streams.batch import Partition, Sink, run_sink
from streams.dead import Dead
from streams.manifests import Manifest, manifest_of
from streams.views import named
from turnlog.config import Config
from turnlog.errors import DecodeError

logger = logging.getLogger(__name__)

WORKER = "locator"
VIEW = "locator"
GROUP = named(VIEW).group
TOPICS = named(VIEW).topics
TABLE = named(VIEW).table
# A footer of 50,000 records is 3 MB and 50 MB as Python objects. The manifests of one object come
# close together, one an org, in the partitions of their orgs.
FOOTERS_KEPT = 4
INSERT_ROWS = 50_000


def run(config: Config) -> None:
    """Run the worker until SIGTERM.

    Raises:
        Unavailable: Kafka, S3 or ClickHouse failed; start again.
    """
    run_sink(config, WORKER, TOPICS, LocatorSink(config))


class Listed(NamedTuple):
    """A manifest at its offset, and the index rows of its org."""

    offset: int
    manifest: Manifest
    rows: list[IndexRow]


class LocatorSink(Sink):
    """Inserts where archived events lie. The table itself is its memory: recovery asks nothing."""

    max_age_s = 0.2
    max_records = 500
    max_bytes = 16 << 20

    def __init__(self, config: Config) -> None:
        self._store = PackStore(config)
        self._table = LocatorTable(config)
        self._table.ensure()
        self._footers: OrderedDict[str, Footer] = OrderedDict()

    def recover(self, assignments: Mapping[Partition, int]) -> None:
        """Stop what a former owner may still be inserting."""
        self._table.stop_inserts(assignments)

    def forget(self, partitions: Collection[Partition]) -> None:
        """Nothing is kept for a partition."""

    def write(self, messages: Sequence[Message]) -> list[Dead]:
        """Insert what the manifests own; a damaged or missing object is a dead letter."""
        dead: list[Dead] = []
        # One insert in flight for a partition; the order within it decides who owns a record.
        for source, group in groupby(sorted(messages, key=_source), key=_source):
            for portion in _portions(self._listed(group, dead)):
                self._insert(source, portion)
        return dead

    def _listed(self, messages: Iterable[Message], dead: list[Dead]) -> Iterator[Listed]:
        for message in messages:
            # A null value removes an object whose records another one has taken over.
            if message.value() is None:
                continue
            try:
                manifest = manifest_of(message)
                rows = rows_of(self._footer(manifest), manifest)
            except (DecodeError, PackError) as error:
                dead.append(Dead(message, str(error)))
            else:
                yield Listed(cast(int, message.offset()), manifest, rows)

    def _footer(self, manifest: Manifest) -> Footer:
        footer = self._footers.pop(manifest.object, None) or footer_of(self._store, manifest)
        self._footers[manifest.object] = footer
        if len(self._footers) > FOOTERS_KEPT:
            self._footers.popitem(last=False)
        return footer

    def _insert(self, source: Partition, portion: Sequence[Listed]) -> None:
        claimed = self._table.present([span for item in portion for span in item.manifest.spans])
        rows = []
        for item in portion:
            for row in item.rows:
                if row[1:4] not in claimed:
                    claimed.add(row[1:4])
                    rows.append(LocatorRow(*row, item.manifest.object))
        if rows:
            self._table.insert(rows, source, f"{portion[0].offset}-{portion[-1].offset}")
        logger.info("%d manifests, %d new rows", len(portion), len(rows))


def _source(message: Message) -> Partition:
    return cast(str, message.topic()), cast(int, message.partition())


def _portions(listed: Iterable[Listed]) -> Iterator[list[Listed]]:
    """Cut manifests into portions of about `INSERT_ROWS` rows."""
    portion: list[Listed] = []
    size = 0
    for item in listed:
        portion.append(item)
        size += len(item.rows)
        if size >= INSERT_ROWS:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def digest(config: Config) -> tuple[int, str]:
    """Digest of the view, from its table: of several occurrences of an event the first.

    Returns:
        `(distinct events, 64 hex digits)`.

    Raises:
        Unavailable: ClickHouse does not answer.
    """
    table = LocatorTable(config)
    first = first_occurrences(table.rows())
    view = ViewDigest(keep_repeats=True)
    for row in table.rows():
        if first.get((row.topic, row.event_id)) == (row.partition, row.offset):
            view.add(*canonical_row(row._asdict(), row.type))
    return view.result()
