"""The process around the app: start, stop, and the ways in which it ends.

Whatever goes wrong ends the work without any further commit: what is in memory leans on what was
not written. The process then starts again from what is durable (docs/decisions/0004).
"""

import asyncio
import hashlib
import logging
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from aiokafka.errors import (
    KafkaError as AioKafkaError,
)
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from faust.exceptions import ConsistencyError
from faust.tables import TableManager
from faust.types import TP

from streams.batch import Stopped
from streams.conversations import HEADS_CHANGELOG, TURNS_CHANGELOG
from streams.conversations.app import ConversationsApp, build
from streams.conversations.unit import TOPIC
from streams.conversations.work import Work
from streams.conversations.writer import Writer
from streams.stall import Stall
from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.kafka import ANSWER_S, client_settings, partitions_of, unavailable

logger = logging.getLogger(__name__)

POLL_S = 0.5
# Commits follow a fold within a second; a minute without one while records wait is no slow minute.
STALL_S = 60.0
# A changelog is read at 5,000 to 12,000 rows a second, and each of them counts as movement.
RECOVERY_S = 120.0
# aiokafka writes twenty errors a second while a broker is away.
_QUIET = {"faust": logging.ERROR, "mode": logging.ERROR, "aiokafka": logging.CRITICAL}
# Longer than a commit and a goodbye to the group take; local `down` waits longer than this.
STOP_S = 10.0


class Worker:
    """Runs the app until SIGTERM.

    Args:
        config: where the parts are, and the home of the local stores.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._stores = config.home / "conversations"
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Fold until SIGTERM.

        Raises:
            Unavailable: a store did not answer or nothing moved any more.
        """
        for name, level in _QUIET.items():
            logging.getLogger(name).setLevel(level)
        datadir = self._stores / _generation(self._config)
        # The loop is not closed where the work failed: that would run on what is half done.
        asyncio.new_event_loop().run_until_complete(self._main(datadir))

    async def _main(self, datadir: Path) -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        _clear_others(self._stores, datadir)
        work = Work(Writer(self._config), len(partitions_of(self._config, TOPIC)))
        instance = _instance(self._config)
        app = build(self._config, work, datadir, instance, self._fail)
        tasks = [asyncio.create_task(app.start()), asyncio.create_task(work.flush_often())]
        app.on_startup_finished = _say_ready
        watch = _Watch(app, work)
        while not stop.is_set() and self._failure is None:
            # Polled, because nothing of Faust tells this loop that it crashed.
            await asyncio.sleep(POLL_S)
            self._failure = self._failure or _error_of(tasks) or watch.complaint()
        if self._failure is not None:
            raise self._as_ours(self._failure, datadir)
        await self._leave(app)
        for task in tasks:
            task.cancel()

    async def _fail(self, error: BaseException) -> None:
        """Note what ends the worker, and never return to the record at hand."""
        self._failure = self._failure or error
        await asyncio.Event().wait()

    async def _leave(self, app: ConversationsApp) -> None:
        try:
            await asyncio.wait_for(app.stop(), STOP_S)
        except TimeoutError:
            logger.warning("Faust did not stop within %.0f s", STOP_S)

    def _as_ours(self, error: BaseException, datadir: Path) -> BaseException:
        """Return a failure as one of ours; a local store that cannot be right is thrown away."""
        if isinstance(error, ConsistencyError) or _is_corruption(error):
            logger.warning("the local store does not fit its changelog and is built again")
            shutil.rmtree(datadir, ignore_errors=True)
        elif not isinstance(error, AioKafkaError | OSError):
            return error
        return Unavailable(f"the Faust app ended: {type(error).__name__}")


class _Watch:
    """Looks whether the app gets anywhere."""

    def __init__(self, app: ConversationsApp, work: Work) -> None:
        self._app = app
        self._work = work
        self._stall = Stall[int](STALL_S)
        self._recovery = Stall[int](RECOVERY_S)

    def complaint(self) -> BaseException | None:
        """Return why the app should end, None while it should not."""
        if self._app.crashed:
            return self._app.crash_reason or Unavailable("Faust crashed")
        if self._app.unseen:
            return Unavailable(f"Kafka did not show {', '.join(self._app.unseen)}")
        now_s = time.monotonic()
        if self._app.rebalancing or self._app.in_recovery or not self._app.started:
            self._stall.rest()
            left = cast(TableManager, self._app.tables).recovery.active_remaining_total()
            if self._recovery.stuck(now_s, {0: (-left, 1)}):
                return Unavailable(_unready(left))
        else:
            self._recovery.rest()
            if waiting := self._stall.stuck(now_s, self._places()):
                return Unavailable(f"{STALL_S:.0f} s without a record of partitions {waiting}")
        return None

    def _places(self) -> dict[int, tuple[int, int]]:
        places = {}
        assigned = self._app.consumer.assignment()
        for number, position in self._work.positions().items():
            if (tp := TP(TOPIC, number)) in assigned:
                end: Any = self._app.consumer.highwater(tp)
                places[number] = (position, end or 0)
        return places


def _unready(left: int) -> str:
    what = f"{left} rows of the tables are still to be read" if left else "no partitions are given"
    return f"{RECOVERY_S:.0f} s without any progress: {what}"


def _is_corruption(error: BaseException) -> bool:
    # rocksdict raises nothing but Exception; RocksDB's own status stands at the front.
    return type(error) is Exception and str(error).startswith("Corruption")


async def _say_ready() -> None:
    logger.info("conversations folds %s", TOPIC)


def _error_of(tasks: Iterable[asyncio.Task[None]]) -> BaseException | None:
    """Return what ended a task that should not have ended so."""
    errors = (task.exception() for task in tasks if task.done())
    return next((error for error in errors if error is not None), None)


def _instance(config: Config) -> str:
    """Return this worker's static member id: the same after a restart, another in another home."""
    place = f"{socket.gethostname()}\0{config.home}"
    return "conversations-" + hashlib.sha256(place.encode()).hexdigest()[:16]


def _generation(config: Config) -> str:
    """Return a name for what the local stores hold: another one when a topic was made anew.

    Raises:
        Stopped: the topics do not have one number of partitions.
        Unavailable: Kafka does not answer, or a topic is missing.
    """
    names = [TOPIC, HEADS_CHANGELOG, TURNS_CHANGELOG]
    admin = AdminClient(client_settings(config))
    try:
        asked = admin.describe_topics(TopicCollection(names), request_timeout=ANSWER_S)
        found = [asked[name].result() for name in names]
    except KafkaException as error:
        raise unavailable(error) from error
    counts = {len(topic.partitions) for topic in found}
    if counts != {config.partitions}:
        raise Stopped(f"{', '.join(names)} must have {config.partitions} partitions each")
    ids = "\0".join(str(topic.topic_id) for topic in found)
    return hashlib.sha256(ids.encode()).hexdigest()[:16]


def _clear_others(stores: Path, datadir: Path) -> None:
    """Remove local stores of topics that are no more; nothing can read them."""
    datadir.mkdir(parents=True, exist_ok=True)
    for other in os.scandir(stores):
        if other.is_dir() and other.name != datadir.name:
            shutil.rmtree(other.path, ignore_errors=True)
