"""The way into Kafka: numbered hand-off, acknowledgements back to the event loop in batches.

`Transport` is the seam where the disk spool will sit: whatever takes a record and says later where
it is durable can stand here.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, murmur2
from confluent_kafka import Producer as KafkaClient

from turnlog.errors import InDoubt, TooLarge, TurnlogError, Unavailable
from turnlog.events import Headers
from turnlog.ids import new_id
from turnlog.kafka import UNPROVEN
from turnlog.passing import in_words
from turnlog.producer import forks

logger = logging.getLogger(__name__)

METADATA_TIMEOUT_S = 10.0
PURGE_TIMEOUT_S = 2.0
# An acknowledgement comes at most this much later than it could; an idle producer polls nothing.
POLL_S = 0.002
# What librdkafka holds; the rest waits here. It bounds how many reports one poll hands out: after
# an outage this many come at once, and the loop is held for their 20 ms.
QUEUE_RECORDS = 10_000
UNKNOWN_OFFSET = -1
# A mark names them all; a lane that refused more says no more than that it stands still.
MAX_REFUSED = 10_000
CHUNKS = "turnlog.run-chunks"
# Of the 400 ms after which a chunk batch is late (DESIGN.md law 2).
CHUNK_LINGER_MS = 50


class Position(NamedTuple):
    """Where an accepted event is durable; `via` says who vouches for it (today: the broker).

    `offset` is -1 where the broker acknowledged the retry of a send whose first answer was lost:
    the record is in the partition once, and the broker does not say where.
    """

    topic: str
    partition: int
    offset: int
    via: str = "broker"

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


Rung = Literal["broker", "spool", "shedding", "refusing"]


class State(NamedTuple):
    """How a producer is doing, for its owner's metrics.

    Attributes:
        rung: where new events go: `broker`; `spool`; `shedding` when chunk batches find no room;
            `refusing` when nothing does.
        unacknowledged: records that Kafka was given and has not answered for.
        spool_events: records on the disk, by lane.
        spool_bytes: what they take up.
        shed: events that found no room since the producer was opened, by lane.
    """

    rung: Rung
    unacknowledged: int
    spool_events: Mapping[str, int]
    spool_bytes: int
    shed: Mapping[str, int]


class Lane:
    """One topic-partition of one producer epoch: the place where `producer_seq` is counted.

    Attributes:
        topic: the topic.
        partition: the partition.
        next_seq: `producer_seq` of the next record.
        acked_seq: the highest up to which all are in Kafka or refused; -1 where none is.
        refused: numbers of records that will never be in Kafka, as their senders were told.
    """

    __slots__ = ("_early", "acked_seq", "next_seq", "partition", "refused", "topic")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.next_seq = 0
        self.acked_seq = -1
        self.refused: list[int] = []
        self._early: set[int] = set()

    def acknowledged(self, seq: int) -> None:
        """Take note that a record is in Kafka; they may come out of order after an outage."""
        if seq != self.acked_seq + 1:
            self._early.add(seq)
            return
        self.acked_seq = seq
        while self._early and self.acked_seq + 1 in self._early:
            self.acked_seq += 1
            self._early.discard(self.acked_seq)

    def gave_up(self, seq: int) -> None:
        """Take note that a record has a number and will never be in Kafka."""
        if len(self.refused) < MAX_REFUSED:
            self.refused.append(seq)
            self.acknowledged(seq)


class Transport(Protocol):
    """What a producer hands its records to. All methods are called on the event loop's thread.

    Attributes:
        producer_id: under which records are numbered; a new one for each transport.
        producer_epoch: its epoch.
    """

    producer_id: str
    producer_epoch: int

    @property
    def state(self) -> State:
        """How it is doing now."""

    def lane(self, topic: str, key: bytes) -> Lane:
        """Return the lane of a key; its `next_seq` goes into the body of the next record."""

    def send(
        self, lane: Lane, key: bytes, value: bytes, headers: Headers
    ) -> asyncio.Future[Position]:
        """Take a record and count it in its lane; never blocks.

        The future resolves once the record is durable, and raises `Unavailable` when it will not
        become so. A record that is refused here and now (`TooLarge`) is not counted.
        """

    def takes_large(self) -> bool:
        """Whether headers may carry a frame that is too large for a record."""

    async def close(self, timeout_s: float) -> int:
        """Wait for what was taken; return how many records were not acknowledged in time."""


class Sent:
    """A record on its way; called with its delivery report.

    Attributes:
        lane: where it goes.
        key: Kafka key.
        value: the event.
        headers: its headers.
        seq: its `producer_seq`; -1 for one of another producer.
        future: what its sender waits for.
        at_s: when it was sent, by the loop's clock.
        decided: whether Kafka has answered or given up.
        delivered: whether it is in Kafka.
        kept: whether it stands in the spool.
    """

    __slots__ = (
        "at_s",
        "decided",
        "delivered",
        "future",
        "headers",
        "kept",
        "key",
        "lane",
        "report",
        "seq",
        "value",
    )

    def __init__(
        self,
        report: Callable[["Sent", KafkaError | None, Message], None],
        lane: "KafkaLane",
        key: bytes,
        value: bytes,
        headers: Headers,
        seq: int,
        future: asyncio.Future[Position],
    ) -> None:
        self.report = report
        self.lane = lane
        self.key = key
        self.value = value
        self.headers = headers
        self.seq = seq
        self.future = future
        self.at_s = 0.0
        self.decided = False
        self.delivered = False
        self.kept = False

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """Take the delivery report."""
        self.report(self, error, message)


class _Client:
    """One librdkafka producer, and in order the records that wait for space in its queue."""

    def __init__(self, settings: Mapping[str, Any], on_error: Callable[[KafkaError], None]) -> None:
        own = {"queue.buffering.max.messages": QUEUE_RECORDS, "error_cb": on_error}
        self._settings = {**own, **settings}
        self.waiting: deque[Sent] = deque()
        self._open()

    def _open(self) -> None:
        self.kafka = KafkaClient(self._settings)
        # Looked up once: it is used once an event.
        self.produce = self.kafka.produce

    def renew(self) -> None:
        """Go on with a new producer; what the old one had is given up and says so."""
        self.kafka.purge()
        self.kafka.flush(PURGE_TIMEOUT_S)
        self._open()


class KafkaLane(Lane):
    """A lane with the name that its topic has on the wire and the client that writes to it."""

    __slots__ = ("client", "wire_topic")

    def __init__(self, topic: str, partition: int, wire_topic: str, client: _Client) -> None:
        super().__init__(topic, partition)
        self.wire_topic = wire_topic
        self.client = client


class KafkaTransport:
    """Idempotent librdkafka producers that are polled from the event loop.

    Not from a thread: the binding takes and drops the interpreter's lock for each delivery report,
    so that a thread gets one report for every switch interval (5 ms) of a busy loop. Polled from
    the loop, all reports that are there are handed out in one go, 2 µs each.

    Chunk batches, which nobody waits for, go by a client of their own that collects for longer:
    librdkafka sends a request for each partition, and with 6 partitions and 5 ms the broker took
    1,200 requests a second for 10,000 events, as much work as making them. Nor do the events that
    somebody waits for ever stand behind chunks.

    A full queue of librdkafka is not an error: records wait here, in order, and go on as reports
    come in. Order within a partition is that of `send`.

    Args:
        settings: librdkafka's, see `turnlog.kafka.producer_settings`.
        rename: topics that go by another name on the wire (the bench has its own).
        metadata_timeout_s: how long `open` waits for a broker.
    """

    producer_epoch = 1

    def __init__(
        self,
        settings: Mapping[str, Any],
        rename: Mapping[str, str] | None = None,
        metadata_timeout_s: float = METADATA_TIMEOUT_S,
    ) -> None:
        self.producer_id = new_id("producer")
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._rename = rename or {}
        self._metadata_timeout_s = metadata_timeout_s
        self._partitions: dict[str, int] = {}
        self._lanes: dict[tuple[str, int], KafkaLane] = {}
        self._unacknowledged = 0
        self._polling: asyncio.TimerHandle | None = None
        self._now_s = 0.0
        self._fatal: str | None = None
        self._closed = False
        self._accepted = _Client(settings, self.on_error)
        self._clients = [self._accepted]
        self._new_future = self._loop.create_future
        self._report = self._on_delivery
        forks.watch(self)

    @cached_property
    def _chunks(self) -> _Client:
        """Made when the first run streams: importers never do."""
        client = _Client(chunk_settings(self._settings), self.on_error)
        self._clients.append(client)
        return client

    @property
    def state(self) -> State:
        """How it is doing now."""
        return State("broker", self._unacknowledged, {}, 0, {})

    async def open(self) -> None:
        """Learn the partition count of every topic.

        Raises:
            Unavailable: no broker answered.
        """
        self._partitions = await self._counted()

    async def _counted(self) -> dict[str, int]:
        ask = partial(self._accepted.kafka.list_topics, timeout=self._metadata_timeout_s)
        try:
            metadata = await self._loop.run_in_executor(None, ask)
        except KafkaException as error:
            raise _refusal(error.args[0]) from error
        return {name: len(topic.partitions) for name, topic in metadata.topics.items()}

    def lane(self, topic: str, key: bytes) -> KafkaLane:
        """Return the lane of a key.

        Raises:
            Unavailable: the topic does not exist.
        """
        wire_topic = self._rename.get(topic, topic)
        count = self._partitions.get(wire_topic)
        if not count:
            raise Unavailable(f"topic {wire_topic} does not exist: run `turnlog topics create`")
        partition = murmur2(key, count)
        return self._lanes.get((topic, partition)) or self.lane_at(topic, partition)

    def lane_at(self, topic: str, partition: int) -> KafkaLane:
        """Return the lane of a partition."""
        lane = self._lanes.get((topic, partition))
        if lane is None:
            client = self._chunks if topic == CHUNKS else self._accepted
            wire_topic = self._rename.get(topic, topic)
            lane = self._lanes[topic, partition] = KafkaLane(topic, partition, wire_topic, client)
        return lane

    def lanes(self) -> Iterable[Lane]:
        """Return every lane that was written to."""
        return self._lanes.values()

    def send(
        self, lane: Lane, key: bytes, value: bytes, headers: Headers
    ) -> asyncio.Future[Position]:
        """Hand a record to librdkafka, or queue it behind those that wait for space.

        Raises:
            TooLarge: librdkafka refuses the size.
            Unavailable: this client is closed, or Kafka told it to give up.
        """
        return self._sent(lane, key, value, headers).future

    def _sent(self, lane: Lane, key: bytes, value: bytes, headers: Headers) -> Sent:
        if self._fatal or self._closed:
            raise Unavailable(self._fatal or "the producer is closed")
        assert type(lane) is KafkaLane  # it made them all
        sent = Sent(self._report, lane, key, value, headers, lane.next_seq, self._new_future())
        self._hand(sent)
        lane.next_seq += 1
        return sent

    def _hand(self, sent: Sent) -> None:
        """Give a record to librdkafka, or put it behind those that wait for space."""
        waiting = sent.lane.client.waiting
        if waiting or not self._handed_over(sent):
            waiting.append(sent)
        self._unacknowledged += 1
        if self._polling is None:
            self._now_s = self._loop.time()
            self._polling = self._loop.call_later(POLL_S, self._poll)
        sent.at_s = self._now_s

    def takes_large(self) -> bool:
        """Whether headers may carry a frame that is too large for a record: not without a spool."""
        return False

    def abandon(self) -> None:
        """Take nothing any more: this is a forked child."""
        self._closed = True
        for client in self._clients:
            forks.keep_for_ever(client.kafka)

    async def close(self, timeout_s: float) -> int:
        """Wait for the reports of everything sent; return how many did not come in time.

        What is then still on its way is given up, and says so (`_PURGE_QUEUE`, `_PURGE_INFLIGHT`).
        """
        self._closed = True
        late = await self._late(timeout_s)
        if late:
            logger.warning("%d records were not acknowledged in time", late)
            for client in self._clients:
                self._purge(client)
            await self._late(PURGE_TIMEOUT_S)
        return late

    async def _late(self, timeout_s: float) -> int:
        """Wait until nothing is unacknowledged; return what still is when the time is up."""
        until = self._loop.time() + timeout_s
        while self._unacknowledged and self._loop.time() < until:
            await asyncio.sleep(POLL_S)
        return self._unacknowledged

    def _purge(self, client: _Client) -> None:
        while client.waiting:
            given_up = KafkaError(KafkaError._PURGE_QUEUE)
            self._refuse(client.waiting.popleft(), _refusal(given_up))
        client.kafka.purge()

    def on_error(self, error: KafkaError) -> None:
        """Take an error of a client as a whole; only a fatal one matters, the rest mends."""
        if error.fatal():
            self._fatal = f"Kafka: {in_words(error)}: this producer cannot go on, open another"
            logger.error("%s", self._fatal)

    def _handed_over(self, sent: Sent) -> bool:
        lane = sent.lane
        try:
            lane.client.produce(
                lane.wire_topic,
                sent.value,
                sent.key,
                lane.partition,
                sent,
                headers=sent.headers,  # type: ignore[arg-type]  # a list is invariant
            )
        except BufferError:
            return False
        except KafkaException as error:
            raise _refusal(error.args[0]) from error
        return True

    def _poll(self) -> None:
        """Have the reports that are there handed out, and move on what waits for space."""
        self._now_s = self._loop.time()
        for client in self._clients:
            client.kafka.poll(0)
            if client.waiting:
                self._move_on(client.waiting)
        again = self._unacknowledged and not self._loop.is_closed()
        self._polling = self._loop.call_later(POLL_S, self._poll) if again else None

    def _on_delivery(self, sent: Sent, error: KafkaError | None, message: Message) -> None:
        self._unacknowledged -= 1
        sent.decided = True
        if error is not None:
            self._undelivered(sent, _refusal(error))
            return
        offset = message.offset()
        if offset is None:
            # No proof: see `turnlog.kafka.not_written`.
            self._undelivered(sent, InDoubt(f"Kafka: {UNPROVEN}"))
            return
        sent.delivered = True
        lane = sent.lane
        if sent.seq >= 0:
            lane.acknowledged(sent.seq)
        if not sent.future.done():
            sent.future.set_result(Position(lane.topic, lane.partition, offset))

    def _undelivered(self, sent: Sent, error: TurnlogError) -> None:
        if sent.seq >= 0:
            sent.lane.gave_up(sent.seq)
        if not sent.future.done():
            sent.future.set_exception(error)

    def _refuse(self, sent: Sent, error: TurnlogError) -> None:
        self._unacknowledged -= 1
        sent.decided = True
        self._undelivered(sent, error)

    def _move_on(self, waiting: deque[Sent]) -> None:
        while waiting:
            first = waiting[0]
            try:
                if not self._handed_over(first):
                    return
            except TurnlogError as error:
                self._refuse(first, error)
            waiting.popleft()


def chunk_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the client that writes chunk batches."""
    return {**settings, "linger.ms": CHUNK_LINGER_MS}


def _refusal(error: KafkaError) -> TurnlogError:
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return TooLarge("the record is larger than Kafka takes")
    return Unavailable(f"Kafka: {in_words(error)}")
