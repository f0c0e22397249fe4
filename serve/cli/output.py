"""Printing: one JSON object a line for programs, aligned text for people."""

import sys
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import click
import orjson

if TYPE_CHECKING:
    from rich.console import Console

# A pipe has no width: 80 columns would fold every table in it.
PIPE_COLUMNS = 220


@cache
def console() -> "Console":
    """Return the console of standard output."""
    # rich takes 45 ms to import; what prints JSON or bytes does without.
    from rich.console import Console

    return Console(soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_COLUMNS)


def json_line(value: Mapping[str, Any]) -> None:
    """Print one object on one line."""
    click.echo(orjson.dumps(value).decode())


def table(rows: Iterable[Mapping[str, Any]], columns: list[str], title: str | None = None) -> None:
    """Print rows under their column names; numbers to the right."""
    from rich.table import Table

    out = Table(title=title, title_justify="left", box=None, pad_edge=False)
    rows = list(rows)
    for name in columns:
        numeric = any(isinstance(row.get(name), int | float) for row in rows)
        out.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        out.add_row(*(_cell(row.get(name)) for name in columns))
    console().print(out)


def _cell(value: Any) -> str:
    return "-" if value is None else str(value)
