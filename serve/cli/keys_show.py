"""`turnlog keys show`: how the trees of a project stand, or the keys of one run."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import click

from serve.cli.output import json_line, say, table

_DAYS = ["day", "state", "pages", "nodes", "erased"]
_PLACES = ["tree", "day", "gen", "request", "response"]


@click.command("show")
@click.option("--org", required=True, help="Organisation.")
@click.option("--project", required=True, help="Project of that org.")
@click.option("--run", "run_id", metavar="RUN", help="Only the keys of this run.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a tree, or a run.")
def show_(org: str, project: str, run_id: str | None, as_json: bool) -> None:
    """Show what of a project's keys is alive; never a key.

    Each tree with its generation (one more for each change), its pages, and its days: `whole`,
    `punctured` (with how many prefixes of each level are erased), or `gone`, which is erased whole
    or was never minted. With --run, whether the keys of a run's request and response are `alive`,
    `erased` or `unavailable` (rows are missing or do not open: try again, and see
    `turnlog keys check`).

    Example: turnlog keys show --org acme --project support

    Example: turnlog keys show --org acme --project support --run run_01J... --json
    """
    from serve.key_states import run_state, tree_states
    from turnlog.config import load

    if run_id is not None:
        _run(run_state(load(), org, project, run_id), as_json)
        return
    for found in tree_states(load(), org, project):
        _tree(found, as_json)


def _run(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        json_line(found)
    else:
        table(found["places"], _PLACES, f"run {found['run']}")


def _tree(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        json_line(found)
        return
    say(
        f"{found['project']} {found['month']} ({found['retention_class']}): tree {found['tree']},"
        f" generation {found['generation']}, {found['pages']} pages, {found['nodes']} nodes"
    )
    table(_spans(found["days"]), _DAYS)
    click.echo()


def _spans(days: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield days as people read them, alike ones in a row as one line."""
    for _, group in groupby(days, lambda day: {**day, "day": 0}):
        alike = list(group)
        first, last = alike[0], alike[-1]
        span = str(first["day"]) if first is last else f"{first['day']}-{last['day']}"
        yield {**first, "day": span, "erased": _erased(first["erased"])}


def _erased(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {level}" for level, count in counts.items()) or "-"
