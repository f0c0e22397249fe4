"""`turnlog runs` and `turnlog run`: lists of runs, one run, and its bytes."""

from typing import Any

import click

from serve.cli.output import json_line, say, table, text
from serve.runs_api import STATUSES, list_runs, run_content, run_summary
from turnlog.config import load
from turnlog.errors import UsageError

_COLUMNS = ["run", "started_at", "status", "provider", "model", "tokens", "cost_usd"]


@click.command()
@click.option("--org", required=True, help="Organisation.")
@click.option("--project", help="Only runs of this project.")
@click.option("--status", type=click.Choice(STATUSES), help="Only runs in this state.")
@click.option("--limit", type=click.IntRange(1), help="At most so many, the newest. [default: all]")
@click.option("--json", "as_json", is_flag=True, help="One object a line.")
def runs(
    org: str, project: str | None, status: str | None, limit: int | None, as_json: bool
) -> None:
    """List the runs of an org, newest first.

    Example: turnlog runs --org local --status failed --limit 20
    """
    found = list_runs(load(), org, project=project, status=status, limit=limit)
    if as_json:
        for row in found:
            json_line(row)
    else:
        table(map(_short, found), _COLUMNS)


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--org", required=True, help="Organisation.")
@click.option("--response", is_flag=True, help="With --raw: the response as the provider sent it.")
@click.option("--request", is_flag=True, help="With --raw: the request as it was sent.")
@click.option("--raw", is_flag=True, help="Exactly the stored bytes, to standard output.")
@click.option("--json", "as_json", is_flag=True, help="One object.")
def run(run_id: str, org: str, response: bool, request: bool, raw: bool, as_json: bool) -> None:
    """Show one run, or the bytes of its request or response.

    A run that is missing, of another org, or erased answers the same: not found, exit 1.

    Example: turnlog run run_01J... --org local --response --raw > response.txt
    """
    if raw or response or request:
        _raw(run_id, org, response, request, raw)
        return
    summary = run_summary(load(), org, run_id)
    if as_json:
        json_line(summary)
    else:
        _show(summary)


def _raw(run_id: str, org: str, response: bool, request: bool, raw: bool) -> None:
    if response == request or not raw:
        raise UsageError("--raw goes with one of --response and --request, and they with it")
    stored = run_content(load(), org, run_id, "response" if response else "request")
    out = click.get_binary_stream("stdout")
    out.write(stored)
    # Here, where a disk that is full is an error of this command, and not at the process's end.
    out.flush()


def _short(row: dict[str, Any]) -> dict[str, Any]:
    return row | {
        "started_at": (row["started_at"] or "-")[:19],
        "tokens": _tokens(row["usage"]),
        "cost_usd": _usd(row["cost_nano_usd"]),
    }


def _tokens(usage: dict[str, Any]) -> int | str:
    """Return the sum of the classes; `~` marks an estimate."""
    quality = usage["quality"]
    if quality == "unknown":
        return "unknown"
    counted = sum(n for name, n in usage.items() if name != "quality")
    return counted if quality == "measured" else f"~{counted}"


def _usd(nano_usd: int | None) -> str | None:
    """Return nano-USD as dollars, by integers."""
    if nano_usd is None:
        return None
    sign, rest = "-" if nano_usd < 0 else "", abs(nano_usd)
    return f"{sign}{rest // 10**9}.{rest % 10**9:09d}"


def _show(summary: dict[str, Any]) -> None:
    counted = {name: n for name, n in summary["usage"].items() if n}
    shown = summary | {
        "usage": ", ".join(f"{name} {n}" for name, n in counted.items())
        + (f" ({reason})" if (reason := summary["usage_reason"]) else ""),
        "cost_usd": _usd(summary["cost_nano_usd"]),
    }
    for name in ("run", "source_ref", "conversation", "status", "provider", "model"):
        _line(name, shown[name])
    for name in ("started_at", "ended_at", "usage", "cost_usd", "request_ref", "content_ref"):
        _line(name, shown[name])
    _line("error", shown["error"])
    for choice in summary["output"]:
        _show_choice(choice)


def _line(name: str, value: Any) -> None:
    say(f"{name:<12}  {'-' if value is None else value}")


def _show_choice(choice: dict[str, Any]) -> None:
    click.echo()
    say(f"output {choice.get('index', 0)}")
    for name in ("reasoning", "text", "refusal"):
        if choice.get(name):
            click.echo(text(choice[name] if name == "text" else f"[{name}] {choice[name]}"))
    for call in choice.get("tool_calls", ()):
        click.echo(text(f"[tool call] {call.get('name', '')}({call.get('arguments', '')})"))
