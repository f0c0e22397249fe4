"""The tables, and the statements that make them.

One row an event, exact without FINAL. A row is inserted as its event's own Avro body, so the table
checks what a decoder would: `checked` is always 0, and its DEFAULT refuses an insert in which a
body is not as long as the values read from it are in Avro (a body that was cut, padded or followed
by anything, whatever the parser made of it), or in which a string is outside its shape (law 5).
"""

import hashlib
import itertools
from collections.abc import Mapping
from functools import cached_property

from sinks.clickhouse.client import ClickHouse
from sinks.clickhouse.columns import (
    Column,
    body_bytes,
    bound_conditions,
    columns_of,
    quoted,
    shape_conditions,
)
from turnlog.config import Config
from turnlog.events import TYPES, EventType

DAY_US = 86_400_000_000
SKEW_US = 300_000_000

# What the sink knows of a record besides its body.
COORDINATES = {
    "partition": "Int32",
    "offset": "Int64",
    "append_us": "Int64",
    "frame_bytes": "Int32",
}
# A part of one insert has about 12 MB in 50 columns: one file instead of 150. The engine's own
# statistics, where its version makes any, are of no use here and cost as much as a projection.
STORAGE = {"min_bytes_for_wide_part": "134217728", "auto_statistics_types": "''"}
EFFECTIVE_US = (
    f"if(occurred_at_us BETWEEN append_us - {DAY_US} AND append_us + {SKEW_US}, "
    "occurred_at_us, append_us)"
)


class Table:
    """One table and the events that land in it.

    Args:
        name: in our database.
        topic: Kafka topic whose event types it holds.
        order_by: sorting key.
        extra: further column-level declarations, such as projections.
        source: Kafka topic that is read, when it is not `topic` (a benchmark's copy).
    """

    def __init__(
        self, name: str, topic: str, order_by: str, extra: str = "", source: str = ""
    ) -> None:
        self.name = name
        self.topic = topic
        self.order_by = order_by
        self.extra = extra
        self.source = source or topic

    def copy(self, name: str, source: str) -> "Table":
        """Return the same table under another name, fed from another topic."""
        return Table(name, self.topic, self.order_by, self.extra, source)

    @cached_property
    def types(self) -> tuple[EventType, ...]:
        """Return its event types in their present versions."""
        return tuple(kind for kind in TYPES.values() if kind.topic == self.topic)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """Return a column for each field of a body, without the frame."""
        return columns_of(self.types)

    def create(self, database: str, storage: Mapping[str, str]) -> str:
        """Return the statement that makes it where it does not exist.

        Args:
            database: where.
            storage: settings of the table, those of STORAGE that the engine knows.
        """
        declarations = [*self.declarations.values(), *([self.extra] if self.extra else [])]
        return (
            f"CREATE TABLE IF NOT EXISTS {database}.{self.name} (\n  "
            + ",\n  ".join(declarations)
            + "\n) ENGINE = MergeTree "
            "PARTITION BY toYYYYMM(fromUnixTimestamp64Micro(append_us, 'UTC')) "
            f"ORDER BY ({self.order_by}) "
            f"SETTINGS {', '.join(f'{name} = {value}' for name, value in storage.items())}"
        )

    @cached_property
    def declarations(self) -> dict[str, str]:
        """Return the declaration of each column, by its name and in order."""
        effective_us = f"fromUnixTimestamp64Micro({EFFECTIVE_US}, 'UTC')"
        types = {
            "type_wire": "String EPHEMERAL",
            "type": "LowCardinality(String) DEFAULT replaceOne(type_wire, '_', '.')",
            "topic": f"LowCardinality(String) ALIAS {quoted(self.source)}",
            **COORDINATES,
            **dict(itertools.chain(*(column.declarations() for column in self.columns))),
            "body_bytes": "Int64 EPHEMERAL",
            "decoded": "Int32 EPHEMERAL",
            "checked": f"UInt8 DEFAULT {self.check} COMMENT '{self.check_mark}'",
            "effective_at": f"DateTime64(6, 'UTC') MATERIALIZED {effective_us}",
            "clock_skew": f"Bool ALIAS {EFFECTIVE_US} != occurred_at_us",
        }
        return {name: f"`{name}` {declared}" for name, declared in types.items()}

    @cached_property
    def check(self) -> str:
        """Return the SQL that refuses rows which no decoder would give, and values out of shape.

        `decoded` says that the body was decoded before, and that its length is right.
        """
        # The 10 bytes before the body, and the length of the frame that was cut out.
        whole = f"(decoded OR body_bytes = 11 + {body_bytes(self.columns)})"
        conditions = [whole, "org_wire != ''", *shape_conditions(self.columns)]
        conditions += bound_conditions(self.columns)
        return f"throwIf(NOT ({' AND '.join(conditions)}), 'a row does not pass')"

    @cached_property
    def check_mark(self) -> str:
        """Return what tells this check from that of another version; it is the column's comment."""
        return hashlib.sha256(self.check.encode()).hexdigest()[:16]


_FIELDS = [field.name for field in TYPES["usage.recorded"].fields]
CLASSES = tuple(_FIELDS[_FIELDS.index("model") + 1 : _FIELDS.index("cost_nano_usd")])
"""The token classes, as the schema lists them."""

_SUMS = ", ".join(f"sum(sign * {name})" for name in [*CLASSES, "cost_nano_usd"])
_GROUP = "org, project, provider, model, quality, toStartOfFifteenMinutes(effective_at)"

USAGE = Table(
    "usage",
    "turnlog.usage",
    "org, run, event_id",
    f"PROJECTION quarter_hours (SELECT {_GROUP}, {_SUMS}, count() GROUP BY {_GROUP})",
)
RUNS = Table("runs", "turnlog.runs", "org, run, writer_epoch, seq, event_id")


def ensure_tables(config: Config, *tables: Table) -> ClickHouse:
    """Make what is missing, columns of newer schema versions included; return the connection.

    Idempotent, and safe to be called by several workers at once.

    Raises:
        Unavailable: ClickHouse does not answer.
    """
    clickhouse = ClickHouse(config)
    clickhouse.command(f"CREATE DATABASE IF NOT EXISTS {clickhouse.database}")
    known = {name for (name,) in clickhouse.rows("SELECT name FROM system.merge_tree_settings")}
    storage = {name: value for name, value in STORAGE.items() if name in known}
    for table in tables:
        clickhouse.command(table.create(clickhouse.database, storage))
        _add_columns(clickhouse, table)
    return clickhouse


def _add_columns(clickhouse: ClickHouse, table: Table) -> None:
    rows = clickhouse.rows(
        "SELECT name, comment FROM system.columns "
        "WHERE database = {database:String} AND table = {table:String}",
        {"database": clickhouse.database, "table": table.name},
    )
    there = dict(rows)
    missing = [declared for name, declared in table.declarations.items() if name not in there]
    full_name = f"{clickhouse.database}.{table.name}"
    for declared in missing:
        clickhouse.command(f"ALTER TABLE {full_name} ADD COLUMN IF NOT EXISTS {declared}")
    if missing or there.get("checked") != table.check_mark:
        clickhouse.command(f"ALTER TABLE {full_name} MODIFY COLUMN {table.declarations['checked']}")
