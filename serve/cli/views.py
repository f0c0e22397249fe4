"""`turnlog wait` and `turnlog digest`: have the views caught up, and what do they hold?"""

import importlib
from collections.abc import Mapping
from typing import Any

import click

from serve.cli.output import console, json_line, say, table
from serve.cli.words import in_words
from serve.views import require_kafka, wait_for
from streams.views import NAMES, named
from turnlog.config import Config, load
from turnlog.errors import TurnlogError


@click.command()
@click.argument("views", nargs=-1, type=click.Choice(NAMES), metavar="[VIEW]...")
@click.option("--timeout", "timeout_s", default=60.0, show_default=True, help="Seconds to wait.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def wait(ctx: click.Context, views: tuple[str, ...], timeout_s: float, as_json: bool) -> None:
    """Wait until views have folded what is in the log now.

    Without VIEW all of them. Exit 1 when the time is up; the answer names who is behind.

    Example: turnlog wait --timeout 60 usage runs
    """
    behind = _watch(load(), views or None, timeout_s, quiet=as_json)
    rows = [{"view": name, "lag_events": lag} for name, lag in behind.items()]
    if as_json:
        json_line({"ok": not rows, "behind": rows})
    elif rows:
        table(rows, ["view", "lag_events"], "Still behind:")
    else:
        click.echo("Every view has caught up.")
    ctx.exit(1 if rows else 0)


def _watch(
    config: Config, views: tuple[str, ...] | None, timeout_s: float, quiet: bool
) -> dict[str, int]:
    if quiet or not console().is_terminal:
        return wait_for(config, views, timeout_s)
    with console().status("waiting for the views") as status:

        def show(behind: Mapping[str, int]) -> None:
            status.update("behind: " + ", ".join(f"{n} {lag}" for n, lag in behind.items()))

        return wait_for(config, views, timeout_s, show)


@click.command()
@click.argument("view", required=False, type=click.Choice(NAMES))
@click.option("--fold", is_flag=True, help="Fold the log itself, and compare the views with it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a view.")
@click.pass_context
def digest(ctx: click.Context, view: str | None, fold: bool, as_json: bool) -> None:
    """Print what each view holds as one SHA-256.

    It is read from the view's own store. Two equal logs give equal digests, however partitions
    interleaved, events repeated or workers restarted. With --fold the log in Kafka is folded here
    and now by the pure processors, which gives the digest a view must have; `state` says whether
    the view has it: `ok`, `differs`, or `unreadable`. A view that is still behind differs: see
    `turnlog wait`. Exit 1 when a view differs or cannot be read.

    Example: turnlog digest usage --json
    """
    config = load()
    require_kafka(config)
    # Before the log is folded: a view that lacks what came meanwhile would seem to be wrong.
    stored = [_stored(config, name) for name in ([view] if view else NAMES)]
    rows = _compared(config, stored) if fold else [row for row, _ in stored]
    for row in rows if as_json else ():
        json_line(row)
    if not as_json:
        table(rows, ["view", "events", "digest", *(["state"] if fold else [])])
    for _, wrong in stored:
        if wrong:
            say(f"turnlog: {in_words(wrong)}", err=True)
    differs = any(row.get("state") == "differs" for row in rows)
    if differs and not as_json:
        click.echo("`turnlog wait` tells whether a view that differs is only behind", err=True)
    ctx.exit(1 if differs or any(wrong for _, wrong in stored) else 0)


def _stored(config: Config, name: str) -> tuple[dict[str, Any], str]:
    """Return what a view holds; or null of it, and why it cannot be read: the others still can."""
    about = named(name)
    try:
        events, text = importlib.import_module(about.module).digest(config)
    # A row that somebody else wrote is of any type and has any number of fields.
    except (TurnlogError, ValueError, TypeError, LookupError) as error:
        told = str(error) if isinstance(error, TurnlogError) else type(error).__name__
        table_name = about.table.format(content_bucket=config.content_bucket)
        wrong = f"view {name} is unreadable in {table_name}: {told}"
        return {"view": name, "events": None, "digest": None}, wrong
    return {"view": name, "events": events, "digest": text}, ""


def _compared(config: Config, stored: list[tuple[dict[str, Any], str]]) -> list[dict[str, Any]]:
    """Return what the log gives for each view, and whether the view holds the same."""
    from replay.fold import fold_log

    folded = fold_log(config)
    rows = []
    for row, wrong in stored:
        events, text = folded[row["view"]]
        same = "ok" if row["digest"] == text else "differs"
        state = "unreadable" if wrong else same
        rows.append({"view": row["view"], "events": events, "digest": text, "state": state})
    return rows
