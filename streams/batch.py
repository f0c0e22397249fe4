"""The one loop of all batch consumers: bytes are moved in batches and committed when durable.

The rules are arroyo's:

1. `enable.auto.commit` is off; an offset is committed only after the sink has made durable what
   lies before it, and after its dead letters are acknowledged.
2. Polling never waits for a store: a write runs in one thread beside the loop while the next batch
   fills. When that is full too, the loop holds back, and after `HOLD_S` pauses the partitions and
   goes on polling, so that the group keeps its member.
3. On a revoke the loop drops what is not yet written, waits for the write in flight, commits, and
   only then gives the partitions up. On an assignment the sink first asks its own store what is
   already there.
4. Any error of a store ends the loop (crash-only); the consumer is closed first, so that the group
   need not wait for the session to expire.
5. So does a consumer that no longer gets anywhere (`streams.stall`).
6. Too many bad records stop the worker for good (`DeadLimit`) instead of draining a topic into its
   dead letters.
"""

import gc
import logging
import signal
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from streams.dead import Dead, DeadLetters
from streams.progress import Group
from streams.stall import LIMIT_S, Watch
from streams.views import VIEWS
from turnlog.config import Config
from turnlog.errors import TurnlogError, Unavailable
from turnlog.kafka import client_settings
from turnlog.passing import asked, in_words, passes

logger = logging.getLogger(__name__)

Partition = tuple[str, int]

# Small reads are faster than large ones: 1,070,000 records/s with 1,000, 460,000 with 10,000.
READ_RECORDS = 1000
READ_WAIT_S = 0.1
# Pausing throws away what was fetched ahead, so it is for a store that hangs, not for a busy one.
HOLD_S = 15.0
COMMIT_RETRY_S = 1.0
REQUEST_TIMEOUT_S = 10.0
# How long a write may take, also on an assignment: below max.poll.interval.ms (300 s), or the
# partitions move; and how long a revoke or the end of the process does.
WRITE_TIMEOUT_S = 240.0
LEAVE_TIMEOUT_S = 25.0
CONSUMER_SETTINGS: Mapping[str, str | int | float | bool] = {
    "group.protocol": "consumer",  # KIP-848
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # A committed offset that retention has removed must be seen, not skipped. The first start,
    # which has no committed offset, begins at the earliest record (`_assign`).
    "auto.offset.reset": "error",
    "queued.max.messages.kbytes": 50_000,
    "queued.min.messages": 50_000,
    # The default, 1 s without a fetch after the local queue was full, halves the throughput.
    "fetch.queue.backoff.ms": 10,
}


class Stopped(TurnlogError):
    """The worker must stay down until a person has looked."""


class Sink(Protocol):
    """Where batches land. Inherit from it: `prepare` and `forget` have bodies.

    Except for `prepare`, one method at a time is called.

    Attributes:
        max_age_s: a batch is written at the latest this long after its first record was read.
        max_records: and when it has this many records,
        max_bytes: or this many bytes of values.
    """

    max_age_s: float
    max_records: int
    max_bytes: int

    def recover(self, assignments: Mapping[Partition, int]) -> None:
        """Learn what is already durable of partitions that this worker owns from now on.

        Args:
            assignments: for each (topic, partition) the offset that is read next, 0 where nothing
                was ever committed. Records from there on may already be in the store: the sink
                finds them by set difference of offsets and leaves them out of its writes.

        Raises:
            Unavailable: the store does not answer.
        """

    def prepare(self, messages: Sequence[Message]) -> None:
        """Do what can be done with messages as they arrive; a later `write` brings them again.

        A write of earlier messages may be in flight. A batch is made of whole calls, in their
        order, unless partitions were given up in between.
        """
        return

    def write(self, messages: Sequence[Message]) -> list[Dead]:
        """Make a batch durable; on return it is. Each partition's records are in offset order.

        Returns:
            The records that the sink refuses, with reasons. One bad record never fails a batch.

        Raises:
            Unavailable: the store does not answer; the worker starts again from what is there.
        """

    def forget(self, partitions: Collection[Partition]) -> None:
        """Drop what is in memory about partitions that this worker no longer owns."""
        return


class DeadLimit:
    """Says when so many records are bad that something else must be wrong.

    Args:
        in_a_row: bad records of one partition with no good one between them.
        share: part of the records, judged each time `of_last` records were read.
        of_last: how many records the share is taken of.
    """

    def __init__(self, in_a_row: int = 1000, share: float = 0.5, of_last: int = 5000) -> None:
        self._in_a_row = in_a_row
        self._share = share
        self._of_last = of_last
        self._runs: dict[Partition, int] = {}
        self._seen = 0
        self._bad = 0

    def judge(self, batch: Sequence[Message], dead: Sequence[Dead]) -> str | None:
        """Take a batch and what was bad in it; return what is too much, or None."""
        worst = self._longest_run(batch, dead) if dead or self._runs else 0
        if worst >= self._in_a_row:
            return f"{worst} bad records in a row"
        self._seen += len(batch)
        self._bad += len(dead)
        if self._seen < self._of_last:
            return None
        seen, bad, self._seen, self._bad = self._seen, self._bad, 0, 0
        return f"{bad} of the last {seen} records are bad" if bad > self._share * seen else None

    def _longest_run(self, batch: Sequence[Message], dead: Sequence[Dead]) -> int:
        bad = {(_partition(item.message), item.message.offset()) for item in dead}
        worst = 0
        for message in batch:
            part = _partition(message)
            if (part, message.offset()) in bad:
                self._runs[part] = self._runs.get(part, 0) + 1
                worst = max(worst, self._runs[part])
            else:
                self._runs.pop(part, None)
        return worst


def run_sink(
    config: Config,
    name: str,
    topics: Sequence[str],
    sink: Sink,
    *,
    stop: threading.Event | None = None,
    limit: DeadLimit | None = None,
) -> None:
    """Consume topics into a sink until SIGTERM, SIGINT or `stop`.

    Args:
        config: where Kafka is.
        name: of the worker, such as `usage-sink`; its consumer group is `turnlog.{name}`.
        topics: what to read.
        sink: where it lands.
        stop: ends the loop; when None, signal handlers are installed that set one (main thread).
        limit: when to stop for good because of bad records.

    Raises:
        Unavailable: Kafka or the sink's store failed; start again.
        Stopped: a person has to look first.
    """
    stop = stop or _stop_on_signals()
    loop = _Loop(config, name, topics, sink, limit or DeadLimit())
    try:
        with _rare_garbage_collection():
            loop.subscribe()
            while not stop.is_set():
                loop.turn()
    except KafkaException as error:
        raise Unavailable(f"Kafka failed: {_name(error)}") from error
    finally:
        loop.close()


@contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Let the cyclic collector run seldom: it walks every buffered message and finds nothing.

    Messages make no cycles; with the default thresholds it took a third of the process's time.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(1_000_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


class _Batch(NamedTuple):
    """What is written at once, and where reading goes on behind it."""

    messages: list[Message]
    ends: dict[Partition, int]


class _Loop:
    """State of one run: what fills, what is being written, what is durable."""

    def __init__(
        self, config: Config, name: str, topics: Sequence[str], sink: Sink, limit: DeadLimit
    ) -> None:
        self._name = name
        self._topics = topics
        self._sink = sink
        self._limit = limit
        self._letters = DeadLetters(config, _view(name))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"{name}-write")
        self._consumer = Consumer(_settings(config, name, self._committed))
        self._buffer: list[Message] = []
        self._buffer_bytes = 0
        self._buffer_since = 0.0
        self._batch = _Batch([], {})
        self._writing: Future[list[Dead]] | None = None
        self._write_since = 0.0
        self._durable: dict[Partition, int] = {}
        self._commit_at = 0.0
        self._committing = False
        self._paused = False
        self._owned: set[Partition] = set()
        group = Group(_group(name), topics)
        self._watch = Watch(config, group, LIMIT_S + sink.max_age_s)

    def subscribe(self) -> None:
        self._consumer.subscribe(
            list(self._topics), on_assign=self._assign, on_revoke=self._revoke, on_lost=self._lost
        )

    def turn(self) -> None:
        """Read once, and move on what can be moved on."""
        if self._writing is not None and self._full():
            self._hold_back()
        else:
            self._resume()
            self._take(self._consumer.consume(READ_RECORDS, READ_WAIT_S))
        written = self._batch
        if self._writing is not None and self._writing.done():
            self._settle()
        if self._writing is None and self._due():
            self._start_write()
        # Freeing 50,000 messages takes 50 ms: not before the next write is under way.
        del written
        self._commit()
        self._look()

    def close(self) -> None:
        """Leave the group; the revoke that this brings settles the write in flight and commits."""
        self._watch.close()
        self._thread.shutdown(wait=False)
        self._consumer.close()

    def _look(self) -> None:
        """End what no longer gets anywhere."""
        if self._writing is None:
            self._watch.look(self._owned)
        elif time.monotonic() - self._write_since < WRITE_TIMEOUT_S:
            self._watch.rest()
        else:
            raise Unavailable(f"{self._name}: its store does not answer")

    def _full(self) -> bool:
        sink = self._sink
        return len(self._buffer) >= sink.max_records or self._buffer_bytes >= sink.max_bytes

    def _due(self) -> bool:
        if not self._buffer:
            return False
        return self._full() or time.monotonic() - self._buffer_since >= self._sink.max_age_s

    def _take(self, messages: list[Message]) -> None:
        if any(map(Message.error, messages)):
            messages = [message for message in messages if self._good(message)]
        if not messages:
            return
        if not self._buffer:
            self._buffer_since = time.monotonic()
        self._buffer += messages
        self._buffer_bytes += sum(map(len, messages))
        self._sink.prepare(messages)

    def _good(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            return True
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise Stopped(_gap(self._name, message))
        if passes(error):
            logger.warning("%s: %s", self._name, in_words(error))
            return False
        raise Unavailable(f"Kafka failed: {in_words(error)}")

    def _hold_back(self) -> None:
        """Both batches are full: wait for the write, but never longer than the group allows."""
        if self._writing is None or wait([self._writing], READ_WAIT_S).done:
            return
        if time.monotonic() - self._write_since < HOLD_S:
            return
        if not self._paused:
            logger.warning("%s: its store is slow, reading is paused", self._name)
            self._consumer.pause(self._consumer.assignment())
            self._paused = True
        self._take(self._consumer.consume(READ_RECORDS, 0))

    def _resume(self) -> None:
        if self._paused:
            self._consumer.resume(self._consumer.assignment())
            self._paused = False

    def _start_write(self) -> None:
        messages, self._buffer, self._buffer_bytes = self._buffer, [], 0
        # The consumer's position is right behind the batch, because it takes the whole buffer.
        places = self._consumer.position(self._consumer.assignment())
        ends = {(place.topic, place.partition): place.offset for place in places}
        self._batch = _Batch(messages, {part: at for part, at in ends.items() if at >= 0})
        self._write_since = time.monotonic()
        self._writing = self._thread.submit(self._write, messages)

    def _write(self, batch: list[Message]) -> list[Dead]:
        dead = self._sink.write(batch)
        if dead:
            self._letters.write(dead)
        return dead

    def _settle(self, timeout_s: float | None = None) -> None:
        """Take the result of the write in flight; what it wrote may now be committed."""
        writing, self._writing = self._writing, None
        if writing is None:
            return
        try:
            dead = writing.result(timeout_s)
        except TimeoutError as error:
            raise Unavailable(f"{self._name}: its store does not answer") from error
        self._durable |= self._batch.ends
        too_much = self._limit.judge(self._batch.messages, dead)
        self._batch = _Batch([], {})
        if too_much:
            self._commit_now(self._durable)
            raise Stopped(f"{too_much}; `turnlog dead` lists them")

    def _commit(self) -> None:
        if self._durable and not self._committing and time.monotonic() >= self._commit_at:
            self._commit_at = time.monotonic() + COMMIT_RETRY_S
            self._committing = True  # one at a time: a revoke waits for all that are on their way
            self._consumer.commit(offsets=_places(self._durable), asynchronous=True)

    def _committed(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        """Forget what is committed; what is not is tried again a second later."""
        self._committing = False
        for place in places:
            part = (place.topic, place.partition)
            if error is None and place.error is None and self._durable.get(part) == place.offset:
                del self._durable[part]
        if error is not None:
            logger.warning("%s: commit failed: %s", self._name, in_words(error))
        else:
            self._commit_at = 0.0

    def _commit_now(self, offsets: Mapping[Partition, int]) -> None:
        if not offsets:
            return
        try:
            self._consumer.commit(offsets=_places(offsets), asynchronous=False)
        except KafkaException as error:
            # The next owner reads these records again and finds them in the store.
            logger.warning("%s: last commit failed: %s", self._name, _name(error))

    def _assign(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._settle(WRITE_TIMEOUT_S)
        committed = asked(
            lambda: consumer.committed(places, timeout=REQUEST_TIMEOUT_S), REQUEST_TIMEOUT_S
        )
        self._sink.recover({(p.topic, p.partition): max(p.offset, 0) for p in committed})
        for place in committed:
            place.offset = place.offset if place.offset >= 0 else OFFSET_BEGINNING
        consumer.incremental_assign(committed)
        self._owned |= {(place.topic, place.partition) for place in places}
        self._watch.rest()  # what is stored already may have taken minutes to read
        self._paused = False
        logger.info("%s reads %s", self._name, _listed(places))

    def _revoke(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        parts = self._drop(places)
        self._settle(LEAVE_TIMEOUT_S)
        self._commit_now({p: offset for p, offset in self._durable.items() if p in parts})
        self._give_up(parts)
        consumer.incremental_unassign(places)

    def _lost(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        parts = self._drop(places)
        self._settle(LEAVE_TIMEOUT_S)
        self._give_up(parts)
        consumer.incremental_unassign(places)

    def _drop(self, places: list[TopicPartition]) -> set[Partition]:
        parts = {(place.topic, place.partition) for place in places}
        self._buffer = [m for m in self._buffer if _partition(m) not in parts]
        self._buffer_bytes = sum(map(len, self._buffer))
        return parts

    def _give_up(self, parts: set[Partition]) -> None:
        self._durable = {p: offset for p, offset in self._durable.items() if p not in parts}
        self._owned -= parts
        self._sink.forget(parts)


def _settings(config: Config, name: str, on_commit: Any) -> dict[str, Any]:
    own = {"group.id": _group(name), "client.id": name, "on_commit": on_commit}
    return {**client_settings(config), **CONSUMER_SETTINGS, **own}


def _group(worker: str) -> str:
    return f"turnlog.{worker}"


def _view(worker: str) -> str:
    return next((view.name for view in VIEWS if view.worker == worker), worker)


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _places(offsets: Mapping[Partition, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number, at) for (topic, number), at in offsets.items()]


def _partition(message: Message) -> Partition:
    return cast(str, message.topic()), cast(int, message.partition())


def _listed(places: Iterable[TopicPartition]) -> str:
    return " ".join(sorted(f"{place.topic}/{place.partition}" for place in places))


def _gap(name: str, message: Message) -> str:
    return (
        f"{name}: {message.topic()}/{message.partition()} no longer holds the offset that was "
        "committed last: records are missing in this view; rebuild it from the archive"
    )


def _name(error: KafkaException) -> str:
    return in_words(error.args[0]) if error.args else "unknown"
