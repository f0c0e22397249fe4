"""`turnlog keys`: what an operator and a second implementation ask of the key tree."""

import click

from serve.cli.output import json_line, table


@click.group()
def keys() -> None:
    """Look at the key tree; never at a key.

    Example: turnlog keys vectors --json
    """


@keys.command("vectors")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def vectors_(as_json: bool) -> None:
    """Print every test vector of keys and frames, as computed by this installation.

    Example: turnlog keys vectors --json
    """
    from turnlog.keys.vectors import vectors

    values = vectors()
    if as_json:
        json_line(values)
        return
    table(({"name": name, "value": value} for name, value in values.items()), ["name", "value"])
