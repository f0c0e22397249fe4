"""`turnlog dead`: the records that views refused, and the appends that the fold did."""

from itertools import chain
from typing import Any

import click

from serve.cli.output import json_line, table
from serve.refusals_api import VIEW, refusals
from serve.views import require_kafka
from streams.dead import DeadLetter, dead_letters
from turnlog.config import load

_REFUSED = ["org", "conversation", "turn", "topic", "partition", "offset", "type", "reason"]


@click.command()
@click.option("--view", help="Only those that this view refused.")
@click.option("--json", "as_json", is_flag=True, help="One object a line.")
def dead(view: str | None, as_json: bool) -> None:
    """List the records that views refused.

    Each with the reason and where it stands. Dead letters, which cannot be processed, lie byte for
    byte in `<topic>.dead`. Appends that can be read and that the fold of conversations refused,
    because the log had decided otherwise, are listed behind them; only they have a `type` and an
    `org`. The content of either is never shown.

    Example: turnlog dead --view usage
    """
    config = load()
    require_kafka(config)
    letters = (one._asdict() for one in dead_letters(config) if view in (None, one.view))
    refused = refusals(config) if view in (None, VIEW) else iter(())
    if as_json:
        for row in chain(letters, refused):
            json_line(row)
    else:
        _print(list(letters), list(refused))


def _print(letters: list[dict[str, Any]], refused: list[dict[str, Any]]) -> None:
    if letters:
        table(letters, list(DeadLetter._fields))
    else:
        click.echo("no dead letters")
    if refused:
        click.echo()
        table(refused, _REFUSED, "Refused by the fold of conversations:")
