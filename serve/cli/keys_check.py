"""`turnlog keys check`: do topic, local copies and floors agree, and what holds old heads?"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from serve.cli.output import json_line, say

if TYPE_CHECKING:
    from streams.keys.checking import Checking


@click.command("check")
@click.option("--gone", is_flag=True, help="say what still holds a head that was replaced")
@click.option("--org", default="", help="only this org; all by default")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object a line")
def check(gone: bool, org: str, as_json: bool) -> None:
    """Compare the topic, local copies and floors.

    Never shows a key.

    Every tree is opened from its head to its last page. With --gone, tell instead where a replaced
    head still is and why: until it is gone, who holds the org's key can open what was erased.

    Example: turnlog keys check --gone --org acme
    """
    from streams.keys.checking import Checking
    from turnlog.config import load
    from turnlog.ids import require_id

    if org:
        require_id(org, "org")
    checking = Checking(load(), org)
    found = _kept(checking) if gone else _findings(checking)
    count = sum(_show(line, as_json) for line in found)
    summary = checking.summary(count, gone)
    if as_json:
        json_line(summary)
    else:
        say(_words(summary, gone))
    if count:
        raise click.exceptions.Exit(1)


def _show(line: dict[str, Any], as_json: bool) -> int:
    """Print one finding; return how many that is."""
    if as_json:
        json_line(line)
    elif "what" in line:
        say(" ".join(filter(None, (line["org"], line["tree"], _said(line)))))
    else:
        place = f"{line['org']} {line['tree']} generation {line['generation']} in {line['where']}"
        say(f"{place}: {line['why']}, {line['detail']}")
    return 1


def _said(finding: dict[str, Any]) -> str:
    return f"{finding['what']}: {finding['detail']}"


def _findings(checking: "Checking") -> Iterator[dict[str, Any]]:
    for finding in checking.findings():
        yield finding._asdict()


def _kept(checking: "Checking") -> Iterator[dict[str, Any]]:
    for kept in checking.kept():
        yield kept._asdict()


def _words(summary: dict[str, Any], gone: bool) -> str:
    unseen = f"; {summary['unseen']}" if summary.get("unseen") else ""
    if gone:
        count = summary["kept"]
        return (f"old heads still held: {count}" if count else "no old head is held") + unseen
    if summary["findings"]:
        return f"{summary['findings']} findings in {summary['trees']} trees"
    return f"all {summary['trees']} trees agree"
