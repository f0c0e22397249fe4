"""`turnlog append`: events of a file into the log, each answered for itself."""

import asyncio
import os
import stat
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, BinaryIO

import click

from serve.cli.output import json_line, say
from turnlog.config import load
from turnlog.errors import UsageError

if TYPE_CHECKING:
    from serve.appending import Answer


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option("--org", default="local", show_default=True, help="org to append for")
@click.option("--project", default="", help="project of events that name none  [default: default]")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object an event")
def append(file: BinaryIO, org: str, project: str, as_json: bool) -> None:
    """Append events from FILE, or from standard input with `-`.

    An event a line, or one JSON document: an event, a list, or {"events": [...]}. docs/http.md
    describes them. A line has at most 20 MiB, a document over many lines 64 MiB. The same file
    again is answered with duplicates. The exit code is 1 when an event is not in the log.

    Example: turnlog append events.jsonl --org local --json
    """
    from serve.appending.local import append_lines, bounded_lines

    _check(file)
    answers = append_lines(load(), org, project, bounded_lines(file))
    refused = asyncio.run(_print_json(answers) if as_json else _print(answers))
    sys.exit(1 if refused else 0)


def _check(file: BinaryIO) -> None:
    """Make sure that a file is one with an end, or a pipe.

    Raises:
        UsageError: it is a device other than a terminal.
    """
    mode = os.fstat(file.fileno()).st_mode
    if stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and not _is_harmless(file)):
        raise UsageError("FILE is a device: name a file, or - for standard input")


def _is_harmless(file: BinaryIO) -> bool:
    return file.isatty() or os.fstat(file.fileno()).st_rdev == os.stat(os.devnull).st_rdev


async def _print_json(answers: "AsyncIterator[Answer]") -> int:
    refused = 0
    async for answer in answers:
        refused += not answer.is_kept
        json_line(answer.as_dict())
    return refused


async def _print(answers: "AsyncIterator[Answer]") -> int:
    counts: Counter[str] = Counter()
    refused: list[Answer] = []
    async for answer in answers:
        counts[answer.outcome] += 1
        if not answer.is_kept:
            refused.append(answer)
    click.echo(f"{sum(counts.values())} events: {_listed(counts)}")
    for answer in refused:
        where = f"{answer.field}: " if answer.field else ""
        say(f"  event {answer.n}: {answer.outcome}: {where}{answer.detail}")
    return len(refused)


def _listed(counts: Counter[str]) -> str:
    named: Iterable[str] = (f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    return ", ".join(named) or "none"
