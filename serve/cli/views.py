"""`turnlog wait` and `turnlog digest`: have the views caught up, and what do they hold?"""

import importlib
from collections.abc import Mapping
from typing import Any

import click

from serve.cli.output import console, json_line, table
from serve.views import wait_for
from streams.views import NAMES, named
from turnlog.config import Config, load


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
@click.option("--fold", is_flag=True, help="Fold the log itself instead of reading the views.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a view.")
def digest(view: str | None, fold: bool, as_json: bool) -> None:
    """Print what each view holds as one SHA-256.

    It is read from the view's own store. Two equal logs give equal digests, however partitions
    interleaved, events repeated or workers restarted. With --fold the log in Kafka is folded here
    and now by the pure processors: the digest a view must have.

    Example: turnlog digest usage --json
    """
    config = load()
    chosen = [view] if view else list(NAMES)
    results = _folded(config, chosen) if fold else [_stored(config, name) for name in chosen]
    for row in results:
        if as_json:
            json_line(row)
    if not as_json:
        table(results, ["view", "events", "digest"])


def _stored(config: Config, name: str) -> dict[str, Any]:
    events, text = importlib.import_module(named(name).module).digest(config)
    return {"view": name, "events": events, "digest": text}


def _folded(config: Config, names: list[str]) -> list[dict[str, Any]]:
    from replay.fold import fold_log

    folded = fold_log(config)
    return [{"view": n, "events": folded[n][0], "digest": folded[n][1]} for n in names]
