"""What a sink asks its own table: which records are there, and which events were seen before."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sinks.clickhouse.client import ClickHouse
from sinks.clickhouse.tables import DAY_US, Table

# Repeats this close to each other in the log are caught whatever they say of themselves.
WINDOW_US = 8 * DAY_US
_IDS_A_QUERY = 5_000


class Recent(NamedTuple):
    """What is in the table of one partition.

    Attributes:
        newest_us: highest append time, 0 when there is nothing.
        older: whether there are rows before the window that ends at `newest_us`.
        ids: the event ids within the window, by day of append time.
    """

    newest_us: int
    older: bool
    ids: dict[int, list[bytes]]


def stop_others(clickhouse: ClickHouse, table: Table, partitions: Iterable[int]) -> None:
    """End inserts that a former owner of these partitions may still have in flight.

    On return none of them writes any more, so that what is then read is what is there.

    Raises:
        Unavailable: ClickHouse does not answer or does not allow it.
    """
    numbers = "|".join(str(number) for number in partitions)
    clickhouse.command(
        "KILL QUERY WHERE match(query_id, {pattern:String}) SYNC",
        {"pattern": f"^{table.source} (.* )?({numbers}):"},
    )


def query_id(table: Table, spans: Mapping[int, tuple[int, int]], header: bytes) -> str:
    """Return the name of an insert: topic, partitions and offsets of what it may hold, schema."""
    listed = " ".join(f"{number}:{first}-{last}" for number, (first, last) in spans.items())
    return f"{table.source} {listed} {header.hex()}"


def stored_offsets(
    clickhouse: ClickHouse, table: Table, start: Mapping[int, int]
) -> dict[int, set[int]]:
    """Return the offsets at and behind each partition's start that are in the table.

    A set and never a maximum: an insert that failed beside one that did not leaves holes.

    Raises:
        Unavailable: ClickHouse does not answer.
    """
    found: dict[int, set[int]] = {number: set() for number in start}
    behind = " OR ".join(f"(partition = {n:d} AND offset >= {at:d})" for n, at in start.items())
    name = f"{clickhouse.database}.{table.name}"
    for number, offset in clickhouse.stream(f"SELECT partition, offset FROM {name} WHERE {behind}"):
        found[number].add(offset)
    return found


def recent(clickhouse: ClickHouse, table: Table, partitions: Iterable[int]) -> dict[int, Recent]:
    """Return what the table holds of each partition within the window before its newest row.

    Raises:
        Unavailable: ClickHouse does not answer.
    """
    found = {number: Recent(0, False, {}) for number in partitions}
    name = f"{clickhouse.database}.{table.name}"
    listed = ", ".join(f"{number:d}" for number in found)
    ends = (
        f"SELECT partition, min(append_us), max(append_us) FROM {name} "
        f"WHERE partition IN ({listed}) GROUP BY partition"
    )
    for number, oldest, newest in clickhouse.rows(ends):
        found[number] = Recent(newest, oldest < newest - WINDOW_US, {})
    floors = {number: part.newest_us - WINDOW_US for number, part in found.items() if part[0]}
    for number, day, event_id in _ids(clickhouse, name, floors):
        found[number].ids.setdefault(day, []).append(event_id)
    return found


def _ids(clickhouse: ClickHouse, name: str, floors: Mapping[int, int]) -> Iterator[tuple[Any, ...]]:
    if not floors:
        return
    within = " OR ".join(
        f"(partition = {number:d} AND append_us >= {floor:d})" for number, floor in floors.items()
    )
    lowest = min(floors.values())
    yield from clickhouse.stream(
        f"SELECT partition, intDiv(append_us, {DAY_US}), event_id FROM {name} "
        f"WHERE append_us >= {lowest:d} AND ({within})"
    )


def identities(
    clickhouse: ClickHouse, table: Table, event_ids: Sequence[bytes], columns: Sequence[str]
) -> dict[bytes, tuple[Any, ...]]:
    """Return the given columns of stored events, by event id; bytes as hex.

    Raises:
        Unavailable: ClickHouse does not answer.
    """
    name = f"{clickhouse.database}.{table.name}"
    listed = ", ".join(_as_text(column) for column in columns)
    found: dict[bytes, tuple[Any, ...]] = {}
    for start in range(0, len(event_ids), _IDS_A_QUERY):
        some = [event_id.hex() for event_id in event_ids[start : start + _IDS_A_QUERY]]
        rows = clickhouse.stream(
            f"SELECT event_id, {listed} FROM {name} "
            "WHERE event_id IN (SELECT toFixedString(unhex(x), 16) "
            "FROM (SELECT arrayJoin({ids:Array(String)}) AS x))",
            {"ids": some},
        )
        found.update({row[0]: tuple(row[1:]) for row in rows})
    return found


def _as_text(column: str) -> str:
    return f"lower(hex({column}))" if column == "content_mac" else column
