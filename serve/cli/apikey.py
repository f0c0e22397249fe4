"""`turnlog apikey`: make keys for the HTTP door, list them, revoke them."""

import time
from datetime import UTC, datetime

import click

from serve.cli.output import json_line, table
from turnlog.apikeys import ApiKey, Role, key_id
from turnlog.config import load

_COLUMNS = ["id", "project", "role", "expires_at"]
_DAY_US = 24 * 3600 * 1_000_000


@click.group()
def apikey() -> None:
    """Make, list and revoke the keys that open the HTTP door.

    Example: turnlog apikey create --org acme --project support --role producer
    """


@apikey.command("create")
@click.option("--org", required=True, help="Organisation that it opens.")
@click.option("--project", default="default", show_default=True, help="Project it is bound to.")
@click.option(
    "--role",
    required=True,
    type=click.Choice([role.value for role in Role]),
    help="What it may do.",
)
@click.option("--expires-days", type=click.IntRange(1, 3650), help="Days it holds. [default: ever]")
@click.option("--json", "as_json", is_flag=True, help="One object: the key and what it is.")
def create_(org: str, project: str, role: str, expires_days: int | None, as_json: bool) -> None:
    """Make a key. It is shown now and never again: only its SHA-256 is kept.

    Example: turnlog apikey create --org acme --project support --role producer --json
    """
    from turnlog.keeper_client import create_apikey

    expires_at_us = time.time_ns() // 1000 + expires_days * _DAY_US if expires_days else 0
    key = create_apikey(load(), org, project, Role(role), expires_at_us)
    if as_json:
        made = {"key": key, "id": key_id(key), "org": org, "role": role, "project": project}
        json_line({**made, "expires_at": _time(expires_at_us)})
        return
    click.echo(key)
    click.echo("Keep it now: it is not shown again.", err=True)


@apikey.command("list")
@click.option("--org", required=True, help="Organisation.")
@click.option("--json", "as_json", is_flag=True, help="One object a line.")
def list_(org: str, as_json: bool) -> None:
    """List the keys of an org that stand, expired ones too. The keys themselves are not kept.

    Example: turnlog apikey list --org acme
    """
    rows = [_row(key) for key in keys_of(org)]
    if as_json:
        for row in rows:
            json_line(row)
    else:
        table(rows, _COLUMNS)


@apikey.command()
@click.argument("id", metavar="ID")
@click.option("--org", required=True, help="Organisation.")
@click.option("--json", "as_json", is_flag=True, help="One object.")
def revoke(id: str, org: str, as_json: bool) -> None:
    """Revoke a key, named by its id. Every server refuses it within a moment.

    Example: turnlog apikey revoke 4fQx0aB92kLm --org acme
    """
    from turnlog.keeper_client import revoke_apikey

    revoke_apikey(load(), org, id)
    if as_json:
        json_line({"id": id, "org": org, "revoked": True})
    else:
        click.echo(f"{id}: revoked")


def keys_of(org: str) -> list[ApiKey]:
    """Return the keys of an org that stand in the directory, by id.

    Raises:
        UsageError: the org is not an id.
        Unavailable: Kafka does not answer.
    """
    from serve.doors.directory import TOPIC
    from serve.doors.keys import KeyBook
    from turnlog.ids import require_id
    from turnlog.kafka import read_all

    require_id(org, "org")
    book = KeyBook()
    for message in read_all(load(), TOPIC):
        book.take(message.value())
    return book.of_org(org)


def _row(key: ApiKey) -> dict[str, str | None]:
    named = {"id": key.id, "project": key.project, "role": str(key.role)}
    return {**named, "expires_at": _time(key.expires_at_us)}


def _time(at_us: int) -> str | None:
    return f"{datetime.fromtimestamp(at_us // 10**6, UTC):%Y-%m-%dT%H:%M:%SZ}" if at_us else None
