"""`turnlog topics`: what should be in Kafka, what is, and the schemas of what is written there."""

import sys
from collections.abc import Iterator
from typing import Any

import click

from serve.cli.output import json_line, say, table
from serve.views import require_kafka
from topics import Drift, Topic, catalogue, ensure, verify
from turnlog.config import Config, load
from turnlog.events import evolution
from turnlog.events.schema import TYPES


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="One object a line.")
@click.pass_context
def topics(ctx: click.Context, as_json: bool) -> None:
    """Show every topic and how it differs from the catalogue.

    Exit 1 when one does. Nothing is changed. `turnlog topics create` makes what is missing; what
    drifted is for an operator to put right.

    Example: turnlog topics --json | jq 'select(.state != "ok")'
    """
    if ctx.invoked_subcommand is None:
        config = load()
        require_kafka(config)
        _report(config, verify(config), as_json)


@topics.command()
@click.option("--json", "as_json", is_flag=True, help="One object a line.")
def create(as_json: bool) -> None:
    """Create missing topics and publish missing schemas.

    What exists is left as it is, so that this may be called at any time. Exit 1 when a topic
    drifted.

    Example: turnlog topics create
    """
    config = load()
    require_kafka(config)
    _report(config, ensure(config), as_json)


@topics.command()
@click.option("--record", is_flag=True, help="Add present versions to schemas/history.")
@click.option("--json", "as_json", is_flag=True, help="One object a line.")
def schemas(record: bool, as_json: bool) -> None:
    """List event types and check how they evolved.

    The fingerprint is CRC-64-AVRO in the order of the wire: bytes 2 to 9 of an event. Exit 1 on a
    problem. After a schema was changed, --record adds it to the history.

    Example: turnlog topics schemas --record
    """
    if record:
        evolution.record_present()
    rows = list(_schema_rows())
    for row in rows if as_json else ():
        json_line(row)
    if not as_json:
        table(rows, ["event", "topic", "fingerprint", "fields", "versions"])
    found = evolution.problems()
    for problem in found:
        say(problem, err=True)
    sys.exit(1 if found else 0)


def _schema_rows() -> Iterator[dict[str, Any]]:
    past = evolution.history()
    for name, kind in TYPES.items():
        yield {
            "event": name,
            "topic": kind.topic,
            "fingerprint": kind.fingerprint.hex(),
            "fields": len(kind.fields),
            "versions": len(past.get(name, [])),
        }


def _report(config: Config, drifts: list[Drift], as_json: bool) -> None:
    rows = [_row(topic, config, drifts) for topic in catalogue()]
    for row in rows if as_json else ():
        json_line(row)
    if not as_json:
        table(rows, ["topic", "partitions", "policy", "retention_ms", "state"])
        for drift in drifts:
            say(_line(drift))
    sys.exit(1 if drifts else 0)


def _line(drift: Drift) -> str:
    if drift.setting == "exists":
        return f"{drift.topic}: missing; `turnlog topics create` makes it"
    return f"{drift.topic}: {drift.setting} is {drift.actual}, the catalogue says {drift.expected}"


def _row(topic: Topic, config: Config, drifts: list[Drift]) -> dict[str, Any]:
    mine = [drift for drift in drifts if drift.topic == topic.name]
    missing = any(drift.setting == "exists" for drift in mine)
    return {
        "topic": topic.name,
        "key": topic.key,
        "partitions": topic.partition_count(config),
        "policy": topic.policy,
        "retention_ms": topic.retention_ms,
        "events": list(topic.events),
        "archived": topic.archived,
        "state": "missing" if missing else "drifted" if mine else "ok",
        "drift": [
            {"setting": drift.setting, "expected": drift.expected, "actual": drift.actual}
            for drift in mine
        ],
    }
