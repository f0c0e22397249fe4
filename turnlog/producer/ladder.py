"""The durability ladder: the broker, else the disk, else chunks are shed, else an error at once.

1. Broker: a record that Kafka acknowledges within `SPOOL_AFTER_S` resolves with `via="broker"`.
2. Spool: what takes longer is written to the disk as well and resolves with `via="spool"` once it
   is synced. From then on nothing new is given to Kafka until it answers again, so that memory
   stays bounded. Events of a stream that has records on the disk queue behind them.
3. Chunk batches that find no room are shed and counted; everything else has a reserved share.
4. What finds no room at all is an error for the caller, at once. While nothing does, the disk is
   tried every second.

When Kafka answers, the spool drains in lanes: runs, usage, turns, then chunks. What it resends says
of itself that it may be a repeat.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, Message

from turnlog.config import Config
from turnlog.errors import DecodeError, SpoolFull, TooLarge, TurnlogError, Unavailable
from turnlog.events import Headers, event_id_of, marked_may_repeat
from turnlog.ids import new_id
from turnlog.kafka import producer_settings
from turnlog.passing import in_words
from turnlog.producer.large import FRAME, Objects, frame_is_out, without
from turnlog.producer.ledger import TOPIC as LEDGER
from turnlog.producer.ledger import marks
from turnlog.producer.outcomes import arrived, heard, in_doubt, lane_of, refusing
from turnlog.producer.partitions import recalled, remember
from turnlog.producer.transport import (
    METADATA_TIMEOUT_S,
    UNKNOWN_OFFSET,
    KafkaTransport,
    Lane,
    Position,
    Rung,
    Sent,
    State,
)
from turnlog.seldom import Seldom
from turnlog.spool import CHUNKS, LANES, Read, Spool, Spooled, Stream

logger = logging.getLogger(__name__)

SPOOL_AFTER_S = 0.4
# So many records of the spool are on their way at a time.
DRAIN_RECORDS = 500
_RETRY_S = 0.5
_ADOPT_EVERY_S = 30.0
MARK_EVERY_S = 5.0
# At the end the last marks may take this long.
_LAST_MARKS_S = 1.0
# So often it is looked whether there is room again.
_ROOM_EVERY_S = 1.0


class _Resent(Sent):
    """A record of the spool; where it fails, the spool still has it."""

    __slots__ = ()


class Ladder(KafkaTransport):
    """A transport that goes on without Kafka; see the module.

    Args:
        settings: librdkafka's.
        spool: opened for this process, under a name that no other had: that of the producer.
        rename: see `KafkaTransport`.
        metadata_timeout_s: see `KafkaTransport`.
        spool_after_s: how long Kafka may be silent.
        objects: takes frames that are too large for a record; without it they are refused.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        spool: Spool,
        rename: Mapping[str, str] | None = None,
        metadata_timeout_s: float = METADATA_TIMEOUT_S,
        spool_after_s: float = SPOOL_AFTER_S,
        objects: Objects | None = None,
    ) -> None:
        super().__init__(settings, rename, metadata_timeout_s)
        # So the ledger and the spool name the same thing.
        self.producer_id = spool.owner
        self._objects = objects
        self._after_s = spool_after_s
        self.spool = spool
        self._down = False
        self._rung: Rung = "spool"  # while Kafka is down
        self._failing = False  # the disk refused what was written last
        self._watched: deque[Sent] = deque()
        self._backlog: Counter[Stream] = Counter(spool.adopted)
        # Records that Kafka has too and may still answer for, by event id.
        self._twins: dict[bytes, Sent] = {}
        self._writing: set[asyncio.Future[None]] = set()
        self._wake = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._drain(), name="turnlog-drain"),
            asyncio.create_task(self._adopt(), name="turnlog-adopt"),
            asyncio.create_task(self._mark(), name="turnlog-ledger"),
            asyncio.create_task(self._look_for_room(), name="turnlog-room"),
        ]
        self._marked: dict[Lane, int] = {}
        self._seldom = Seldom()
        if any(spool.events.values()):
            self._wake.set()

    async def open(self) -> None:
        """Learn the partition counts from Kafka; where it is away, from the last time it was not.

        Raises:
            Unavailable: no broker answered, and none ever did for this spool.
        """
        try:
            self._partitions = await self._counted()
        except Unavailable as error:
            self._partitions = recalled(self.spool.root)
            if not self._partitions:
                raise
            self._down = True
            logger.warning("%s: events go to the disk until it does; nothing is lost", error)
            return
        remember(self.spool.root, self._partitions)

    @property
    def state(self) -> State:
        """How it is doing now."""
        spool = self.spool
        rung = self._rung if self._down else "broker"
        events = {name: spool.events[name] for name in LANES if spool.events[name]}
        return State(rung, self._unacknowledged, events, spool.bytes_taken, dict(spool.shed))

    def send(
        self, lane: Lane, key: bytes, value: bytes, headers: Headers
    ) -> asyncio.Future[Position]:
        """Give a record to Kafka, or to the spool where Kafka does not answer.

        Raises:
            TooLarge: librdkafka refuses the size.
            SpoolFull: there is no room on the disk either. A chunk batch is shed instead: its
                future raises this, and the call does not.
            Unavailable: this client is closed.
        """
        held_up = self._backlog and (lane_of(lane.topic), key) in self._backlog
        if self._down or held_up or (headers and headers[-1][0] is FRAME):
            return self._send_to_spool(lane, key, value, headers)
        sent = self._sent(lane, key, value, headers)
        self._watched.append(sent)
        return sent.future

    def _send_to_spool(
        self, lane: Lane, key: bytes, value: bytes, headers: Headers
    ) -> asyncio.Future[Position]:
        if self._closed:
            raise Unavailable("the producer is closed")
        future: asyncio.Future[Position] = self._new_future()
        try:
            self._put(lane, key, value, headers, lane.next_seq, future)
        except SpoolFull as error:
            self._rung = refusing(lane_of(lane.topic))
            if lane_of(lane.topic) != CHUNKS:
                raise
            self._shed(future, error)
            return future
        if not self._failing:
            self._rung = "spool"
        lane.next_seq += 1
        return future

    def _put(
        self,
        lane: Lane,
        key: bytes,
        value: bytes,
        headers: Headers,
        seq: int,
        future: asyncio.Future[Position],
        sent: Sent | None = None,
    ) -> None:
        name = lane_of(lane.topic)
        value, at_us = marked_may_repeat(value), time.time_ns() // 1000
        record = Spooled(lane.topic, lane.partition, key, value, headers, seq, at_us)
        written = self.spool.append(name, record)
        stream = name, key
        self._backlog[stream] += 1
        self._writing.add(written)
        self._wake.set()

        def on_disk(written: asyncio.Future[None]) -> None:
            self._writing.discard(written)
            error = written.exception()
            if error is not None:
                self._forget(stream)
                self._not_kept(lane, seq, sent)
            if error is not None or self._failing:
                self._failing = error is not None
                self._rung = refusing(name) if error else "spool"
            if future.done():
                return
            if error is None:
                position = Position(lane.topic, lane.partition, UNKNOWN_OFFSET, "spool")
                future.set_result(position)
            elif name == CHUNKS:
                self._shed(future, error)
            else:
                future.set_exception(error if sent is None else in_doubt(error))

        written.add_done_callback(on_disk)

    def _keep(self, sent: Sent) -> None:
        """Write to the disk what Kafka has been given."""
        self._put(sent.lane, sent.key, sent.value, sent.headers, sent.seq, sent.future, sent)
        sent.kept = True

    def _not_kept(self, lane: Lane, seq: int, sent: Sent | None) -> None:
        """Say what becomes of a number whose record the disk refused after all."""
        if sent is None or (sent.decided and not sent.delivered):
            lane.gave_up(seq)
        elif sent is not None:
            sent.kept = False  # Kafka may still take it, or give up on it

    def _shed(self, future: asyncio.Future[Position], error: BaseException) -> None:
        self.spool.note_shed(CHUNKS)
        future.set_exception(error)
        future.exception()  # nobody has to hear of it: it is counted

    def _forget(self, stream: Stream) -> None:
        self._backlog[stream] -= 1
        if self._backlog[stream] <= 0:
            del self._backlog[stream]

    # Kafka is slow, or answers again.

    def _poll(self) -> None:
        super()._poll()
        watched, limit_s = self._watched, self._now_s - self._after_s
        while watched and watched[0].decided:
            watched.popleft()
        if watched and watched[0].at_s < limit_s:
            self._spool_late(limit_s)

    def _spool_late(self, limit_s: float) -> None:
        if not self._down:
            self._say_seldom(
                f"Kafka has not answered for {self._after_s:.1f} s: events go to the disk as well "
                "until it does; nothing is lost"
            )
        self._down = True
        while self._watched and self._watched[0].at_s < limit_s:
            sent = self._watched.popleft()
            if not sent.decided:
                self._spool_as_well(sent)

    def _spool_as_well(self, sent: Sent) -> None:
        """Write to the disk what Kafka has been given and may still acknowledge."""
        try:
            self._keep(sent)
        except SpoolFull as error:
            # Kafka may still take it; who waits for it is told now, who does not, is not.
            self._rung = refusing(lane_of(sent.lane.topic))
            if lane_of(sent.lane.topic) != CHUNKS and not sent.future.done():
                sent.future.set_exception(in_doubt(error))
            return
        self._twins[event_id_of(sent.value)] = sent

    def _on_delivery(self, sent: Sent, error: KafkaError | None, message: Message) -> None:
        super()._on_delivery(sent, error, message)
        if sent.delivered and self._down:
            self._down = False
            self._rung = "spool"
            self._say_seldom("Kafka answers again")

    def _say_seldom(self, text: str) -> None:
        """Warn of a change, once in a while: a broker at its limit changes many times a minute."""
        logger.log(logging.WARNING if self._seldom.due(text) else logging.DEBUG, "%s", text)

    def _undelivered(self, sent: Sent, error: TurnlogError) -> None:
        """Keep what Kafka gave up on, if it was not written to the disk before."""
        if sent.kept:
            return
        if type(sent) is _Resent and not isinstance(error, TooLarge):
            if not sent.future.done():
                sent.future.set_exception(error)  # it is sent again, under the same number
            return
        if isinstance(error, TooLarge):
            super()._undelivered(sent, error)
            return
        try:
            self._keep(sent)
        except SpoolFull as full:
            super()._undelivered(sent, in_doubt(full))

    def on_error(self, error: KafkaError) -> None:
        """Go on with new clients after a fatal error; what the old ones had goes to the disk."""
        if error.fatal():
            logger.error("Kafka: %s; going on with a new client", in_words(error))
            self._down = True
            self._loop.call_soon(self._renew)

    def _renew(self) -> None:
        for client in self._clients:
            client.renew()

    # Draining.

    async def _adopt(self) -> None:
        """Take over, now and then, what processes left that died after this one began."""
        while True:
            await asyncio.sleep(_ADOPT_EVERY_S)
            before = Counter(self.spool.adopted)
            try:
                after = await self.spool.adopt_dead()
            except SpoolFull as error:
                logger.warning("%s", error)
                continue
            self._backlog.update(after - before)
            self._wake.set()

    async def _look_for_room(self) -> None:
        """Try the disk while it takes nothing: who asks for `state` first would never find out."""
        while True:
            await asyncio.sleep(_ROOM_EVERY_S)
            if self._rung == "spool" and not self._failing:
                continue
            try:
                self._rung = await self.spool.room()
            except SpoolFull:
                self._rung = "refusing"
            self._failing = self._rung == "refusing"

    async def _mark(self) -> None:
        while True:
            await asyncio.sleep(MARK_EVERY_S)
            self._publish([lane for lane in self.lanes() if self._moved(lane)])

    def _moved(self, lane: Lane) -> bool:
        return lane.topic != LEDGER and self._marked.get(lane, -1) != lane.acked_seq

    def _publish(self, lanes: list[Lane], closed: bool = False) -> None:
        """Write how far lanes are; never to the disk, because a later mark says more."""
        if self._down:
            return
        written = marks(self.producer_id, self.producer_epoch, lanes, closed)
        for lane, mark in zip(lanes, written, strict=True):
            self._marked[lane] = lane.acked_seq
            future: asyncio.Future[Position] = self._new_future()
            try:
                place = self.lane(LEDGER, mark.key)
                headers = mark.headers
                self._hand(_Resent(self._report, place, mark.key, mark.value, headers, -1, future))
            except TurnlogError as error:
                logger.warning("the ledger is not written: %s", error)
                return
            future.add_done_callback(heard)

    async def _drain(self) -> None:
        while True:
            await self._wake.wait()
            name = next((name for name in LANES if self.spool.events[name] > 0), None)
            if name is None:
                self._backlog.clear()  # what could not be read any more is in it still
                self._wake.clear()
                continue
            try:
                read = await self.spool.read(name)
            except SpoolFull as error:
                self._say_seldom(str(error))
                read = None
            if read is None:
                await asyncio.sleep(_RETRY_S)  # it is being written
            else:
                await self._deliver(read)

    async def _deliver(self, read: Read) -> None:
        for at in range(0, len(read.records), DRAIN_RECORDS):
            window = read.records[at : at + DRAIN_RECORDS]
            left = window
            while left := await self._resend(left, read.own):
                await asyncio.sleep(_RETRY_S)
            try:
                await self.spool.done(read, len(window))
            except SpoolFull as error:  # it is sent again by whoever comes next: a repeat
                self._say_seldom(str(error))
            for record in window:
                self._forget((read.lane, record.key))

    async def _resend(self, records: list[Spooled], own: bool) -> list[Spooled]:
        """Send records and wait; return those that did not arrive."""
        sent = []
        held: list[Spooled] = []
        for n, record in enumerate(records):
            if not await frame_is_out(record.headers, self._objects):
                held = records[n:]  # what follows may be of the same stream
                break
            twin = self._twin(record)
            while twin is not None and not twin.decided:
                await asyncio.sleep(_RETRY_S / 10)
            if twin is None or not twin.delivered:
                sent.append((record, self._resent(record, own)))
        return [record for record, future in sent if not await arrived(future)] + held

    def _twin(self, record: Spooled) -> Sent | None:
        """Return the same record as Kafka was given it before."""
        try:
            return self._twins.pop(event_id_of(record.value), None)
        except DecodeError:
            return None  # a dead letter, once it is in Kafka

    def _resent(self, record: Spooled, own: bool) -> asyncio.Future[Position]:
        lane = self.lane_at(record.topic, record.partition)
        future: asyncio.Future[Position] = self._new_future()
        seq = record.seq if own else -1
        # At the end the drain stops listening while they are on their way.
        future.add_done_callback(heard)
        headers = without(record.headers)
        sent = _Resent(self._report, lane, record.key, record.value, headers, seq, future)
        try:
            self._hand(sent)
        except TurnlogError as error:
            logger.error("a spooled record of %s is refused: %s", record.topic, error)
            future.set_exception(error)
        return future

    # The end.

    def takes_large(self) -> bool:
        """Whether there is a store for frames that are too large for a record."""
        return self._objects is not None

    def abandon(self) -> None:
        """Take nothing any more: this is a forked child, and the spool is its parent's."""
        super().abandon()
        self.spool.abandon()

    async def close(self, timeout_s: float) -> int:
        """Wait for what was sent and drain the spool; leave on the disk what takes too long.

        Returns:
            Records that are neither in Kafka nor on the disk.
        """
        self._closed = True
        until = self._loop.time() + timeout_s
        while (self._unacknowledged or self._wake.is_set()) and self._loop.time() < until:
            await asyncio.sleep(0.005)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._publish([lane for lane in self.lanes() if lane.topic != LEDGER], closed=True)
        await self._late(_LAST_MARKS_S)
        lost = self._keep_rest()
        await asyncio.gather(*self._writing, return_exceptions=True)
        for client in self._clients:
            self._purge(client)
        await self._late(timeout_s=1.0)
        left = sum(self.spool.events.values())
        if left:
            logger.warning("%d events are on the disk: the next producer sends them", left)
        await self.spool.close()
        return lost

    def _keep_rest(self) -> int:
        lost = 0
        for sent in self._watched:
            if sent.decided:
                continue
            try:
                self._keep(sent)
            except SpoolFull as error:
                lost += 1
                if not sent.future.done():
                    sent.future.set_exception(in_doubt(error))
        return lost


async def connected(config: Config) -> Ladder:
    """Open the spool of this process and the ladder over it.

    Raises:
        UsageError: the spool's folder cannot be used, or Kafka has no address.
        Unavailable: Kafka does not answer, and never did for this spool.
    """
    settings = producer_settings(config)
    spool = await Spool.open(config.spool_folder, new_id("producer"), config.spool_max_bytes)
    objects = Objects(config) if config.s3 else None
    made = Ladder(settings, spool, spool_after_s=config.spool_after_ms / 1000, objects=objects)
    try:
        await made.open()
    except Unavailable:
        await made.close(0)
        raise
    return made
