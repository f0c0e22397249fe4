"""The life of a server process: connect, listen, answer, drain."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from aiohttp import web

from serve.doors.app import build
from serve.doors.callers import Callers
from serve.doors.directory import Follower
from serve.doors.keys import Keys
from serve.doors.oidc import oidc_of
from serve.doors.parts import Parts
from serve.doors.producers import Producers
from serve.doors.protocol import SETTINGS, listen
from serve.doors.route import OpenRoute, Route
from serve.doors.server import Server
from sinks.redis import connect_async
from turnlog.config import Config
from turnlog.errors import TurnlogError
from turnlog.places import log_places_only

logger = logging.getLogger(__name__)

REDIS_S = 0.5
"""A request waits so long for Redis, and goes on without it."""

CUT_S = 1.0
"""So long a request that is cut off may take to note it."""

CLOSE_S = 10.0
"""So long what was accepted is waited for at the end; the rest is on the disk."""

Bound = Callable[[str, int], None]


async def run(config: Config, host: str, port: int, stop: asyncio.Event, bound: Bound) -> None:
    """Serve until `stop` is set, then drain.

    Args:
        config: where the parts are.
        host: to listen on.
        port: to listen on; 0: any that is free.
        stop: begins the drain.
        bound: told host and port once requests are taken.

    Raises:
        UsageError: the address or the config cannot be used.
        Unavailable: at the end: something that was accepted is neither in Kafka nor on the disk.
    """
    log_places_only()
    async with serving(config) as server, answering(server, host, port) as bound_port:
        bound(host, bound_port)
        await stop.wait()
        await _drain(server, config.drain_s)


@asynccontextmanager
async def answering(
    server: Server, host: str, port: int, routes: Iterable[Route | OpenRoute] | None = None
) -> AsyncIterator[int]:
    """Listen for a server, and give the port; at the end cut off what is still open.

    Raises:
        UsageError: the address cannot be listened on.
    """
    runner = web.AppRunner(build(server, routes), shutdown_timeout=CUT_S, **SETTINGS)
    await runner.setup()
    try:
        listener = await listen(runner, host, port)
        try:
            yield listener.sockets[0].getsockname()[1]
        finally:
            listener.close()
    finally:
        await runner.cleanup()


async def _drain(server: Server, deadline_s: float) -> None:
    logger.info("draining: %d requests are open", server.open_requests)
    left = await server.rest(deadline_s)
    if left:
        logger.warning("%d requests were not done in %.0f s and are cut off", left, deadline_s)


@asynccontextmanager
async def serving(config: Config) -> AsyncIterator[Server]:
    """Open what the handlers share; at the end close it, producers last.

    Raises:
        UsageError: the config cannot be used.
        Unavailable: at the end, as in `run`.
    """
    keys = Keys()
    follower = Follower(config, keys)
    producers = Producers(config)
    redis = connect_async(config, REDIS_S)
    oidc = oidc_of(config)
    server = Server(config, producers, redis, Callers(keys, oidc), Parts(config, redis, follower))
    follower.start()
    connecting = asyncio.create_task(producers.connect(), name="turnlog-connecting")
    try:
        yield server
    finally:
        connecting.cancel()
        # Beside the producers: where Kafka is away both wait for its answer.
        unfollowed = asyncio.create_task(asyncio.to_thread(follower.close))
        try:
            await _close_producers(producers)
        finally:
            await unfollowed
            await redis.aclose()
            if oidc is not None:
                await oidc.close()


async def _close_producers(producers: Producers) -> None:
    try:
        left = await producers.close(CLOSE_S)
    except TurnlogError as error:
        logger.error("%s", error)
        raise
    if left:
        logger.warning("%d events are on the disk: the next server sends them", left)
    else:
        logger.info("everything that was accepted is in Kafka")
