"""The tables: what their computed columns say, and how they take newer schema versions."""

import itertools
import json
import os
from typing import Any

import pytest

from sinks.clickhouse import container
from sinks.clickhouse.client import ClickHouse, InsertRefused
from sinks.clickhouse.columns import columns_of, padding
from sinks.clickhouse.container import Batch, Builder
from sinks.clickhouse.queries import GROUP_COLUMNS, usage_by
from sinks.clickhouse.tables import DAY_US, RUNS, USAGE, Table, ensure_tables
from turnlog.config import Config
from turnlog.events import TYPES, codec, decode, encode
from turnlog.events.schema import read_type

APPENDED_US = 1_796_000_000_000_000
_numbers = itertools.count()


@pytest.fixture
def table(stack: Config) -> Table:
    own = USAGE.copy(f"usage_{os.getpid()}_{next(_numbers)}", "turnlog.test")
    ensure_tables(stack, own)
    return own


def usage_value(**more: Any) -> bytes:
    body = {
        "org": "acme",
        "conversation": "c",
        "run": "r",
        "event_id": os.urandom(16),
        "occurred_at_us": APPENDED_US,
    }
    return encode("usage.recorded", body | more)


def insert(config: Config, table: Table, *values: bytes) -> None:
    count = len(values)
    keys, offsets = [b"acme/c"] * count, list(range(count))
    stamps = [APPENDED_US // 1000] * count
    built = Builder(table).build(Batch(keys, list(values), [0] * count, offsets, stamps))
    assert built.refused == []
    for part in built.containers:
        ClickHouse(config).insert_avro(table.name, part.columns, part.pieces, f"{table.name} 0:0")


def select(config: Config, table: Table, columns: str) -> list[tuple[Any, ...]]:
    sql = f"SELECT {columns} FROM turnlog.{table.name} ORDER BY offset"
    return ClickHouse(config).rows(sql)


def test_the_effective_time_is_the_writers_where_its_clock_can_be_right(
    stack: Config, table: Table
) -> None:
    minute = 60_000_000
    skews = [0, -DAY_US, -DAY_US - 1, 5 * minute, 5 * minute + 1]
    insert(stack, table, *(usage_value(occurred_at_us=APPENDED_US + skew) for skew in skews))
    found = select(stack, table, "toUnixTimestamp64Micro(effective_at), clock_skew")
    assert found == [
        (APPENDED_US, False),
        (APPENDED_US - DAY_US, False),
        (APPENDED_US, True),
        (APPENDED_US + 5 * minute, False),
        (APPENDED_US, True),
    ]


def test_months_of_append_time_are_partitions_and_the_roll_up_is_a_projection(
    stack: Config, table: Table
) -> None:
    insert(stack, table, usage_value(occurred_at_us=1))
    clickhouse = ClickHouse(stack)
    parts = "SELECT partition FROM system.{kind}parts WHERE table = {{table:String}} AND active"
    names = {"table": table.name}
    assert clickhouse.rows(parts.format(kind=""), names) == [("202611",)]
    assert clickhouse.rows(parts.format(kind="projection_"), names) == [("202611",)]


def test_making_tables_again_changes_nothing(stack: Config, table: Table) -> None:
    insert(stack, table, usage_value())
    ensure_tables(stack, table, RUNS, USAGE)
    assert select(stack, table, "run") == [("r",)]


def test_columns_of_a_newer_version_are_added(stack: Config, table: Table) -> None:
    clickhouse = ClickHouse(stack)
    insert(stack, table, usage_value())
    columns = "DROP COLUMN checked, DROP COLUMN response_ref, DROP COLUMN evaluator"
    clickhouse.command(f"ALTER TABLE turnlog.{table.name} {columns} SETTINGS mutations_sync = 1")
    ensure_tables(stack, table)
    insert(stack, table, usage_value(response_ref="x"))
    assert {row[0] for row in select(stack, table, "response_ref")} == {"", "x"}


def test_an_earlier_version_of_a_schema_takes_the_defaults(
    stack: Config, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    present = TYPES["usage.recorded"]
    raw = json.loads(present.text)
    raw["fields"] = [
        f for f in raw["fields"] if f["name"] not in ("quality", "response_ref", "sign")
    ]
    earlier = read_type(json.dumps(raw))
    lacking = padding(columns_of([present]), earlier)
    assert lacking == len(usage_value()) - len(_shorter(usage_value()))
    monkeypatch.setattr(container, "by_fingerprint", lambda _: earlier)
    insert(stack, table, _shorter(usage_value(), earlier.header))
    assert select(stack, table, "quality, response_ref, sign") == [("unknown", "", 1)]


def _shorter(value: bytes, header: bytes = b"") -> bytes:
    """Take `sign` 1, `quality` unknown and an empty `response_ref` out of an encoded event."""
    without = value.replace(b"\x02\x0eunknown", b"")
    assert len(without) == len(value) - 9
    return (header or value[:10]) + without[10:-1]


def test_an_older_check_is_replaced_and_what_it_let_in_is_summed_exactly(
    stack: Config, table: Table
) -> None:
    full = decode(usage_value(quality="measured", model="m"))
    vast = codec.write(TYPES[full.type], full.body | {"cost_nano_usd": 2**63 - 1})
    clickhouse = ClickHouse(stack)
    with pytest.raises(InsertRefused):
        insert(stack, table, vast)
    older = "MODIFY COLUMN checked UInt8 DEFAULT 0 COMMENT ''"
    clickhouse.command(f"ALTER TABLE turnlog.{table.name} {older}")
    insert(stack, table, *[vast] * 5)
    (row,) = usage_by(clickhouse, "acme", [], table=table)
    assert row["cost_nano_usd"] == 5 * (2**63 - 1)
    ensure_tables(stack, table)
    with pytest.raises(InsertRefused):
        insert(stack, table, vast)


def test_usage_sums_what_is_known_and_counts_what_is_not(stack: Config, table: Table) -> None:
    insert(
        stack,
        table,
        usage_value(run="a", quality="measured", output_text=5, cost_nano_usd=7),
        usage_value(run="b", quality="estimated", output_text=3, cost_nano_usd=None),
        usage_value(run="e", quality="estimated", output_text=9, cost_nano_usd=1),
        usage_value(run="e", quality="estimated", output_text=9, cost_nano_usd=1, sign=-1),
        usage_value(run="e", quality="measured", output_text=8, cost_nano_usd=2),
        usage_value(run="d", quality="unknown", output_text=1000, model="m"),
    )
    clickhouse = ClickHouse(stack)
    (row,) = usage_by(clickhouse, "acme", [], table=table)
    assert (row["runs"], row["output_text"], row["cost_nano_usd"]) == (4, 16, 9)
    assert (row["unknown"], row["unpriced"], row["input_uncached"]) == (1, 1, 0)
    by_model = {row["model"]: row for row in usage_by(clickhouse, "acme", ["model"], table=table)}
    assert by_model["m"]["unknown"] == 1
    assert by_model["m"]["output_text"] == 0
    for name in GROUP_COLUMNS:
        assert list(usage_by(clickhouse, "acme", [name], "default", table)) == []
        assert (
            sum(row["output_text"] for row in usage_by(clickhouse, "acme", [name], None, table))
            == 16
        )
