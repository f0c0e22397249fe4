"""`turnlog up | down | status | doctor`."""

import json
import sys
from typing import Any

import click

from local import doctor as checks
from local import kafka, process, stack
from serve.cli.output import json_line, say, table
from turnlog.config import Config, load
from turnlog.errors import TurnlogError


def _progress(line: str) -> None:
    """Show progress to a person; a pipe hears nothing."""
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
    start(load(), names, _progress)


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

    With NAME only those parts. Like every command that takes its time it tells a terminal what it
    does and says nothing in a pipe, unless --json asks what was stopped.

    Example: turnlog down usage-sink
    """
    stopped = stack.down(load(), names, _progress)
    if as_json:
        json_line({"stopped": stopped})


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One object.")
def status(as_json: bool) -> None:
    """Show every part, and how far every view is.

    Example: turnlog status --json
    """
    config = load()
    parts = [part._asdict() for part in stack.status(config)]
    views = _views(config)
    if as_json:
        json_line({"home": str(config.home), "parts": parts, "views": views})
        return
    click.echo(f"home {config.home}")
    table(parts, ["name", "kind", "pid", "address", "state"])
    for part in parts:
        if part["state"] in ("died", "failing"):
            log = process.log_path(config.home, part["name"])
            said = "".join(process.log_tail(config.home, part["name"], lines=1))
            say(f"{part['name']} {part['state']}: {said.strip()} ({log})")
    if views:
        click.echo()
        table(views, ["view", "lag_events", "lag_s", "dead", "table"])


def _views(config: Config) -> list[dict[str, Any]]:
    if not config.kafka:
        return []  # a stack that was never started has no views yet
    from serve.views import view_states

    return [dict(view) for view in view_states(config)]


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
