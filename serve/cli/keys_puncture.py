"""`turnlog keys puncture`: destroy the keys of a run, a conversation, a user or a day."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from serve.cli.output import counted, json_line, plain, say, table
from turnlog.errors import TurnlogError, UsageError

if TYPE_CHECKING:
    from serve.puncture_api import Aim, Kind, Selector

_COLUMNS = ["tree", "prefix", "generation", "rows", "nodes_destroyed"]
_WHAT: "Mapping[Kind, str]" = {
    "run": "run {}: the request that was sent and the output",
    "conversation": "conversation {}: every run in it",
    "user": "user {}: every run until now; no run of this user can begin until midnight UTC",
    "history-of": "the history of user {}: every run until now; the next one can begin at once",
    "day": "day {}: everything that began on it; if it is today, nothing can begin until midnight",
}
TURN_STAYS = (
    "The user's own turn in the conversation stays readable: it has a key of its own."
    " --conversation erases both."
)


@click.command("puncture")
@click.option("--org", required=True, help="Organisation.")
@click.option("--project", required=True, help="Project of that org.")
@click.option("--run", metavar="RUN", help="Both keys of one run: request and output.")
@click.option("--conversation", metavar="ID", help="Every run of a conversation.")
@click.option("--user", metavar="ID", help="Every run of a user, and today's still to come.")
@click.option("--history-of", metavar="ID", help="Every run of a user until now.")
@click.option("--day", metavar="YYYY-MM-DD", help="All that began on a UTC day.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--timeout", "wait_s", default=60.0, show_default=True, help="Seconds to wait for the view."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def puncture_(
    org: str, project: str, yes: bool, wait_s: float, as_json: bool, **selected: str | None
) -> None:
    """Destroy keys, for good.

    What they sealed can never be read again, by anyone. Name exactly one of --run, --conversation,
    --user, --history-of and --day. The runs are listed from the view `runs`, after it has taken in
    all that is in the log now; if it does not get there in time, nothing is punctured. Without
    --yes you see what will be destroyed and type its id.

    Usage and its cost stay, and so does every event; only content is gone. Turns that belong to no
    run, requests of later runs that repeat an erased text, and producers that hold a grant from
    before (for up to 24 hours they can still seal and open under the erased keys) are not reached.
    What the user said to a run is such a turn, with a key of its own: after --run it can still be
    read in the conversation. --conversation erases both.

    A puncture that is repeated changes nothing and prints zeros. `rows` are new rows of the key
    tree and `nodes_destroyed` stored nodes that are gone, each counted for one prefix.

    Example: turnlog keys puncture --org acme --project support --run run_01J...

    Example: turnlog keys puncture --org acme --project support --history-of user_7 --yes --json

    Example: turnlog keys puncture --org acme --project support --day 2026-11-30
    """
    from serve.puncture_api import aim
    from turnlog.config import load

    what = _selector(selected)
    config = load()
    with _waiting(quiet=as_json):
        aimed = aim(config, org, project, what, wait_s)
    if not yes:
        _confirm(what, aimed)
    punctures = _puncture(config, org, project, aimed)
    if as_json:
        json_line({"punctures": punctures})
    else:
        _show(punctures, aimed, what)


def _selector(selected: dict[str, str | None]) -> "Selector":
    from serve.puncture_api import Selector

    given = [(name, value) for name in _WHAT if (value := selected[name.replace("-", "_")])]
    if len(given) != 1 or sum(value is not None for value in selected.values()) != 1:
        raise UsageError(f"name exactly one of {', '.join(f'--{name}' for name in _WHAT)}")
    return Selector(*given[0])


def _confirm(what: "Selector", aimed: "Aim") -> None:
    """Show what will be destroyed and have its id typed; goes to stderr, so that stdout is data.

    Raises:
        UsageError: nobody is there who could type.
        TurnlogError: something else was typed.
    """
    if not sys.stdin.isatty():
        raise UsageError("nobody can confirm here: add --yes")
    places = len(aimed.targets)
    say(f"This destroys {_WHAT[what.kind].format(what.value)}.", err=True)
    click.echo(
        f"{counted(aimed.runs, 'run')} under {places} {'prefix' if places == 1 else 'prefixes'} of"
        " the key tree; runs that were erased before are counted too. It cannot be undone.",
        err=True,
    )
    if what.kind == "run":
        click.echo(TURN_STAYS, err=True)
    asked = f"Type {plain(what.value)} to go on"
    typed = click.prompt(asked, err=True, default="", show_default=False)
    if typed != what.value:
        raise TurnlogError("that is not what was asked for: nothing was punctured")


def _puncture(config: Any, org: str, project: str, aimed: "Aim") -> list[dict[str, Any]]:
    from serve.puncture_api import puncture

    with _progress(len(aimed.targets)) as on_progress:
        return puncture(config, org, project, aimed.targets, on_progress)


def _show(punctures: list[dict[str, Any]], aimed: "Aim", what: "Selector") -> None:
    table(punctures, _COLUMNS)
    changed = sum(1 for found in punctures if found["rows"])
    under = counted(aimed.runs, "run")
    click.echo(f"{changed} of {len(punctures)} prefixes punctured, {under} under them.")
    if what.kind == "run":
        click.echo(TURN_STAYS)
    click.echo("Producers that hold a grant from before keep it until it expires (24 h at most).")


@contextmanager
def _waiting(quiet: bool) -> Iterator[None]:
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    with console.status("waiting for the view of runs"):
        yield


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal for what takes several calls; a pipe stays quiet."""
    from rich.console import Console
    from rich.progress import Progress

    from serve.puncture_api import TARGETS_A_CALL

    console = Console(stderr=True)
    if not console.is_terminal or total <= TARGETS_A_CALL:
        yield lambda done: None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("punctures", total=total)
        yield lambda done: bar.update(task, completed=done)
