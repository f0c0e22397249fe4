"""`turnlog bench`: measure this installation on this machine."""

import importlib
from types import ModuleType

import click

from serve.cli.output import json_line, table
from turnlog.config import load
from turnlog.errors import UsageError

_PATHS = ("producer-event", "producer-run", "usage-sink")


@click.group()
def bench() -> None:
    """Measure what Turnlog costs beside a raw Kafka client, on the running stack.

    Example: turnlog bench spine
    """


@bench.command()
@click.option("--path", "paths", multiple=True, type=click.Choice(_PATHS), help="only this path")
@click.option("--records", default=300_000, show_default=True, help="moved by each side")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object a line")
def spine(paths: tuple[str, ...], records: int, as_json: bool) -> None:
    """Measure the producer and the usage sink, each in turns with the raw client.

    Uses topics and a table of its own, which it removes. Stop other work first: every part shares
    the machine. docs/performance.md says how it measures.

    Example: turnlog bench spine --path producer-event --json
    """
    if records < 1:
        raise UsageError("--records must be at least 1")
    results = _module().spine(
        load(), paths or _PATHS, records, lambda line: click.echo(line, err=True)
    )
    if as_json:
        for found in results:
            json_line(found._asdict())
        return
    table([found._asdict() for found in results], list(_columns()))


def _module() -> ModuleType:
    """Return the measurements, which lie in the checkout and in no wheel."""
    try:
        return importlib.import_module("bench.spine")
    except ModuleNotFoundError as error:
        if error.name not in ("bench", "bench.spine"):
            raise
        raise UsageError("the bench is part of the source checkout: run it there") from None


def _columns() -> tuple[str, ...]:
    fields: tuple[str, ...] = importlib.import_module("bench.measure").Result._fields
    return fields
