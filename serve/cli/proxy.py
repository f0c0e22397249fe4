"""`turnlog proxy`: pass calls to a provider and record them on the way."""

import asyncio
import signal
from typing import TYPE_CHECKING

import click

from serve.cli.output import json_line
from turnlog.config import load
from turnlog.errors import UsageError
from turnlog.places import log_places_only

if TYPE_CHECKING:
    from serve.proxy import Settings


@click.command()
@click.option("--upstream", required=True, help="base URL of the provider")
@click.option("--provider", default="", help="its name in the record; found by the URL if known")
@click.option("--org", default="local", show_default=True, help="org to record for")
@click.option("--project", default="default", show_default=True, help="project of that org")
@click.option("--host", default="127.0.0.1", show_default=True, help="address to listen at")
@click.option("--port", default=0, help="0: one that is free")
@click.option("--drain-s", default=0.0, help="read the provider on after a client left")
@click.option(
    "--on-unavailable",
    type=click.Choice(("pass", "refuse")),
    default="pass",
    show_default=True,
    help="what becomes of a call that cannot be recorded",
)
@click.option("--grace-s", default=30.0, show_default=True, help="for open calls on SIGTERM")
@click.option("--json", "as_json", is_flag=True, help="print the address as one JSON object")
def proxy(
    upstream: str,
    provider: str,
    org: str,
    project: str,
    host: str,
    port: int,
    drain_s: float,
    on_unavailable: str,
    grace_s: float,
    as_json: bool,
) -> None:
    """Pass calls to a provider unchanged, and record each as a run.

    Point the base URL of any client at it. It asks nobody who they are, so it listens on this
    machine alone unless --host says otherwise. docs/proxy.md has set-ups to copy.

    Example: turnlog proxy --upstream https://api.openai.com --port 8400
    """
    from serve.proxy.settings import Settings, checked_upstream

    if drain_s < 0 or grace_s < 0:
        raise UsageError("--drain-s and --grace-s must not be negative")
    settings = Settings(
        upstream=checked_upstream(upstream),
        org=org,
        provider=provider,
        project=project,
        drain_s=drain_s,
        on_unavailable="refuse" if on_unavailable == "refuse" else "pass",
        grace_s=grace_s,
    )
    asyncio.run(_serve(settings, host, port, as_json))


async def _serve(settings: "Settings", host: str, port: int, as_json: bool) -> None:
    from serve.proxy import Proxy, producer_of

    log_places_only()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    opening = producer_of(load(), settings.org)
    async with Proxy.serving(settings, opening, host, port) as running:
        url = f"http://{f'[{host}]' if ':' in host else host}:{running.port}"
        said = {"url": url, "upstream": settings.upstream, "org": settings.org}
        if as_json:
            json_line(said)
        else:
            click.echo(f"{url} passes to {settings.upstream}, recorded for org {settings.org}")
        await stop.wait()
