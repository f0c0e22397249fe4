"""`turnlog keys`: what an operator and a second implementation ask of the key tree."""

import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from serve.cli.keys_check import check
from serve.cli.keys_puncture import puncture_
from serve.cli.keys_show import show_
from serve.cli.output import json_line, table


@click.group()
def keys() -> None:
    """Look at the key tree; never at a key.

    `puncture` is the one that changes something: it destroys keys, for good.

    Example: turnlog keys tree --org local
    """


for command in (show_, puncture_, check):
    keys.add_command(command)


@keys.command("vectors")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def vectors_(as_json: bool) -> None:
    """Print the test vectors of keys and frames.

    Each value is computed by this installation.

    Example: turnlog keys vectors --json
    """
    from turnlog.keys.vectors import vectors

    values = vectors()
    if as_json:
        json_line(values)
        return
    table(({"name": name, "value": value} for name, value in values.items()), ["name", "value"])


@keys.command("keeper")
def keeper_() -> None:
    """Run the key keeper in the foreground.

    `turnlog up` runs the same in the background. It takes over every partition of the key rows: a
    keeper that ran before is fenced and ends. It listens on TURNLOG_KEEPER, on loopback.

    Example: TURNLOG_KEEPER=http://127.0.0.1:7070 turnlog keys keeper
    """
    # In place of this process, so that signals reach the worker and its own restarts work.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "streams", "keeper"])


COLUMNS = ["project", "month", "generation", "minted_through", "pages", "nodes", "links"]


@keys.command("tree")
@click.option("--org", default="local", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="print one JSON object a line")
def tree_(org: str, as_json: bool) -> None:
    """List the key trees of an org; never a key.

    Each with its month, its generation and what it is made of; `turnlog keys show` has the days.

    Example: turnlog keys tree --org acme --json
    """
    rows = list(_trees(org))
    if as_json:
        for row in rows:
            json_line(row)
        return
    table(rows, COLUMNS)


def _trees(org: str) -> Iterator[dict[str, Any]]:
    from streams.keys_reader import KeyReader
    from turnlog.config import load
    from turnlog.keeper_client import credential_of

    config = load()
    credential_of(config, org)
    with KeyReader(config, [org]) as reader:
        for project, month, stored in reader.trees(org):
            yield {
                **project._asdict(),
                "month": month,
                "tree": stored.tree.hex(),
                "generation": stored.head.gen,
                "minted_through": stored.head.minted_through,
                **stored.size()._asdict(),
            }
