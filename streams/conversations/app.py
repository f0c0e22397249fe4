"""The Faust app: its settings, its agent, and what of Faust 0.15.3 is replaced and why.

Faust joins the group, assigns partitions, recovers the tables and hands over one record at a time.
What is replaced are five places where it can lose, repeat or miss work, or tell what is not so
(faust-kafka.md section 1.1):

- **Positions** (F1, F2, F3, F13). Faust derives what may be committed from acknowledgements that it
  gives itself, also for a record that raised. Here it commits what the unit of work has written and
  nothing else.
- **The producer's buffer** (F4) is not used; if anything lies in it at a commit, the worker ends.
- **Waiting for streams** (F22, F25). A record is folded without a pause in between, so at a revoke
  or a stop there is nothing to wait for: what was folded is written, the rest is read again.
- **Assigning.** A leader that joins while the broker starts may see a cluster without our topics.
  Faust then assigns nothing to anybody, and that stays: the broker keeps the assignment for a
  static member that comes back. Here the worker ends before it has told the broker.
- **Its watch** calls a partition slow that was only quiet (`streams.stall`).

Recovery that never ends (F12) needs a changelog whose last record was compacted away. That cannot
be here: no tombstone is ever written, so the last record of a partition is the newest of its key.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, cast

import faust
from aiokafka.cluster import ClusterMetadata
from faust.app import App
from faust.assignor.partition_assignor import (
    MemberAssignmentMapping,
    MemberMetadataMapping,
    PartitionAssignor,
)
from faust.sensors import Monitor
from faust.transport.drivers import aiokafka as driver
from faust.types import TP, EventT
from mode.threads import WorkerThread
from yarl import URL

from streams.conversations import GROUP, HEADS, TURNS, tables
from streams.conversations.unit import TOPIC, Source
from streams.conversations.work import Work
from turnlog.config import Config
from turnlog.errors import Unavailable

logger = logging.getLogger(__name__)

# Raised when the stored rows change their form: the local stores then start anew.
VERSION = 1

# mode logs under the module of each subclass otherwise, many lines a start.
_QUIET = logging.getLogger("faust.turnlog")

Fail = Callable[[BaseException], Awaitable[None]]


def settings(config: Config, datadir: Path, instance: str) -> dict[str, Any]:
    """Return the app's settings, every one explicit that has a default which does not suit.

    Args:
        config: where Kafka is.
        datadir: folder of the local stores.
        instance: static member id: a worker that was killed takes its own place in the group again
            at once, instead of waiting for the old member's session to end.
    """
    return {
        "broker": [URL(f"kafka://{address}") for address in config.need("kafka").split(",")],
        "version": VERSION,
        "store": "rocksdb://",
        "datadir": str(datadir),
        "processing_guarantee": "at_least_once",
        "topic_allow_declare": False,
        "topic_disable_leader": True,
        "topic_partitions": config.partitions,
        "topic_replication_factor": config.replication,
        "table_standby_replicas": 1,
        "consumer_group_instance_id": instance,
        "consumer_auto_offset_reset": "earliest",
        "broker_session_timeout": 6.0,
        "broker_heartbeat_interval": 1.5,
        "broker_rebalance_timeout": 60.0,
        "broker_request_timeout": 40.0,
        "broker_max_poll_records": 1000,
        "broker_commit_interval": 1.0,
        "broker_commit_every": 5000,
        "stream_buffer_maxsize": 4096,
        "stream_recovery_delay": 0.0,
        "stream_wait_empty": True,
        "producer_acks": -1,
        "producer_request_timeout": 60.0,
        "producer_threaded": False,
        "web_enabled": False,
        "Monitor": _Monitor,
        "PartitionAssignor": _Assignor,
        "Table": tables.Table,
    }


class ConversationsApp(App):
    """The app, with the unit of work that its consumer commits.

    Attributes:
        work: folds and writes.
        unseen: topics that were not there when partitions were assigned; it has to start anew.
    """

    logger = _QUIET

    def __init__(self, work: Work, **options: Any) -> None:
        self.work = work
        self.unseen: list[str] = []
        super().__init__(GROUP, **options)

    def _new_transport(self) -> "_Transport":
        return _Transport(self.conf.broker_consumer, self)


class _DaemonThread(WorkerThread):
    """A thread that does not keep a crashed process alive."""

    def __init__(self, service: Any, **options: Any) -> None:
        super().__init__(service, **options)
        self.daemon = True


class _Assignor(PartitionAssignor):
    """Refuses to assign topics that are not there, which to Faust have no partitions."""

    def assign(
        self, cluster: ClusterMetadata, member_metadata: MemberMetadataMapping
    ) -> MemberAssignmentMapping:
        """Assign as Faust does.

        Raises:
            Unavailable: a topic is missing. aiokafka's task ends by it, and the worker looks at
                `ConversationsApp.unseen`.
        """
        subscribed = {topic for member in member_metadata.values() for topic in member.subscription}
        unseen = sorted(name for name in subscribed if not cluster.partitions_for_topic(name))
        cast(ConversationsApp, self.app).unseen = unseen
        if unseen:
            raise Unavailable(f"Kafka did not show {', '.join(unseen)}")
        return super().assign(cluster, member_metadata)


class _Consumer(driver.Consumer):
    """Commits what the unit of work has written."""

    logger = _QUIET

    @property
    def work(self) -> Work:
        return cast(ConversationsApp, self.app).work

    def _new_consumer_thread(self) -> driver.AIOKafkaConsumerThread:
        return driver.AIOKafkaConsumerThread(
            self, loop=self.loop, beacon=self.beacon, Worker=_DaemonThread
        )

    async def force_commit(self, topics: Any = None, start_new_transaction: bool = True) -> bool:
        """Write what was folded, then commit up to there."""
        await self.work.flush()
        did: bool = await super().force_commit(topics, start_new_transaction)
        return did

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """Own the partitions before the first record of them can come."""
        self.work.own({tp.partition for tp in assigned if tp.topic == TOPIC})
        await super().on_partitions_assigned(assigned, generation_id)

    async def perform_seek(self) -> None:
        """Go to the committed positions; Faust may have handed records over before."""
        await super().perform_seek()
        for tp, position in self._read_offset.items():
            if tp.topic == TOPIC and position is not None:
                self.work.expect(tp.partition, position)

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Leave it to the worker's own watch."""

    def verify_recovery_event_path(self, now: float, tp: TP) -> None:
        """Leave it to the worker's own watch."""

    async def wait_empty(self) -> None:
        """Write and commit; no record is ever half folded."""
        await self.commit()

    def _new_offset(self, tp: TP) -> int | None:
        # Faust's own accounts would only grow.
        self._acked[tp].clear()
        self._acked_index[tp].clear()
        self._gap.pop(tp, None)
        return self.work.durable(tp.partition) if tp.topic == TOPIC else None

    async def _commit_offsets(
        self, offsets: Mapping[TP, int], start_new_transaction: bool = True
    ) -> bool:
        if self.app.producer.buffer.size:
            await self.crash(Unavailable("Faust's producer holds records that nobody wrote"))
            return False
        return await super()._commit_offsets(offsets, start_new_transaction)


class _Transport(driver.Transport):
    Consumer = _Consumer


class _Monitor(Monitor):
    """Counts nothing per record: nobody reads it, and it costs a tenth of a record's time."""

    logger = _QUIET

    def on_message_in(self, tp: TP, offset: int, message: Any) -> None:
        """Count nothing."""

    def on_message_out(self, tp: TP, offset: int, message: Any) -> None:
        """Count nothing."""

    def on_stream_event_in(self, tp: TP, offset: int, stream: Any, event: Any) -> None:
        """Count nothing."""

    def on_stream_event_out(
        self, tp: TP, offset: int, stream: Any, event: Any, state: Any = None
    ) -> None:
        """Count nothing."""


def build(config: Config, work: Work, datadir: Path, instance: str, fail: Fail) -> ConversationsApp:
    """Make the app; nothing runs before it is started inside an event loop.

    Args:
        config: where Kafka is.
        work: what folds and writes.
        datadir: folder of the local stores.
        instance: static member id in the group.
        fail: called with what ends the worker; it does not return, so that the record at hand is
            never acknowledged.
    """
    app = ConversationsApp(work, **settings(config, datadir, instance))
    work.attach(
        tables.make(app, HEADS, config.partitions),
        tables.make(app, TURNS, config.partitions),
    )
    raw: Any = "raw"
    topic = app.topic(TOPIC, key_serializer=raw, value_serializer=raw, allow_empty=True)

    @app.agent(topic, name="conversations.fold", concurrency=1)
    async def fold(stream: faust.StreamT[bytes]) -> None:
        async for event in stream.events():
            try:
                await work.take(_source(event))
            except Exception as error:
                await fail(error)

    @app.on_partitions_revoked.connect(weak=False)
    async def forget(_: App, revoked: set[TP], **__: Any) -> None:
        work.forget({tp.partition for tp in revoked if tp.topic == TOPIC})

    return app


def _source(event: EventT[bytes]) -> Source:
    message = event.message
    headers = message.headers or []
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return Source(message.partition, message.offset, message.key, message.value, tuple(pairs))
