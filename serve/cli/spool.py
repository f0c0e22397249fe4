"""`turnlog spool`: what waits on the disk for Kafka, and whose it is."""

import click

from serve.cli.output import json_line, table
from turnlog.config import load
from turnlog.spool.look import Folder, look

_COLUMNS = ["owner", "state", "segments", "bytes", "events", "oldest_s", "shed"]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: the sum of all.")
def spool(as_json: bool) -> None:
    """Show what waits on the disk for Kafka, and whose it is.

    A producer that Kafka does not answer in 400 ms writes its events here, each accepted event
    synced before it is acknowledged, and sends them when Kafka answers again. Nothing is changed by
    looking, also while producers write. Of an owner that is alive nothing has to be done but to
    bring Kafka back. What a dead one left is sent by the next producer that is opened on this
    folder. `shed` counts chunk batches that found no room: their text is in the run's end.

    Example: turnlog spool --json
    """
    config = load()
    folders = look(config.spool_folder)
    if as_json:
        json_line(_sum(folders))
        return
    waiting = [folder for folder in folders if folder.events or folder.shed]
    if not waiting:
        click.echo(f"Nothing waits in {config.spool_folder}.")
        return
    table([_row(folder) for folder in waiting], _COLUMNS)
    if any(folder.alive and folder.events for folder in waiting):
        click.echo("Owners that are alive send theirs when Kafka answers: see `turnlog status`.")
    if any(not folder.alive and folder.events for folder in waiting):
        click.echo("What a dead owner left is sent by the next producer opened on this folder.")


def _sum(folders: list[Folder]) -> dict[str, object]:
    shed: dict[str, int] = {}
    for folder in folders:
        for kind, count in folder.shed.items():
            shed[kind] = shed.get(kind, 0) + count
    return {
        "segments": sum(folder.segments for folder in folders),
        "bytes": sum(folder.bytes for folder in folders),
        "events": sum(folder.events for folder in folders),
        "oldest_s": max((folder.oldest_s for folder in folders), default=0.0),
        "shed": shed,
    }


def _row(folder: Folder) -> dict[str, object]:
    state = "alive" if folder.alive else "dead"
    return {**folder._asdict(), "state": state, "shed": _shed(folder)}


def _shed(folder: Folder) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in folder.shed.items()) or "-"
