"""`turnlog usage`: tokens and cost, by what you like."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any

import click

from serve.cli.output import is_terminal, json_line, table
from sinks.clickhouse.queries import GROUP_COLUMNS, usage_by
from sinks.clickhouse.tables import CLASSES, USAGE, ensure_tables
from turnlog.config import load
from turnlog.errors import UsageError
from turnlog.keeper_client import credential_of

INSTANT = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ"])
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@click.command()
@click.option("--org", required=True, help="Organisation.")
@click.option(
    "--by", default="provider,model", show_default=True, help="Columns to group by, with commas."
)
@click.option("--project", help="Only usage of this project.")
@click.option(
    "--since",
    type=INSTANT,
    metavar="TIME",
    help="Only what took effect then or later, in UTC: 2026-11-30 or 2026-11-30T12:00:00Z.",
)
@click.option("--until", type=INSTANT, metavar="TIME", help="Only what took effect before.")
@click.option("--limit", type=click.IntRange(1), help="At most so many groups. [default: all]")
@click.option("--json", "as_json", is_flag=True, help="One object a line.")
def usage(
    org: str,
    by: str,
    project: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """Sum up tokens and cost of an org.

    The costliest group comes first, of equal ones that with the most tokens. Counts hold what was
    measured or estimated. Runs whose usage is not known are counted under `unknown`, those whose
    tokens have no price under `unpriced`; neither adds a zero.

    Example: turnlog usage --org local --by model --since 2026-11-01 --until 2026-12-01
    """
    columns = group_columns(by)
    if since and until and since >= until:
        raise UsageError("--since must lie before --until")
    config = load()
    credential_of(config, org)
    clickhouse = ensure_tables(config, USAGE)
    asked = partial(
        usage_by, clickhouse, org, project=project, since_us=_us(since), until_us=_us(until)
    )
    found = asked(columns)
    if as_json:
        for row in islice(found, limit):
            json_line(row)
        return
    rows = list(found)
    # Asked for, not added up: a run that used two models is in two groups.
    total = list(asked(())) if len(rows) > 1 and is_terminal() else []
    _print(rows[:limit], columns, total)
    if limit is not None and len(rows) > limit:
        click.echo(f"and {len(rows) - limit} more: leave out --limit")


def _us(instant: datetime | None) -> int | None:
    """Return UTC microseconds."""
    if instant is None:
        return None
    # Not by `timestamp()`: a float holds no microsecond of today exactly.
    return (instant.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


def group_columns(by: str) -> list[str]:
    """Return the columns to group by.

    Raises:
        UsageError: one is none, or stands twice.
    """
    names = [name.strip() for name in by.split(",") if name.strip()]
    for name in names:
        if name not in GROUP_COLUMNS:
            raise UsageError(f"--by knows {', '.join(GROUP_COLUMNS)}; not {name!r}")
    if len(set(names)) < len(names):
        raise UsageError("--by names a column twice")
    return names


def _print(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], total: Sequence[Mapping[str, Any]]
) -> None:
    """Print the groups; token classes that are empty everywhere are left out."""
    used = [name for name in CLASSES if any(row[name] for row in [*rows, *total])]
    label = dict(zip(columns, ["total", *[""] * len(columns)], strict=False))
    sums = [{**label, **row} for row in total]
    shown = [_honest(row, used) for row in [*rows, *sums]]
    table(shown, [*columns, "runs", *used, "cost_usd", "unknown", "unpriced"])


def _honest(row: Mapping[str, Any], used: Sequence[str]) -> dict[str, Any]:
    """Return a row to show; what no run of the group says is no zero.

    Usage that belongs to no run is in no count of runs: its tokens and its cost speak for it.
    """
    known = row["runs"] - row["unknown"]
    said = known or any(row[name] for name in CLASSES)
    counts = {name: row[name] if said else None for name in used}
    priced = known > row["unpriced"] or row["cost_nano_usd"]
    return {**row, **counts, "cost_usd": usd(row["cost_nano_usd"]) if priced else None}


def usd(nano_usd: int) -> str:
    """Return an amount in USD as exact decimal text."""
    sign, rest = "-" if nano_usd < 0 else "", abs(nano_usd)
    return f"{sign}{rest // 10**9}.{rest % 10**9:09d}"
