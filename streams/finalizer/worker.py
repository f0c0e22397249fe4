"""Worker `finalizer`: follows runs, chunks and usage, lets time pass, ends what nobody ends.

The rules of `streams.batch` hold: nothing is committed before it is durable (here: in a
checkpoint), polling goes on between small pieces of work, a revoke forces a checkpoint and a
commit, an error of Kafka ends the process. The group's assignor is `range`, which gives the same
partition numbers of all topics to the same member, so that one process judges a run.

A process that was stopped and wakes up as a zombie may append an end that it had decided on. That
hurts nobody: `streams.finalizer.appends` says why, and before it ends a run it looks at the log
itself, so that what it remembers wrongly is found out.
"""

import gc
import logging
import signal
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from processors import estimates as usage
from processors.finalizer import TOPICS
from streams.batch import CONSUMER_SETTINGS, DeadLimit, Stopped
from streams.dead import Dead
from streams.finalizer.appends import Appends
from streams.finalizer.finish import Finisher
from streams.finalizer.owned import Owned
from streams.finalizer.ticks import tick
from streams.progress import Group, Progress
from streams.stall import LIMIT_S, Watch
from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.kafka import client_settings, unavailable
from turnlog.passing import in_words, passes

logger = logging.getLogger(__name__)

NAME = "finalizer"
GROUP = "turnlog.finalizer"
READ = (*TOPICS, usage.TOPIC)
READ_RECORDS = 1_000
READ_WAIT_S = 0.1
RUNS_AT_ONCE = 500

_SETTINGS: Mapping[str, Any] = {
    **CONSUMER_SETTINGS,
    "group.id": GROUP,
    "client.id": NAME,
    "group.remote.assignor": "range",
    # Behind a long rest the oldest chunks may be gone; what is left is still worth reading.
    "auto.offset.reset": "earliest",
    "enable.partition.eof": True,
}


def run(config: Config) -> None:
    """Work until SIGTERM.

    Raises:
        Unavailable: Kafka failed; start again from the last checkpoint.
        Stopped: a person has to look first.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    # A million open runs are a million objects in no cycle.
    gc.set_threshold(1_000_000, 50, 100)
    work(config, stop)


def work(config: Config, stop: threading.Event) -> None:
    """Work until `stop` is set; raises as `run`."""
    worker = _Worker(config)
    try:
        worker.subscribe()
        while not stop.is_set():
            worker.turn()
        worker.leave()
    except KafkaException as error:
        raise unavailable(error) from error
    finally:
        worker.close()


class _Worker:
    """One member of the group: what it owns, and when what is due next."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._appends = Appends(config)
        self._finisher = Finisher(config, self._appends)
        self._progress = Progress(config)
        self._consumer = Consumer({**client_settings(config), **_SETTINGS})
        self._owned: dict[int, Owned] = {}
        self._limit = DeadLimit()
        self._tick_at = 0.0
        self._look_at = 0.0
        self._checkpoint_at = time.monotonic() + config.checkpoint_s
        # Offsets are committed with checkpoints.
        self._watch = Watch(config, Group(GROUP, READ), LIMIT_S + config.checkpoint_s)

    def subscribe(self) -> None:
        self._consumer.subscribe(
            list(READ), on_assign=self._assign, on_revoke=self._revoke, on_lost=self._lost
        )

    def turn(self) -> None:
        """Read once, and do what is due."""
        messages = self._consumer.consume(READ_RECORDS, READ_WAIT_S)
        for message in messages:
            if _is_record(message):
                self._owned[cast(int, message.partition())].take(message)
        self._write_what_came_of_it([m for m in messages if m.error() is None])
        now = time.monotonic()
        if now >= self._tick_at:
            self._tick_at = now + self._config.tick_s
            tick(self._appends, self._whole(), self._config.tick_s)
        if now >= self._look_at:
            self._look_at = now + min(1.0, self._config.tick_s / 4)
            self._judge()
        if now >= self._checkpoint_at:
            self._checkpoint_at = now + self._config.checkpoint_s
            self._checkpoint(self._owned)
        self._watch.look({(topic, number) for number in self._owned for topic in READ})

    def _write_what_came_of_it(self, messages: list[Message]) -> None:
        dead: list[Dead] = []
        for owned in self._owned.values():
            if owned.undo:
                self._finisher.take_back(owned.undo)
                owned.undo.clear()
            dead += owned.dead
            owned.dead.clear()
        if dead:
            self._finisher.bury(dead)
        too_much = self._limit.judge(messages, dead)
        if too_much:
            raise Stopped(f"{too_much}; `turnlog dead` lists them")

    def _whole(self) -> list[int]:
        return [number for number, owned in self._owned.items() if owned.is_whole]

    def _judge(self) -> None:
        """End what is overdue, of partitions whose ends have been read since."""
        owned = [self._owned[number] for number in self._whole()]
        for part in owned:
            part.partition.forget_ghosts()
        self._finish_one(owned)
        waiting = [p for p in owned if p.goal is None and self._finisher.has_work(p)]
        if waiting:
            ends = self._progress.ends(TOPICS)
            for part in waiting:
                part.ask_for({topic: ends.get((topic, part.number), 0) for topic in TOPICS})

    def _finish_one(self, owned: Iterable[Owned]) -> None:
        """End some runs of one partition, that of longest ago; ticks go out before the next."""
        for part in sorted(owned, key=lambda part: part.finished_at):
            if part.has_reached_its_goal:
                part.goal = None
                part.finished_at = time.monotonic()
                if self._finisher.finish(part, RUNS_AT_ONCE):
                    self._look_at = 0.0
                    return

    def _checkpoint(self, numbers: Iterable[int]) -> None:
        """Make durable what is in memory; only then the group's offsets are committed."""
        places: list[TopicPartition] = []
        for number in numbers:
            places += self._owned[number].store(self._appends)
        if not places:
            return
        try:
            self._consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            # Only who looks at the group's lag sees it: a start begins at the checkpoint.
            logger.warning("finalizer: commit failed: %s", unavailable(error))

    def leave(self) -> None:
        """Store what is in memory; the next owner begins there."""
        self._checkpoint(self._owned)

    def close(self) -> None:
        """Leave the group."""
        self._owned.clear()
        self._watch.close()
        self._consumer.close()
        self._finisher.close()

    # -- the group ---------------------------------------------------------------------------------

    def _assign(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        for place in places:
            owned = self._owned.get(place.partition)
            if owned is None:
                owned = self._owned[place.partition] = self._own(place.partition)
            start = owned.start(place.topic)
            place.offset = OFFSET_BEGINNING if start is None else start
        consumer.incremental_assign(places)
        self._watch.rest()  # checkpoints may have taken minutes to read
        logger.info("finalizer reads %s", " ".join(f"{p.topic}/{p.partition}" for p in places))

    def _own(self, number: int) -> Owned:
        owned = Owned(self._config, number)
        if owned.refused:
            self._finisher.bury(owned.refused)
            owned.mend(self._appends)
        return owned

    def _revoke(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        try:
            self._checkpoint({p.partition for p in places if p.partition in self._owned})
        except Unavailable as error:
            # The next owner reads more of the log again.
            logger.warning("finalizer: no checkpoint before partitions move: %s", error)
        self._lost(consumer, places)

    def _lost(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        for place in places:
            owned = self._owned.get(place.partition)
            if owned is not None and owned.stop(place.topic):
                del self._owned[place.partition]
        consumer.incremental_unassign(places)


def _is_record(message: Message) -> bool:
    """Say whether there is something to take: a record, or that a partition's end is reached."""
    error = message.error()
    if error is None or error.code() == KafkaError._PARTITION_EOF:
        return True
    if passes(error):
        logger.warning("finalizer: %s", in_words(error))
        return False
    raise Unavailable(f"kafka failed: {in_words(error)}")
