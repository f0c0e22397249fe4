"""`turnlog import`: recorded provider traffic into the log."""

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

import click

from serve.cli.output import counted, json_line, say
from turnlog.config import load

if TYPE_CHECKING:
    from serve.importer import Report

SHOWN = 10


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--org", default="local", show_default=True, help="org to import for")
@click.option("--project", default="default", show_default=True, help="project of that org")
@click.option("--again", is_flag=True, help="book usage that an earlier import could not read")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def import_(file: Path, org: str, project: str, again: bool, as_json: bool) -> None:
    """Import recorded exchanges with providers.

    FILE has one exchange a line, or is a HAR; docs/providers.md describes both. `-` is standard
    input, which is kept in a temporary file until it is imported: every line is read twice.

    Importing a file again adds nothing. With --again, what an earlier import stored without
    understanding it is read anew: its usage is booked in the run that is there. A line that cannot
    be read is listed as rejected and the rest goes on; the exit code is then 1.

    Example: turnlog import samples/exchanges.jsonl --org local
    """
    from serve.importer import import_file

    config = load()
    with _file(file) as path, _progress(file.name) as on_progress:
        report = import_file(config, path, org, project, on_progress, again)
    if as_json:
        json_line(report.as_dict())
    else:
        _print(report)
    sys.exit(1 if report.rejected.count else 0)


@contextmanager
def _file(named: Path) -> Iterator[Path]:
    """Give the file, or one that holds what comes by standard input, for its owner alone."""
    if named != Path("-"):
        yield named
        return
    with NamedTemporaryFile(prefix="turnlog-import-") as kept:
        shutil.copyfileobj(click.get_binary_stream("stdin"), kept)
        kept.flush()
        yield Path(kept.name)


@contextmanager
def _progress(name: str) -> Iterator[Callable[[float], None]]:
    """Show a bar on a terminal; a pipe stays quiet. It goes to stderr, so that stdout is data."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda share: None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(f"import {name}", total=1.0)
        yield lambda share: bar.update(task, completed=share)


def _print(report: "Report") -> None:
    click.echo(
        f"{counted(report.exchanges, 'exchange')}: {counted(report.runs, 'run')} written,"
        f" {report.already} there already,"
        f" {report.erased} erased, {report.rejected.count} rejected"
    )
    if report.read_again:
        click.echo(f"read again: usage of {counted(report.read_again, 'run')} is booked now")
    for title, counts in (("status", report.by_status), ("usage", report.usage)):
        if any(counts.values()):
            say(f"{title}: " + ", ".join(f"{n} {name}" for name, n in counts.items() if n))
    if report.no_usage:
        say(unknown_usage(report.no_usage))
    for title, noted in (("warnings", report.warnings), ("rejected", report.rejected)):
        if noted.count:
            click.echo(f"{title}: {noted.count}")
        for row in noted.listed[:SHOWN]:
            say(f"  {_line(row)}: {row['reason']}")
        if noted.count > SHOWN:
            click.echo(f"  and {noted.count - SHOWN} more: --json lists them")


def _line(row: Mapping[str, Any]) -> str:
    """Return which line of the file it is: by its own id, and by its number."""
    named = row["id"] or "all lines"
    return f"{named} (line {row['line']})" if "line" in row else named


def unknown_usage(reasons: Mapping[str, int]) -> str:
    """Say how many runs have no usage, and why, the most frequent reason first."""
    listed = sorted(reasons.items(), key=lambda found: (-found[1], found[0]))
    why = ", ".join(f"{count} {reason}" for reason, count in listed)
    return f"without usage: {counted(sum(reasons.values()), 'run')} ({why})"
