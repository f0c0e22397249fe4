"""`turnlog serve`: the HTTP door, in the foreground."""

import asyncio
import logging
import os
import signal

import click

from serve.cli.output import json_line
from turnlog.config import Config, load

PORT = 8640


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="Port to listen on; 0: any that is free.",
)
@click.option("--json", "as_json", is_flag=True, help="One object: the address that was bound.")
def serve(host: str, port: int, as_json: bool) -> None:
    """Take events over HTTP and answer what views know.

    Stays in the foreground. SIGTERM or Ctrl-C drains: /readyz turns 503, new requests are refused,
    open ones finish within TURNLOG_DRAIN_S, then what was accepted goes to Kafka or stays on the
    disk for the next server. /docs describes every call, `turnlog apikey create` makes a key.

    Example: turnlog serve --port 8640
    """
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    asyncio.run(_serve(load(), host, port, as_json))


async def _serve(config: Config, host: str, port: int, as_json: bool) -> None:
    from serve.doors.running import run

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    def bound(host: str, port: int) -> None:
        named = f"[{host}]" if ":" in host else host
        address = f"http://{named}:{port}"
        if as_json:
            json_line({"address": address, "host": host, "port": port, "pid": os.getpid()})
        else:
            click.echo(f"Turnlog answers at {address}; {address}/docs says how.")

    await run(config, host, port, stop, bound)
