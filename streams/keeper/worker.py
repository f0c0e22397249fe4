"""The keeper as a worker: the door, and what it does by the clock."""

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from streams.keeper.door import Door
from streams.keeper.partition import Fenced
from streams.keeper.start import start
from turnlog.config import Config
from turnlog.errors import TurnlogError, UsageError
from turnlog.places import log_places_only

logger = logging.getLogger(__name__)

MINT_EVERY_S = 60.0
"""A round with nothing to mint costs 0.1 ms a project."""

HEARTBEAT_EVERY_S = 60.0
"""Segments would roll with one in 10 minutes. But a keeper that was replaced while it stood still
finds out by writing, and until then hands out grants of heads that may have been punctured."""


def run(config: Config) -> None:
    """Keep keys until SIGTERM; the door opens when everything is minted.

    Raises:
        UsageError: the address or the key file cannot be used.
        Fenced: another keeper took a partition over; this one must stay down.
        Unavailable: Kafka did not answer at the start.
    """
    address = config.need("keeper")
    parts = urlsplit(address)
    if parts.scheme != "http" or not parts.hostname or not parts.port:
        raise UsageError(f"config field keeper: {address} is not http://host:port")
    keeper, admin = start(config)
    asyncio.run(serve(Door(keeper, admin.digest, asyncio.Event()), parts.hostname, parts.port))


async def serve(door: Door, host: str, port: int) -> None:
    """Answer at an address, mint and send heartbeats, until the door's `stop` is set.

    Raises:
        UsageError: the address cannot be listened on.
        Fenced: another keeper took a partition over.
    """
    log_places_only()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, door.stop.set)
    runner = web.AppRunner(door.app(), access_log=None)
    await runner.setup()
    rounds = [
        asyncio.create_task(_every(MINT_EVERY_S, door, door.keeper.mint)),
        asyncio.create_task(_every(HEARTBEAT_EVERY_S, door, door.keeper.heartbeat)),
        asyncio.create_task(door.stop.wait()),
    ]
    try:
        await _listen(runner, host, port)
        # A round ends only by an error that nobody foresaw: the keeper must not live on without it.
        ended, _ = await asyncio.wait(rounds, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
    finally:
        for task in rounds:
            task.cancel()
        await runner.cleanup()
        door.close()
    if door.fenced is not None:
        raise door.fenced


async def _listen(runner: web.AppRunner, host: str, port: int) -> None:
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        raise UsageError(f"config field keeper: cannot listen on {host}:{port}: {error}") from error


async def _every(seconds: float, door: Door, work: Callable[[], Any]) -> None:
    while True:
        try:
            await door.write(work)
        except Fenced:
            await door.stop.wait()
        except TurnlogError as error:
            logger.error("the keeper's round failed and is tried again: %s", error)
        await asyncio.sleep(seconds)
