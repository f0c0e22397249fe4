"""`turnlog dead`: the records that views refused."""

from collections.abc import Iterable

import click

from serve.cli.output import json_line, table
from streams.dead import DeadLetter, dead_letters
from turnlog.config import load


@click.command()
@click.option("--view", help="Only those that this view refused.")
@click.option("--json", "as_json", is_flag=True, help="One object a line.")
def dead(view: str | None, as_json: bool) -> None:
    """List the records that views refused.

    Each with the reason and where it stands. They lie byte for byte in `<topic>.dead`. Their
    content is never shown.

    Example: turnlog dead --view usage
    """
    letters = (letter for letter in dead_letters(load()) if view in (None, letter.view))
    if as_json:
        for letter in letters:
            json_line(letter._asdict())
    else:
        _print(letters)


def _print(letters: Iterable[DeadLetter]) -> None:
    rows = [letter._asdict() for letter in letters]
    if rows:
        table(rows, list(DeadLetter._fields))
    else:
        click.echo("no dead letters")
