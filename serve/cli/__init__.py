"""The `turnlog` command: each command is a module of its own, imported when it is used."""

import errno
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import click

from serve.cli.output import say
from turnlog.errors import NotInstalled, TurnlogError, Unavailable, UsageError
from turnlog.proxy import past_proxy


class Entry(NamedTuple):
    """A command that is not imported yet: where it is, and the first sentence of its help."""

    place: str
    help: str


# Imported only when asked for: all of them take 1.2 s, so the list has their first sentences.
COMMANDS = {
    "up": Entry("stack:up", "Start the local stack and its workers."),
    "down": Entry("stack:down", "Stop the local stack; its data stay."),
    "status": Entry("stack:status", "Show every part, and how far every view is."),
    "doctor": Entry("stack:doctor", "Say what this machine lacks, and how to get it."),
    "demo": Entry("demo:demo", "Run the main job from end to end and show every view."),
    "org": Entry("org:org", "Create orgs and projects, and list them."),
    "apikey": Entry("apikey:apikey", "Make, list and revoke the keys that open the HTTP door."),
    "topics": Entry("topics:topics", "Show every topic and how it differs from the catalogue."),
    "keys": Entry("keys:keys", "Look at the key tree; never at a key."),
    "proxy": Entry("proxy:proxy", "Pass calls to a provider unchanged, and record each as a run."),
    "serve": Entry("serve:serve", "Take events over HTTP and answer what views know."),
    "append": Entry("append:append", "Append events from FILE, or from standard input with `-`."),
    "import": Entry("imports:import_", "Import recorded exchanges with providers."),
    "wait": Entry("views:wait", "Wait until views have folded what is in the log now."),
    "digest": Entry("views:digest", "Print what each view holds as one SHA-256."),
    "runs": Entry("runs:runs", "List the runs of an org, newest first."),
    "run": Entry("runs:run", "Show one run, or the bytes of its request or response."),
    "conversation": Entry("conversation:conversation", "Show who said what, in order."),
    "usage": Entry("usage:usage", "Sum up tokens and cost of an org."),
    "packs": Entry("packs:packs", "List the objects of the archive, oldest first."),
    "dead": Entry("dead:dead", "List the records that views refused."),
    "reconcile": Entry(
        "reconcile:reconcile", "Compare what producers sent with the log and every view."
    ),
    "spool": Entry("spool:spool", "Show what waits on the disk for Kafka, and whose it is."),
    "chaos": Entry("chaos:chaos", "Kill parts at random moments; check what must never happen."),
    "bench": Entry("bench:bench", "Measure what Turnlog costs beside a raw Kafka client."),
}


# What a disk says that takes no more; what else fails in the system is no mistake of the user's.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Commands(click.Group):
    """A group that imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return every name, in the order of the table above."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, function = COMMANDS[cmd_name].place.partition(":")
        found: click.Command = getattr(importlib.import_module(f"serve.cli.{module}"), function)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="turnlog")
def cli() -> None:
    """Turnlog, the system of record for LLM runs.

    Start with `turnlog up`, then `turnlog import FILE`, then `turnlog runs --org local`.
    """


def guarded(call: Callable[[], Any]) -> int:
    """Run a command; a mistake of the user or a missing part becomes one line, not a trace."""
    try:
        call()
    except UsageError as error:
        _tell(error)
        return 2
    except TurnlogError as error:
        _tell(error)
        if isinstance(error, Unavailable) and not isinstance(error, NotInstalled):
            click.echo("`turnlog status` shows which parts run, `turnlog up` starts them", err=True)
        return 1
    except BrokenPipeError:
        # A reader such as `head` went away; the rest of the output has no one to go to.
        _discard_output()
        return 1
    except OSError as error:
        if error.errno not in _FULL:
            raise
        _discard_output()
        say(f"turnlog: {error.filename or 'the output'}: {error.strerror}", err=True)
        return 1
    return 0


def _discard_output() -> None:
    """Let what still waits in standard output go nowhere, or its last flush fails once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(error: TurnlogError) -> None:
    # Only where there is an error: it takes the config along, which takes 0.2 s to import.
    from serve.cli.words import in_words

    # Several lines where it quotes a part's log.
    for line in f"turnlog: {in_words(str(error))}".split("\n"):
        say(line, err=True)


def main() -> None:
    """Console entry point. Exit 0 done, 1 found something wrong, 2 used wrongly."""
    os.environ.update(past_proxy(os.environ))
    sys.exit(guarded(cli))
