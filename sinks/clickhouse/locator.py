"""Table `locator`: where every archived event lies. It holds identifiers, times and places only."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from clickhouse_connect.driver.client import Client

from sinks.clickhouse.client import INSERT_SETTINGS, answering, connect
from sinks.clickhouse.columns import quoted
from turnlog.config import Config

NAME = "locator"
# The order of the rows serves both lookups: a coordinate within an org, and what of a manifest's
# ranges is there already.
DDL = """
CREATE TABLE IF NOT EXISTS {database}.locator (
    org LowCardinality(String),
    topic LowCardinality(String),
    partition Int32,
    offset Int64,
    append_us Int64,
    type LowCardinality(String),
    event_id FixedString(16),
    content_mac String,
    conversation String,
    run String,
    turn String,
    user String,
    writer_epoch Int64,
    seq Int64,
    key_tree FixedString(16),
    key_day UInt8,
    key_gen UInt8,
    occurred_at_us Int64,
    time_basis LowCardinality(String),
    object LowCardinality(String),
    frame_offset Int64,
    frame_bytes Int64,
    INDEX by_run run TYPE bloom_filter GRANULARITY 4,
    INDEX by_conversation conversation TYPE bloom_filter GRANULARITY 4,
    INDEX by_event event_id TYPE bloom_filter GRANULARITY 4
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(toDateTime(intDiv(append_us, 1000000), 'UTC'))
ORDER BY (org, topic, partition, offset)
"""
# Spans in one query: a condition of this size is parsed in milliseconds.
SPANS_A_QUERY = 200

Coordinate = tuple[str, int, int]
Span = tuple[str, str, int, int, int]
"""`(org, topic, partition, first, last)`, both offsets included."""


class LocatorRow(NamedTuple):
    """One archived event: the columns of a pack's index, and the object it lies in."""

    org: str
    topic: str
    partition: int
    offset: int
    append_us: int
    type: str
    event_id: bytes
    content_mac: bytes
    conversation: str
    run: str
    turn: str
    user: str
    writer_epoch: int
    seq: int
    key_tree: bytes
    key_day: int
    key_gen: int
    occurred_at_us: int
    time_basis: str
    frame_offset: int
    frame_bytes: int
    object: str


class LocatorTable:
    """Reads and writes the table.

    Args:
        config: where ClickHouse is.

    Each method raises Unavailable when ClickHouse does not answer.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._table = f"{config.clickhouse_database}.{NAME}"

    @cached_property
    def _client(self) -> Client:
        return connect(self._config)

    def ensure(self) -> None:
        """Make the table where it does not exist; safe to be called by several workers at once."""
        database = self._config.clickhouse_database
        with answering():
            self._client.command(f"CREATE DATABASE IF NOT EXISTS {database}")
            self._client.command(DDL.format(database=database))

    def find(self, org: str, topic: str, partition: int, offset: int) -> LocatorRow | None:
        """Return where the event at a coordinate lies; None when the locator does not have it."""
        query = (
            f"SELECT {_LIST} FROM {self._table} WHERE org = {{org:String}}"
            " AND topic = {topic:String} AND partition = {partition:Int32}"
            " AND offset = {offset:Int64} LIMIT 1"
        )
        place = {"org": org, "topic": topic, "partition": partition, "offset": offset}
        with answering():
            found = self._client.query(query, place, column_formats=_BYTES).result_rows
        return LocatorRow(*found[0]) if found else None

    def present(self, spans: Sequence[Span]) -> set[Coordinate]:
        """Return the coordinates within spans that the table has already."""
        found: set[Coordinate] = set()
        for start in range(0, len(spans), SPANS_A_QUERY):
            condition = " OR ".join(map(_within, spans[start : start + SPANS_A_QUERY]))
            query = f"SELECT topic, partition, offset FROM {self._table} WHERE {condition}"
            with answering():
                found.update((t, p, o) for t, p, o in self._client.query(query).result_rows)
        return found

    def stop_inserts(self, sources: Iterable[tuple[str, int]]) -> None:
        """End the inserts that a former owner of these partitions may still have in flight."""
        prefixes = [quoted(self._query_id(*source, "")) for source in sources]
        if prefixes:
            which = " OR ".join(f"startsWith(query_id, {prefix})" for prefix in prefixes)
            with answering():
                self._client.command(f"KILL QUERY WHERE {which} SYNC")

    def _query_id(self, topic: str, partition: int, what: str) -> str:
        return f"{self._table}/{topic}/{partition}/{what}"

    def insert(self, rows: Sequence[LocatorRow], source: tuple[str, int], what: str) -> None:
        """Insert rows; on return they are durable.

        Args:
            rows: at least one.
            source: the partition whose records say so: a later owner finds the insert by it.
            what: which of its records.
        """
        # A generator, because the client sends bytes again by itself when the connection breaks
        # after the insert was done: every row twice.
        body = (piece for piece in [_arrow(rows)])
        settings = INSERT_SETTINGS | {"query_id": self._query_id(*source, what)}
        with answering():
            self._client.raw_insert(
                self._table, LocatorRow._fields, body, settings=settings, fmt="ArrowStream"
            )

    def rows(self) -> Iterator[LocatorRow]:
        """Yield every row, in the order of the log of each partition."""
        query = f"SELECT {_LIST} FROM {self._table} ORDER BY topic, partition, offset"
        with answering(), self._client.query_rows_stream(query, column_formats=_BYTES) as stream:
            yield from map(LocatorRow._make, stream)


_LIST = ", ".join(LocatorRow._fields)
_FIXED = ("event_id", "key_tree")
_BYTES: dict[str, str | dict[str, str]] = {"content_mac": "bytes"}


def _within(span: Span) -> str:
    org, topic, partition, first, last = span
    return (
        f"(org = {quoted(org)} AND topic = {quoted(topic)} AND partition = {partition:d}"
        f" AND offset BETWEEN {first:d} AND {last:d})"
    )


def _arrow(rows: Sequence[LocatorRow]) -> bytes:
    """Return rows as an Arrow stream."""
    # Imported by who inserts: it takes 0.3 s, a third of what `turnlog run` takes without it.
    import pyarrow as pa

    kinds = {"fixed": pa.binary(16), "bytes": pa.binary(), "str": pa.string(), "int": pa.int64()}
    columns = zip(LocatorRow._fields, zip(*rows, strict=True), strict=True)
    table = pa.table({name: pa.array(v, kinds[_arrow_type(name)]) for name, v in columns})
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    data: bytes = out.getvalue().to_pybytes()
    return data


def _arrow_type(name: str) -> str:
    return "fixed" if name in _FIXED else LocatorRow.__annotations__[name].__name__
