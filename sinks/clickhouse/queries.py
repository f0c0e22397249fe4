"""Questions about usage that several readers ask."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from sinks.clickhouse.client import ClickHouse
from sinks.clickhouse.tables import CLASSES, RUNS, USAGE, Table

GROUP_COLUMNS = (
    "project",
    "user",
    "conversation",
    "provider",
    "model",
    "quality",
    "reason",
    "price_version",
    "day",
    "month",
)
"""What usage can be summed by; `day` and `month` are the UTC ones of `effective_at`."""

_RUNS_A_QUERY = 2_000
_DERIVED = {
    "day": "formatDateTime(effective_at, '%Y-%m-%d', 'UTC')",
    "month": "formatDateTime(effective_at, '%Y-%m', 'UTC')",
}
# Zeros of unknown rows say nothing, so they are counted and not summed.
_KNOWN = "quality IN ('measured', 'estimated')"
_SUMS = {
    # Usage of no run (a batch's, a bill's) has tokens and is no run.
    "runs": "uniqExactIf(run, run != '')",
    **{name: f"sumIf(sign * {name}, {_KNOWN})" for name in CLASSES},
    # What an older version let in could pass 64 bits, and a sum of theirs wraps in silence.
    "cost_nano_usd": f"sumIf(toInt128(sign) * ifNull(cost_nano_usd, 0), {_KNOWN}) AS cost",
    "unknown": f"uniqExactIf(run, run != '') - uniqExactIf(run, run != '' AND {_KNOWN})",
    "unpriced": f"uniqExactIf(run, run != '' AND {_KNOWN} AND isNull(cost_nano_usd))",
}

_TOKENS = f"sumIf(sign * ({' + '.join(CLASSES)}), {_KNOWN})"


def usage_by(
    clickhouse: ClickHouse,
    org: str,
    by: Sequence[str],
    project: str | None = None,
    table: Table = USAGE,
    since_us: int | None = None,
    until_us: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the usage of an org by group, the costliest first, then that with the most tokens.

    Args:
        clickhouse: connection.
        org: whose usage.
        by: of GROUP_COLUMNS, in order; none: one sum over all.
        project: only this one.
        table: where the rows are.
        since_us: only what took effect then or later, UTC microseconds.
        until_us: only what took effect before.

    Yields:
        The group's columns; `runs`; each token class; `cost_nano_usd`, the sum of what has a price;
        `unknown`, runs whose usage is not known; `unpriced`, runs with usage that has no price.
        All integers.

    Raises:
        Unavailable: ClickHouse does not answer.
    """
    names, keys = list(by), [f"by_{at}" for at in range(len(by))]
    groups = [f"{_DERIVED.get(name, name)} AS {key}" for name, key in zip(names, keys, strict=True)]
    sql = (
        f"SELECT {', '.join([*groups, *_SUMS.values()])} "
        f"FROM {clickhouse.database}.{table.name} "
        "WHERE org = {org:String} AND type IN ('usage.recorded', 'usage.corrected') "
        + ("AND project = {project:String} " if project else "")
        + (f"AND effective_at >= {_instant('since_us')} " if since_us is not None else "")
        + (f"AND effective_at < {_instant('until_us')} " if until_us is not None else "")
        + (f"GROUP BY {', '.join(keys)} " if keys else "")
        + f"ORDER BY {', '.join(['cost DESC', f'{_TOKENS} DESC', *keys])}"
    )
    given = {"project": project, "since_us": since_us, "until_us": until_us}
    parameters = {"org": org, **{name: value for name, value in given.items() if value is not None}}
    for row in clickhouse.stream(sql, parameters):
        yield dict(zip([*names, *_SUMS], row, strict=True))


def _instant(parameter: str) -> str:
    return f"fromUnixTimestamp64Micro({{{parameter}:Int64}}, 'UTC')"


def run_subjects(
    clickhouse: ClickHouse, places: Collection[tuple[int, str, str]]
) -> Iterator[tuple[tuple[int, str, str], tuple[Any, ...]]]:
    """Yield user, conversation and key locator under which runs began.

    Args:
        clickhouse: connection.
        places: partition, org and run.

    Raises:
        Unavailable: ClickHouse does not answer.
    """
    listed = sorted(places)
    for start in range(0, len(listed), _RUNS_A_QUERY):
        some = set(listed[start : start + _RUNS_A_QUERY])
        rows = clickhouse.stream(
            "SELECT partition, org, run, argMin((user, conversation, lower(hex(key_tree)), key_day,"
            f" key_gen), offset) FROM {clickhouse.database}.{RUNS.name}"
            " WHERE run IN {runs:Array(String)} AND content_mac != ''"
            " GROUP BY partition, org, run",
            {"runs": sorted({run for _, _, run in some})},
        )
        for number, org, run, (user, conversation, tree, day, gen) in rows:
            if (number, org, run) in some:
                yield (number, org, run), (user, conversation, bytes.fromhex(tree), day, gen)
