"""Printing: one JSON object a line for programs, aligned text for people.

Nobody has looked at what comes out of Kafka or a provider's answer: a name may hold what a terminal
obeys, or a line feed and a line that looks like ours. What goes to a person goes through `plain`,
what goes over several lines through `text`; `table` and `say` do it by themselves.
"""

import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import click
import orjson

if TYPE_CHECKING:
    from rich.console import Console

# C0 but line feed and tab, DEL and C1 (ECMA-48), and halves of surrogate pairs.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")

# A pipe has no width: 80 columns would fold every table in it.
PIPE_COLUMNS = 220


@cache
def console() -> "Console":
    """Return the console of standard output."""
    # rich takes 45 ms to import; what prints JSON or bytes does without.
    from rich.console import Console

    return Console(soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_COLUMNS)


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
    """Print rows under their column names; numbers to the right."""
    from rich.table import Table
    from rich.text import Text

    about = None if title is None else Text(plain(title))
    out = Table(title=about, title_justify="left", box=None, pad_edge=False)
    rows = list(rows)
    for name in columns:
        numeric = any(isinstance(row.get(name), int | float) for row in rows)
        out.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        # As text: a bracket in a string would be taken for markup.
        out.add_row(*(Text(_cell(row.get(name))) for name in columns))
    console().print(out)


def _cell(value: Any) -> str:
    return "-" if value is None else plain(value)
