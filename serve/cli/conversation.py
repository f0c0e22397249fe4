"""`turnlog conversation`: one conversation with its texts."""

import textwrap
from typing import Any

import click

from serve.cli.output import counted, json_line, plain, say, text
from serve.conversation_api import Conversation, read_conversation
from turnlog.config import load

_INDENT = " " * 6


@click.command()
@click.argument("conversation_id", metavar="CONV")
@click.option("--org", required=True, help="Organisation.")
@click.option("--all", "everything", is_flag=True, help="Siblings too, not only the visible path.")
@click.option("--json", "as_json", is_flag=True, help="One object.")
@click.pass_context
def conversation(
    ctx: click.Context, conversation_id: str, org: str, everything: bool, as_json: bool
) -> None:
    """Show who said what, in order.

    CONV is the conversation's id, or the `file` that its import named. A text whose key was erased
    is null. One that is missing or of another org answers the same: not found, exit 1.

    Example: turnlog conversation conv_1 --org local --json
    """
    found = read_conversation(load(), org, conversation_id, everything=everything)
    if as_json:
        json_line({name: getattr(found, name) for name in ("conversation", "leaf", "turns")})
    else:
        _show(found, places=everything)
    for line in found.unreadable:
        say(f"turnlog: {line}", err=True)
    ctx.exit(1 if found.unreadable else 0)


def _show(found: Conversation, *, places: bool) -> None:
    title = found.title or found.conversation
    gone = "[erased or damaged]" if found.unreadable else "[erased]"
    click.secho(f"{plain(title)}  ({counted(len(found.turns), 'turn')})", bold=True)
    for turn in found.turns:
        about = [turn["status"]] if turn["status"] else []
        if places:
            about += [turn["turn"], f"after {turn['parent']}" if turn["parent"] else "first"]
        if places and turn["turn"] == found.leaf:
            about.append("leaf")
        click.echo()
        click.secho(f"{turn['turn_seq']:>4}  {plain(turn['role'])}", bold=True, nl=False)
        click.secho(f"  {plain(', '.join(about))}" if about else "", dim=True)
        _say(turn, found.calls.get(turn["turn"], []), gone)


def _say(turn: dict[str, Any], calls: list[str], gone: str) -> None:
    said = _said(turn, calls, gone)
    if said.strip():
        click.echo(textwrap.indent(text(said), _INDENT))
    else:
        nothing = "(no output yet)" if turn["status"] == "running" else "(no output)"
        click.secho(_INDENT + nothing, dim=True)


def _said(turn: dict[str, Any], calls: list[str], gone: str) -> str:
    text = gone if turn["text"] is None else turn["text"]
    return "\n".join([*([text] if text else []), *(f"[tool call] {call}" for call in calls)])
