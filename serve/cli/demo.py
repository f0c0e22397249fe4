"""`turnlog demo`: the main job from end to end, and what a user wants to see of it."""

import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

import samples
from serve.cli import cli
from serve.cli.imports import unknown_usage
from serve.cli.output import counted, say, table
from serve.cli.stack import start
from serve.importer import Report, import_file
from serve.importer.lines import check_file, read_lines
from serve.runs_api import list_runs, run_content
from serve.views import wait_for
from turnlog.config import Config, load
from turnlog.errors import TurnlogError

ORG = "local"
WAIT_S = 120.0
GROUPS_SHOWN = 15
STATUSES = ("completed", "failed", "cancelled", "interrupted", "running")


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@click.pass_context
def demo(ctx: click.Context, files: tuple[Path, ...]) -> None:
    """Run the main job from end to end and show every view.

    Starts the stack, imports FILE through the producer and waits for the views. Without FILE the
    exchanges in samples/ are imported, which were written for this project. A second run adds
    nothing: every import is idempotent.

    Example: turnlog demo recorded.jsonl
    """
    chosen = files or tuple(samples_shipped())
    for path in chosen:
        check_file(path)
    began = time.monotonic()
    title("The local stack")
    config = start(load(), (), click.echo)
    click.echo(f"Kafka, S3, Redis, the ClickHouse engine and the workers run; home {config.home}")
    rejected = sum(feed(config, path) for path in chosen)
    title("Waiting until every view holds all that is in the log")
    caught_up(config)
    show(config, chosen)
    click.echo(f"\nDone in {time.monotonic() - began:.0f} s. `make down` stops the stack.")
    ctx.exit(1 if rejected else 0)


def samples_shipped() -> list[Path]:
    """Return the exchanges that the project ships."""
    return sorted(Path(samples.__file__).parent.glob("*.jsonl"))


def feed(config: Config, path: Path) -> int:
    """Import one file and say what became of it; return how many lines were rejected."""
    title(f"$ turnlog import {shlex.quote(str(path))}")
    began = time.monotonic()
    report = import_file(config, path, ORG)
    click.echo(
        f"{counted(report.exchanges, 'exchange')} in {time.monotonic() - began:.1f} s: "
        f"{counted(report.runs, 'run')} written, {report.already} there already, "
        f"{report.erased} erased, "
        f"{report.rejected.count} rejected"
    )
    _say_more(report)
    return report.rejected.count


def _say_more(report: Report) -> None:
    for row in report.rejected.listed[:10]:
        say(f"  rejected {row['id']}: {row['reason']}", err=True)
    if report.no_usage:
        say(f"  {unknown_usage(report.no_usage)}")
    kinds = Counter(row["reason"] for row in report.warnings.listed)
    for reason, count in kinds.most_common(5):
        say(f"  {count} x {reason}")


def caught_up(config: Config) -> None:
    """Wait for the views.

    Raises:
        TurnlogError: one did not get there in time.
    """
    began = time.monotonic()
    behind = wait_for(config, timeout_s=WAIT_S)
    if behind:
        late = ", ".join(f"{name} by {lag} events" for name, lag in behind.items())
        raise TurnlogError(f"still behind after {WAIT_S:.0f} s: {late}; see `turnlog status`")
    click.echo(f"caught up after {time.monotonic() - began:.1f} s")


def show(config: Config, files: Sequence[Path]) -> None:
    """Print each view as a user would ask for it."""
    runs = list(list_runs(config, ORG))
    title("Runs by provider and status")
    table(by_provider(runs), ["provider", "runs", *STATUSES])
    command("usage", "--org", ORG, "--by", "provider,model", "--limit", str(GROUPS_SHOWN))
    conversation = longest_conversation(runs)
    if conversation:
        command("conversation", conversation, "--org", ORG)
    read_back(config, runs, files)
    title("How far each view is")
    command("status")
    command("digest")
    title("Where to look next")
    click.echo(NEXT.format(run=runs[0]["run"] if runs else "RUN"))


def by_provider(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Count runs by provider and status."""
    counts = Counter((run["provider"], run["status"]) for run in runs)
    return [
        {"provider": provider, "runs": sum(counts[provider, status] for status in STATUSES)}
        | {status: counts[provider, status] for status in STATUSES}
        for provider in sorted({run["provider"] for run in runs})
    ]


def longest_conversation(runs: Sequence[dict[str, Any]]) -> str | None:
    """Return the conversation with the most runs that used tokens, the first of several by name."""
    talks = (run for run in runs if run["conversation"])
    counts = Counter(run["conversation"] for run in talks if run["usage"]["output_text"])
    return min(counts, key=lambda name: (-counts[name], name)) if counts else None


def read_back(config: Config, runs: Sequence[dict[str, Any]], files: Sequence[Path]) -> None:
    """Read one run's response from its stored object and compare it with the line it came from.

    Raises:
        TurnlogError: they differ.
    """
    title("One run read back from its stored object")
    stored = {run["source_ref"]: run for run in runs if run["content_ref"].startswith("s3://")}
    for line_id, response in responses(files):
        if line_id in stored and response:
            run = stored[line_id]
            same = run_content(config, ORG, run["run"], "response") == response
            say(f"{run['run']}  {run['provider']} {run['model']}")
            say(run["content_ref"])
            click.echo(f"{len(response)} bytes, {'identical to' if same else 'NOT'} what came in")
            if not same:
                raise TurnlogError(f"run {run['run']} does not read back as it came in")
            return
    click.echo("no run of these files has a stored response")


def responses(files: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Yield `(line id, response bytes)` of the lines of files that can be read."""
    for path in files:
        for line in read_lines(path):
            if line.source is not None:
                yield line.id, line.source.response


def command(*arguments: str) -> None:
    """Run a command as a user would, with what was typed above it."""
    title("$ turnlog " + " ".join(arguments))
    cli.main(list(arguments), prog_name="turnlog", standalone_mode=False)


def title(text: str) -> None:
    """Print a line that begins a section."""
    click.echo()
    click.secho(text, bold=True)


NEXT = """\
turnlog runs --org local --limit 10        the newest runs
turnlog run {run} --org local
                                           one of them; --response --raw for its bytes
turnlog digest --fold                      what every view must hold, folded from the log
turnlog import FILE                        your own recorded exchanges
turnlog down                               stop; `turnlog up` brings everything back
README.md has the tour."""
