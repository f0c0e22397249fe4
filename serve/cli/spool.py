"""`turnlog spool`: what waits on the disk for Kafka, and whose it is."""

from pathlib import Path

import click

from serve.cli.output import json_line, table
from turnlog.config import load
from turnlog.spool.aside import DAMAGED, Aside, look_aside
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
    `damaged` counts events that the disk gave back otherwise than they were written: their files
    are set aside in the folder `damaged`, nothing of them is sent, and `turnlog reconcile` says
    which numbers are missing for it.

    Example: turnlog spool --json
    """
    config = load()
    folders, damaged = look(config.spool_folder), look_aside(config.spool_folder)
    if as_json:
        json_line(_sum(folders) | {"damaged": len(damaged)})
        return
    _print(config.spool_folder, folders)
    if damaged:
        click.echo(_damaged(config.spool_folder, damaged))


def _damaged(folder: Path, damaged: list[Aside]) -> str:
    count = len(damaged)
    events = "1 event is" if count == 1 else f"{count} events are"
    return (
        f"{events} damaged and not sent: set aside in {folder / DAMAGED}, kept until you remove "
        "them. `turnlog reconcile` says which numbers are missing."
    )


def _print(folder: Path, folders: list[Folder]) -> None:
    waiting = [folder for folder in folders if folder.events or folder.shed]
    if not waiting:
        click.echo(f"Nothing waits in {folder}.")
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
