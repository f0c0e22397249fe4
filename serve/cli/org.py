"""`turnlog org`: create orgs and projects, list them."""

from collections.abc import Mapping

import click

from serve.cli.output import json_line, say, table
from turnlog.config import Config, load

DIRECTORY = "turnlog.directory"


@click.group()
def org() -> None:
    """Create orgs and projects, and list them.

    Example: turnlog org create acme --project support
    """


@org.command("create")
@click.argument("org_id", metavar="ORG")
@click.option("--project", default="default", show_default=True, help="project to create in it")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def create_(org_id: str, project: str, as_json: bool) -> None:
    """Create an org with a project, or another project in it.

    A repeat changes nothing. Its keys are made by the key keeper, and its credential is written
    under TURNLOG_HOME/credentials/ORG.json, readable by you alone.

    Example: turnlog org create acme --project support
    """
    from turnlog.keeper_client import create

    made = create(load(), org_id, project)
    if as_json:
        path = str(made.credential)
        json_line({**made._asdict(), "credential": path})
        return
    verb = "created" if made.created else "there already"
    say(f"{made.org}/{made.project}: {verb}; credential {made.credential}")


@org.command("list")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object a line")
def list_(as_json: bool) -> None:
    """List every org and its projects, read from the log.

    Example: turnlog org list --json
    """
    rows = [{"org": name, "projects": projects} for name, projects in orgs(load()).items()]
    if as_json:
        for row in rows:
            json_line(row)
        return
    table(({**row, "projects": " ".join(row["projects"])} for row in rows), ["org", "projects"])


def orgs(config: Config) -> Mapping[str, list[str]]:
    """Return the orgs and their projects that stand in the directory, sorted.

    Raises:
        Unavailable: Kafka does not answer.
    """
    from streams.keeper.directory import entry_in
    from turnlog.kafka import read_all

    projects: dict[str, set[str]] = {}
    for message in read_all(config, DIRECTORY):
        body = entry_in(message.value())
        if body is None:
            continue  # removed, or no entry: the keeper says how many there are
        if body["kind"] == "org":
            _set(projects, body["org"], body["revoked"])
        elif body["kind"] == "project":
            found = projects.setdefault(body["org"], set())
            (found.discard if body["revoked"] else found.add)(body["id"])
    return {name: sorted(projects[name]) for name in sorted(projects)}


def _set(projects: dict[str, set[str]], name: str, revoked: bool) -> None:
    if revoked:
        projects.pop(name, None)
    else:
        projects.setdefault(name, set())
