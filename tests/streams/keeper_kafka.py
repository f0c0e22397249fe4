"""A keeper of its own on the shared Kafka: another topic of key rows, another home."""

import asyncio
import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from streams.keeper.door import Door
from streams.keeper.service import Keeper
from streams.keeper.start import start
from turnlog.config import Config
from turnlog.kafka import client_settings

_numbers = itertools.count()


def new_topic(config: Config, partitions: int = 2) -> str:
    """Make a compacted topic that no other test has."""
    name = f"test.keys.{os.getpid()}.{next(_numbers)}"
    made = NewTopic(name, partitions, 1, config={"cleanup.policy": "compact"})
    admin = AdminClient(client_settings(config))
    admin.create_topics([made])[name].result(30)
    return name


def at_home(config: Config, home: Path) -> Config:
    """Return the config with a home in which no keeper ever ran."""
    return config.model_copy(update={"home": home, "keeper": "", "keeper_public": ""})


def named(org: str) -> str:
    """Return an org that no other test has."""
    return f"{org}_{os.getpid()}_{next(_numbers)}"


class Served:
    """A keeper behind its door, on a thread of its own.

    Attributes:
        config: with the keeper's address.
        keeper: the keeper.
        door: its door.
    """

    def __init__(self, config: Config, topic: str) -> None:
        self.keeper, admin = start(config, topic)
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._port = 0
        self._admin_digest = admin.digest
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        self._ready.wait(30)
        self.config = config.model_copy(update={"keeper": f"http://127.0.0.1:{self._port}"})

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._until_stopped())
        self._loop.close()

    async def _until_stopped(self) -> None:
        self._stop = asyncio.Event()
        self.door = Door(self.keeper, self._admin_digest, self._stop)
        runner = web.AppRunner(self.door.app(), access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server: Any = site._server
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()
        self.door.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


@contextmanager
def served(config: Config, topic: str) -> Iterator[Served]:
    """Run a keeper until the block ends."""
    found = Served(config, topic)
    try:
        yield found
    finally:
        found.close()


def keeper_of(config: Config, topic: str) -> Keeper:
    """Start a keeper without its door."""
    return start(config, topic)[0]
