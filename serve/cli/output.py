"""Printing: one JSON object a line for programs, aligned text for people.

Nobody has looked at what comes out of Kafka or a provider's answer: a name may hold what a terminal
obeys, or a line feed and a line that looks like ours. What goes to a person goes through `plain`,
what goes over several lines through `text`; `table` and `say` do it by themselves.
"""

import math
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import orjson

if TYPE_CHECKING:
    from rich.console import Console

# C0 but line feed and tab, DEL and C1 (ECMA-48), and halves of surrogate pairs.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")

_GAP = "  "
# What a cell shows that says nothing.
_NOTHING = ("", "-", "0", "0.0", "False")


@cache
def console() -> "Console":
    """Return the console of standard output."""
    # rich takes 45 ms to import; what prints JSON or bytes does without.
    from rich.console import Console

    return Console(soft_wrap=True)


def plain(value: object) -> str:
    """Return a value as one line in which whatever is not printable is escaped as in Python."""
    shown = str(value)
    return shown if shown.isprintable() else "".join(map(_escaped, shown))


def text(value: str) -> str:
    """Return lines of text in which what a terminal obeys is escaped, all but line feed and tab."""
    return _OBEYED.sub(lambda found: _escaped(found[0]), value.replace("\r\n", "\n"))


def _escaped(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()


def say(line: object, err: bool = False) -> None:
    """Print one line to a person; to stderr with `err`."""
    click.echo(plain(line), err=err)


def json_line(value: Mapping[str, Any]) -> None:
    """Print one object on one line."""
    try:
        line = orjson.dumps(value)
    except orjson.JSONEncodeError:
        from serve.runs_api import printable

        # Half of a surrogate pair has no UTF-8, and a reader of JSON need not take its escape.
        line = orjson.dumps(printable(value))
    click.echo(line.decode())


def table(rows: Iterable[Mapping[str, Any]], columns: list[str], title: str | None = None) -> None:
    """Print rows under their column names; numbers to the right.

    No cell is ever folded or cut: an id that is cut in three cannot be copied. On a terminal that
    is too narrow, columns that are zero or empty in every row are left out; what is wider still is
    printed as wide as it is, for the terminal to wrap, as `git` and `kubectl` do.
    """
    rows = list(rows)
    drawn = {name: _column(name, rows) for name in columns}
    if rows and sum(column.width + len(_GAP) for column in drawn.values()) > _columns():
        drawn = {name: column for name, column in drawn.items() if column.says} or drawn
    if title is not None:
        click.secho(plain(title), italic=True)
    for at in range(len(rows) + 1):
        line = _GAP.join(column.cells[at] for column in drawn.values()).rstrip()
        # Not False, which would have the terminal told to end what is not bold.
        click.secho(line, bold=at == 0 or None)


class _Column(NamedTuple):
    """A column as it is drawn: its name and cells, all of one width, and whether any says more."""

    cells: list[str]
    width: int
    says: bool


def _column(name: str, rows: list[Mapping[str, Any]]) -> _Column:
    # With its tables of Unicode it takes 30 ms; what prints JSON or bytes does without.
    from rich.cells import cell_len

    values = [row.get(name) for row in rows]
    cells = [name, *map(_cell, values)]
    width = max(map(cell_len, cells))
    right = any(isinstance(value, int | float) for value in values)
    says = not all(cell in _NOTHING for cell in cells[1:])
    blanks = [" " * (width - cell_len(cell)) for cell in cells]
    pairs = zip(blanks, cells, strict=True)
    return _Column([b + c if right else c + b for b, c in pairs], width, says)


def is_terminal() -> bool:
    """Tell whether a person sees standard output."""
    return sys.stdout.isatty()


def _columns() -> float:
    """Return how wide standard output is: a pipe has no width."""
    return shutil.get_terminal_size().columns if is_terminal() else math.inf


def _cell(value: Any) -> str:
    return "-" if value is None else plain(value)


def counted(count: int, what: str) -> str:
    """Return a number with what it counts: `1 run`, `2 runs`."""
    return f"{count} {what}{'' if count == 1 else 's'}"
