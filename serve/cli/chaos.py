"""`turnlog chaos`: kill a part of the stack at random moments and check what must never happen."""

import importlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from serve.cli.output import json_line, table
from turnlog.config import load
from turnlog.errors import UsageError


@click.group()
def chaos() -> None:
    """Kill parts at random moments; check what must never happen.

    Example: turnlog chaos keeper --kills 10
    """


@chaos.command()
@click.option("--kills", default=100, show_default=True, help="how often")
@click.option("--seed", default=1, show_default=True, help="of the choices that are made")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
@click.pass_context
def keeper(ctx: click.Context, kills: int, seed: int, as_json: bool) -> None:
    """Kill key keepers while they puncture and mint; about 5 s a kill.

    They work on a topic and with keys of their own, on the running Kafka: the stack's keys are not
    touched. Exit 1 if a key that nobody destroyed was `Erased`, or a generation was skipped, or a
    puncture that was answered did not hold.

    Example: turnlog chaos keeper --kills 100 --seed 7 --json
    """
    if kills < 1:
        raise UsageError("--kills must be at least 1")
    module: Any = _module("keeper")
    with tempfile.TemporaryDirectory(prefix="turnlog-chaos-") as home, _progress(kills) as notify:
        result = module.kill_keepers(load(), Path(home), kills, seed, notify)
    found = result._asdict()
    if as_json:
        json_line(found)
    else:
        table(({"what": name, "found": str(value)} for name, value in found.items()), _COLUMNS)
    ctx.exit(1 if result.wrong else 0)


@chaos.command()
@click.option("--kills", default=50, show_default=True, help="how often")
@click.option("--seed", default=1, show_default=True, help="of the choices that are made")
@click.option("--outage", "outage_s", type=float, help="stop Kafka for so many seconds instead")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
@click.pass_context
def producer(
    ctx: click.Context, kills: int, seed: int, outage_s: float | None, as_json: bool
) -> None:
    """Kill gateways under load, often while Kafka is stopped.

    About 15 s a kill, and a minute at the end. They write for an org of their own on the running
    stack, whose Kafka must be this home's. Every acknowledgement is noted at once. Exit 1 if an
    acknowledged event is not exactly once in each of its views, a run has no end, or more than a
    second of a killed run's output is missing. With --outage no gateway is killed, and its memory
    and spool are told.

    Example: turnlog chaos producer --kills 12 --seed 7 --json
    """
    if kills < 1 or (outage_s is not None and outage_s <= 0):
        raise UsageError("--kills must be at least 1 and --outage above 0")
    module: Any = _module("producer")
    with tempfile.TemporaryDirectory(prefix="turnlog-chaos-") as place, _progress(kills) as notify:
        if outage_s is None:
            result = module.kill_producers(load(), Path(place), kills, seed, notify)
        else:
            result = module.stop_kafka(load(), Path(place), outage_s, seed)
    found = result._asdict()
    if as_json:
        json_line(found)
    else:
        table(({"what": name, "found": str(value)} for name, value in found.items()), _COLUMNS)
    ctx.exit(0 if result.ok else 1)


_COLUMNS = ["what", "found"]


def _module(name: str) -> Any:
    """Return the killer, which lies in the checkout and in no wheel."""
    try:
        return importlib.import_module(f"bench.chaos.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("bench"):
            raise
        raise UsageError("chaos is part of the source checkout: run it there") from None


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal; a pipe stays quiet. It goes to stderr, so that stdout is data."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda killed: None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("kills", total=total)
        yield lambda killed: bar.update(task, completed=killed)
