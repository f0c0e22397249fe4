"""The digest of a ClickHouse table, from its rows as they are stored."""

from collections.abc import Callable, Iterator
from typing import Any

from processors.common import Row
from processors.digest import ViewDigest
from sinks.clickhouse.client import ClickHouse
from sinks.clickhouse.tables import Table
from turnlog.config import Config
from turnlog.events import Event


def table_digest(
    config: Config, table: Table, canonical: Callable[[Event], Row | None]
) -> tuple[int, str]:
    """Return the number of distinct events in a table and its digest.

    A row that is stored twice changes the digest, and so does one changed value.

    Raises:
        Unavailable: ClickHouse does not answer.
    """
    digest = ViewDigest(keep_repeats=True)
    for event in stored_events(ClickHouse(config), table):
        row = canonical(event)
        if row is not None:
            digest.add(*row)
    return digest.result()


def stored_events(clickhouse: ClickHouse, table: Table) -> Iterator[Event]:
    """Yield the rows of a table as the events that they were, without frames.

    Raises:
        Unavailable: ClickHouse does not answer.
    """
    fields = {kind.name: [field.name for field in kind.fields] for kind in table.types}
    names = [column.name for column in table.columns]
    # Not valid UTF-8, so as hex, which is what a digest takes bytes for.
    listed = ", ".join("lower(hex(content_mac))" if n == "content_mac" else n for n in names)
    query = f"SELECT type, {listed} FROM {clickhouse.database}.{table.name}"
    for type_, *values in clickhouse.stream(query):
        row: dict[str, Any] = dict(zip(names, values, strict=True)) | {"frame": b""}
        yield Event(type_, {name: row[name] for name in fields[type_]})
