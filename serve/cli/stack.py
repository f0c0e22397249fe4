"""`turnlog up | down | status | doctor`."""

import json
import sys
import time
from typing import Any

import click

from local import doctor as checks
from local import kafka, process, stack
from serve.cli.output import json_line, say, table
from turnlog.config import Config, load
from turnlog.errors import TurnlogError, UsageError


def _progress(line: str) -> None:
    """Show progress to a person; a pipe stays quiet."""
    if sys.stderr.isatty():
        click.echo(line, err=True)


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
def up(names: tuple[str, ...]) -> None:
    """Start the local stack and its workers.

    With NAME only those parts and what they need. What already runs is left alone. A part that has
    an address in the config is used as it is.

    Example: turnlog up kafka s3
    """
    began = time.monotonic()
    config = start(load(), names, _progress)
    what = " ".join(names) or "every part"
    _progress(f"{what}: running after {time.monotonic() - began:.0f} s; home {config.home}")


def start(config: Config, names: tuple[str, ...], notify: stack.Notify) -> Config:
    """Start parts; with all of them the tables too, so that a view can be asked at once."""
    started = stack.up(config, names, notify)
    if not names:
        _ensure_tables(started)
    return started


def _ensure_tables(config: Config) -> None:
    """Make the tables, once for each folder of local data and version of the schemas.

    The client takes 0.2 s to import, half of what an `up` of a running stack takes without it.
    """
    from turnlog.events import TYPES

    schemas = [kind.fingerprint.hex() for kind in TYPES.values()]
    made = json.dumps([config.clickhouse, config.clickhouse_database, *sorted(schemas)])
    # Beside the data: gone together with them.
    note = config.home / "clickhouse" / "tables.json"
    local = "clickhouse" not in stack.external_addresses(config)
    if local and note.exists() and note.read_text() == made:
        return
    from sinks.clickhouse.tables import RUNS, USAGE, ensure_tables

    ensure_tables(config, USAGE, RUNS)
    if local:
        process.replace(note, made)


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--json", "as_json", is_flag=True, help="One object: the parts that were stopped.")
def down(names: tuple[str, ...], as_json: bool) -> None:
    """Stop the local stack; its data stay.

    With NAME only those parts. A terminal is told of each, a pipe of none; --json says what was
    stopped.

    Example: turnlog down usage-sink
    """
    stopped = stack.down(load(), names, _progress)
    if as_json:
        json_line({"stopped": stopped})
    else:
        _progress(f"stopped: {' '.join(stopped)}" if stopped else "nothing was running")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One object.")
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> None:
    """Show every part, and how far every view is.

    Exit 1 when a part died, fails or cannot be reached; one that was stopped is no fault.

    Example: turnlog status --json
    """
    config = load()
    _require_stack(config)
    states = stack.status(config)
    parts = [part._asdict() for part in states]
    views = _views(config, states)
    if as_json:
        json_line({"home": str(config.home), "parts": parts, "views": views})
    else:
        click.echo(f"home {config.home}")
        table(parts, ["name", "kind", "pid", "address", "state"])
        _complain(config, states)
        _show_views(config, views)
    ctx.exit(1 if stack.faults(config, states) else 0)


def _require_stack(config: Config) -> None:
    """Do nothing where a stack is, or a part is given by its address.

    Raises:
        TurnlogError: neither.
    """
    if not stack.external_addresses(config):
        try:
            config.require_home()
        except UsageError as error:
            raise TurnlogError(str(error)) from None


def _complain(config: Config, states: list[stack.State]) -> None:
    faults = stack.faults(config, states)
    state = {part.name: part.state for part in states}
    for name, reason in faults.items():
        say(f"{name} {state[name]}: {reason}")
    if "died" in state.values():
        click.echo("`turnlog up` starts what died")


def _show_views(config: Config, views: list[dict[str, Any]]) -> None:
    if not views:
        return
    click.echo()
    table(views, ["view", "lag_events", "lag_s", "dead", "table"])
    if views[0]["lag_events"] is None:
        click.echo(f"lag and dead letters are not known: Kafka does not answer at {config.kafka}")


def _views(config: Config, states: list[stack.State]) -> list[dict[str, Any]]:
    if not config.kafka:
        return []  # a stack that was never started has no views yet
    from serve.views import unknown_states, view_states

    # Asking what is known not to run would only take its time.
    away = {part.name for part in states if part.state in ("stopped", "died", "unreachable")}
    asked = unknown_states if "kafka" in away else view_states
    return [dict(view) for view in asked(config)]


@click.command()
@click.option("--fetch", is_flag=True, help="Fetch Kafka if it is missing; say nothing if not.")
@click.option("--json", "as_json", is_flag=True, help="One object a line.")
def doctor(fetch: bool, as_json: bool) -> None:
    """Say what this machine lacks, and how to get it.

    Exit 1 when something is missing.

    Example: turnlog doctor
    """
    config = load()
    if fetch:
        if "kafka" not in stack.external_addresses(config):
            kafka.ready(config.home, lambda line: click.echo(line, err=True))
        return
    findings = checks.examine(config)
    if as_json:
        for finding in findings:
            json_line(finding._asdict())
    else:
        for finding in findings:
            click.echo(f"{'ok' if finding.ok else 'MISSING':8} {finding.check:11} {finding.found}")
            if finding.remedy:
                click.echo(f"{'':21}-> {finding.remedy}")
    missing = [finding.check for finding in findings if not finding.ok]
    if missing:
        raise TurnlogError(f"not fit for a local stack: {', '.join(missing)}")
