"""The `turnlog` command: each command is a module of its own, imported when it is used."""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import click

from turnlog.config import past_proxy
from turnlog.errors import NotInstalled, TurnlogError, Unavailable, UsageError

# name -> module:function; imported only when asked for, so that `turnlog --help` stays quick.
COMMANDS = {
    "up": "serve.cli.stack:up",
    "down": "serve.cli.stack:down",
    "status": "serve.cli.stack:status",
    "doctor": "serve.cli.stack:doctor",
    "demo": "serve.cli.demo:demo",
    "org": "serve.cli.org:org",
    "topics": "serve.cli.topics:topics",
    "keys": "serve.cli.keys:keys",
    "import": "serve.cli.imports:import_",
    "wait": "serve.cli.views:wait",
    "digest": "serve.cli.views:digest",
    "runs": "serve.cli.runs:runs",
    "run": "serve.cli.runs:run",
    "conversation": "serve.cli.conversation:conversation",
    "usage": "serve.cli.usage:usage",
    "packs": "serve.cli.packs:packs",
    "dead": "serve.cli.dead:dead",
    "bench": "serve.cli.bench:bench",
}


class Commands(click.Group):
    """A group that imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return every name, in the order of the table above."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, function = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), function)
        return command


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
        click.echo(f"turnlog: {error}", err=True)
        return 2
    except TurnlogError as error:
        click.echo(f"turnlog: {error}", err=True)
        if isinstance(error, Unavailable) and not isinstance(error, NotInstalled):
            click.echo("`turnlog status` shows which parts run, `turnlog up` starts them", err=True)
        return 1
    except BrokenPipeError:
        # A reader such as `head` went away; the rest of the output has no one to go to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def main() -> None:
    """Console entry point. Exit 0 done, 1 found something wrong, 2 used wrongly."""
    os.environ.update(past_proxy(os.environ))
    sys.exit(guarded(cli))
