"""`turnlog bench`: measure this installation on this machine."""

import asyncio
import importlib
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import click

from serve.cli.output import json_line, table
from turnlog.config import load
from turnlog.errors import UsageError

_PATHS = ("producer-event", "producer-run", "usage-sink")
_DOORS = ("http", "openai", "anthropic", "proxy")
_KEYS_PATHS = ("keys-run", "keys-reader-start")


@click.group()
def bench() -> None:
    """Measure what Turnlog costs beside a raw Kafka client.

    It runs on the running stack.

    Example: turnlog bench spine
    """


@bench.command()
@click.option("--path", "paths", multiple=True, type=click.Choice(_PATHS), help="only this path")
@click.option("--records", default=300_000, show_default=True, help="moved by each side")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object a line")
def spine(paths: tuple[str, ...], records: int, as_json: bool) -> None:
    """Measure producer and usage sink beside the raw client.

    Each in turns with it. Uses topics and a table of its own, which it removes. Stop other work
    first: every part shares the machine. docs/performance.md says how it measures.

    Example: turnlog bench spine --path producer-event --json
    """
    if records < 1:
        raise UsageError("--records must be at least 1")
    results = _module("bench.spine").spine(
        load(), paths or _PATHS, records, lambda line: click.echo(line, err=True)
    )
    _print(results, as_json)


@bench.command()
@click.option("--path", "paths", multiple=True, type=click.Choice(_KEYS_PATHS), help="only this")
@click.option("--records", type=click.IntRange(min=1), help="read or derived by each side")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object a line")
def keys(paths: tuple[str, ...], records: int | None, as_json: bool) -> None:
    """Measure the key tree beside bare HMAC calls and a bare reader.

    Both keys of a run, and the start of a reader on 100,000 rows.

    Example: turnlog bench keys --path keys-reader-start --json
    """
    _print(_module("bench.keys").keys(load(), paths or _KEYS_PATHS, records), as_json)


@bench.command()
@click.option("--seconds", "case_s", default=20.0, show_default=True, help="of each case but gone")
@click.option("--gone", "gone_s", default=60.0, show_default=True, help="seconds without Kafka")
@click.option("--bytes", "sizes", multiple=True, type=click.IntRange(min=1), help="of a chunk")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object a line")
def producer(case_s: float, gone_s: float, sizes: tuple[int, ...], as_json: bool) -> None:
    """Time every `chunk()` while Kafka is up, stopped, gone and back.

    200 runs stream 30 chunks a second each, of 80 and then of 700 bytes. Kafka is stopped and then
    killed, so it must be this home's own, and is started again at the end. `accepted` counts the
    beginnings and ends of runs, `acknowledged` those that were answered, by Kafka or by the disk.

    Example: turnlog bench producer --seconds 10 --gone 20 --json
    """
    if case_s <= 0 or gone_s <= 0:
        raise UsageError("--seconds and --gone must be above 0")
    module = _module("bench.producer_chunk")
    lines: list[Any] = []
    say: Callable[[Any], None] = lines.append
    if as_json:
        say = _json_tuple
    asyncio.run(module.measure(load(), say, case_s, gone_s, sizes or module.CHUNK_BYTES))
    if lines:
        table([line._asdict() for line in lines], list(module.Line._fields))


@bench.command()
@click.option("--door", "names", multiple=True, type=click.Choice(_DOORS), help="only this door")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object a line")
def doors(names: tuple[str, ...], as_json: bool) -> None:
    """Measure each door beside the bare thing that it stands in for.

    The HTTP door beside the in-process producer, wrapped clients beside bare ones, the proxy beside
    a bare pass-through. docs/performance.md says how.

    Example: turnlog bench doors --door http --json
    """
    lines = _module("bench.doors").doors(load(), names)
    if as_json:
        for line in lines:
            _json_tuple(line)
        return
    table([line._asdict() for line in lines], list(_module("bench.doors_line").Line._fields))


def _json_tuple(line: Any) -> None:
    json_line(line._asdict())


def _print(results: Iterable[Any], as_json: bool) -> None:
    if as_json:
        for found in results:
            json_line(found._asdict())
        return
    table([found._asdict() for found in results], list(_columns()))


def _module(name: str) -> ModuleType:
    """Return measurements, which lie in the checkout and in no wheel."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in ("bench", name):
            raise
        raise UsageError("the bench is part of the source checkout: run it there") from None


def _columns() -> tuple[str, ...]:
    fields: tuple[str, ...] = importlib.import_module("bench.measure").Result._fields
    return fields
