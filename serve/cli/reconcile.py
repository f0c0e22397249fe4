"""`turnlog reconcile`: was everything that producers sent kept, and does every view have it?"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import click

from replay.damaged import look_here
from replay.reconcile import Report, as_json, read_marks, topics_of
from replay.reconcile import reconcile as compare
from serve.cli.output import json_line, say, table
from serve.views import wait_for
from streams.progress import Progress
from turnlog.config import Config, load
from turnlog.keeper_client import credential_of

_SHOWN = 20
_VIEW = ("view", "events", "missing", "duplicates", "extra", "refused", "repeats")

Say = Callable[[str], None]


class Outcome(NamedTuple):
    """What was compared, and the views that did not catch up, with their lag in events."""

    report: Report
    behind: Mapping[str, int]

    @property
    def ok(self) -> bool:
        """Say whether nothing is missing and every view was there to be asked."""
        return self.report.ok and not self.behind


@click.command()
@click.option("--org", default="", help="Only the records of this org.")
@click.option("--timeout", "timeout_s", default=60.0, show_default=True, help="Wait for views.")
@click.option("--json", "as_object", is_flag=True, help="Print one JSON object.")
@click.pass_context
def reconcile(ctx: click.Context, org: str, timeout_s: float, as_object: bool) -> None:
    """Compare what producers sent with the log and every view.

    It waits until the views have passed the end of the log, then names each gap and each duplicate
    by its place. What lies above the last mark of a producer that did not close is its unknown
    tail: it is told and is no failure. What this machine's spool could not read any more (see
    `turnlog spool`) is missing where the log does not have its number. An event that the log has
    twice is no failure, because views leave repeats out; packs and locator hold the log record by
    record, with its repeats, so that their events are more than those of a digest, which counts
    each event once. Exit 1 when something is missing, a view has something twice, or a view does
    not catch up in time.

    Example: turnlog reconcile --org local --json
    """
    config = load()
    if org:
        credential_of(config, org)
    with _progress() as say:
        outcome = run(config, org, timeout_s, say)
    if as_object:
        json_line(as_json(outcome.report) | {"behind": outcome.behind, "ok": outcome.ok})
    else:
        _print(outcome)
    ctx.exit(0 if outcome.ok else 1)


def run(
    config: Config, org: str = "", timeout_s: float = 60.0, say: Say = lambda _: None
) -> Outcome:
    """Wait for the views and compare.

    Raises:
        PackError: an object of the archive is missing or damaged.
        Unavailable: a part does not answer.
        UsageError: the spool cannot be read.
    """
    # In this order: what waits in the spool no more, and what a mark says is acknowledged, lies
    # below the ends, and these below what the views have passed.
    here = look_here(config)
    marks = read_marks(config)
    ends = Progress(config).ends(topics_of(marks))

    def waiting(behind: Mapping[str, int]) -> None:
        say("waiting for " + ", ".join(f"{name} {lag}" for name, lag in behind.items()))

    def reading(place: str, done: int, total: int) -> None:
        say(f"{place}: {done:,} of {total:,}")

    behind = wait_for(config, timeout_s=timeout_s, on_progress=waiting)
    return Outcome(compare(config, marks, ends, org, reading, here), behind)


@contextmanager
def _progress() -> Iterator[Say]:
    """Show a line on a terminal, on stderr; a pipe stays quiet."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda line: None
        return
    with console.status("reading the ledger") as status:
        yield status.update


def _print(outcome: Outcome) -> None:
    found = as_json(outcome.report)
    if outcome.ok:
        say(_clean(found))
    else:
        _print_wrong(found, outcome.behind)
    if found["unknown"]:
        say(_unknown(found["unknown"]))
    if found["since"]:
        say(f"Compared from these offsets on, retention took the rest: {found['since']}")


def _clean(found: Mapping[str, Any]) -> str:
    events = ", ".join(f"{name} {sums['events']:,}" for name, sums in found["views"].items())
    refused = len(found["refused"])
    more = f"; {refused} in the dead letters (`turnlog dead`)" if refused else ""
    repeats = f"; {found['repeats']:,} repeats left out" if found["repeats"] else ""
    return (
        f"Clean: {found['in_kafka']:,} of {found['sent']:,} numbers in Kafka, nothing missing, "
        f"nothing twice: {events}{repeats}{more}."
    )


_STATES = {
    "alive": "running or being drained",
    "waiting": "dead, with events on the disk",
    "gone": "dead, or on another machine",
}


def _unknown(tails: list[dict[str, Any]]) -> str:
    states = Counter({tail["producer"]: tail["state"] for tail in tails}.values())
    told = "; ".join(f"{states[state]} {what}" for state, what in _STATES.items() if states[state])
    producers = _counted(states.total(), "producer")
    unseen = sum(tail["unseen"] for tail in tails)
    holes = f", {_counted(unseen, 'number')} below what arrived" if unseen else ""
    return (
        f"Unknown: {producers} did not close ({told}); what they sent above their last marks, in "
        f"{_counted(len(tails), 'partition')}, is not known{holes}."
    )


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _print_wrong(found: Mapping[str, Any], behind: Mapping[str, int]) -> None:
    for name, lag in behind.items():
        say(f"{name} did not catch up: {lag} events behind; what it lacks may only be late.")
    table([{"view": n, **sums} for n, sums in found["views"].items()], list(_VIEW))
    for kind in ("gaps", "duplicates", "conflicts"):
        listed = found[kind]
        if listed:
            say(f"{kind}: {len(listed)} listed")
        for row in listed[:_SHOWN]:
            say("  " + " ".join(f"{k}={v}" for k, v in row.items()))
