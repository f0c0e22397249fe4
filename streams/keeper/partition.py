"""One partition of `turnlog.keys`: the one transactional writer that it has at a time.

`take_over` fences whoever wrote before, reads the partition to its end, and only then is there an
object that can write: a keeper that acts on what it has not read cannot be put together.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
)

from streams.batch import Stopped
from streams.keeper.rollback import floors_of, require_floors
from streams.keeper.state import KeyRows
from streams.keys.floors import FloorStore, floors_path
from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.events import Record
from turnlog.kafka import (
    ANSWER_S,
    client_settings,
    partition_of,
    partitions_of,
    read_all,
    reader_settings,
    unavailable,
)
from turnlog.keys.rows import Row
from turnlog.passing import bounds, in_words

logger = logging.getLogger(__name__)

TOPIC = "turnlog.keys"
TRANSACTION_S = 30.0

_FENCED = frozenset(
    (
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
    )
)


class Fenced(Stopped):
    """Another keeper took the partition over: this one must end."""


class KeyPartition:
    """Rows of one partition and the right to change them; made by `take_over` alone.

    Attributes:
        number: the partition.
        state: what it holds.
        lock: held while that changes, which it does a whole transaction at a time.
    """

    def __init__(self, config: Config, number: int, topic: str) -> None:
        self.number = number
        self._topic = topic
        self.state = KeyRows()
        self.lock = threading.RLock()
        self._config = config
        self._producer: Producer | None = None
        self._fenced: Fenced | None = None
        self._counts: dict[str, int] = {}
        self._bounds: dict[str, Consumer] = {}
        self._floors = FloorStore(floors_path(config))

    def write(self, rows: Sequence[Row], events: Iterable[Record] = ()) -> None:
        """Write rows and events in one transaction, all or none; returns when they are durable.

        Raises:
            Fenced: another keeper has the partition.
            Unavailable: Kafka did not answer. Whether the rows were written is not known until
                `ready` has read the partition anew.
        """
        placed = [
            (partition_of(event.partition_by, self._count(event.topic)), event) for event in events
        ]
        # Let go of until all went well: whatever fails, the next one to write reads anew.
        producer, self._producer = self._producer, None
        if producer is None:
            raise Unavailable(f"partition {self.number} of {self._topic} must be taken over first")
        try:
            producer.begin_transaction()
            for key, value in rows:
                self._produce(producer, self._topic, self.number, key, value)
            for number, event in placed:
                self._produce(producer, event.topic, number, event.key, event.value, event.headers)
            producer.commit_transaction(TRANSACTION_S)
        except KafkaException as error:
            raise self._failed(error) from error
        self._floors.raise_to(floors_of(dict(rows)))
        with self.lock:
            self.state.apply(rows)
        self._producer = producer

    def _produce(
        self,
        producer: Producer,
        topic: str,
        partition: int,
        key: bytes,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        while True:
            try:
                producer.produce(topic, value, key, partition, headers=[*headers])
                return
            except BufferError:
                producer.poll(0.1)

    def settle(self) -> None:
        """Wait until all that was written can be read.

        A commit is answered before its mark is in the log, and who begins to read in between takes
        the log's readable end for its end and misses what was committed: so it was after 7 of 100
        commits, for up to 0.1 s. Asking costs 1.5 ms.

        Raises:
            Unavailable: Kafka does not answer, or the mark does not come.
        """
        deadline = time.monotonic() + TRANSACTION_S
        end = self._end("read_uncommitted")
        while self._end("read_committed") < end:
            if time.monotonic() > deadline:
                raise Unavailable(f"what was written to {self._topic} cannot be read yet")
            time.sleep(0.005)

    def _end(self, isolation: str) -> int:
        if isolation not in self._bounds:
            self._bounds[isolation] = Consumer(reader_settings(self._config, isolation))
        return bounds(self._bounds[isolation], self._topic, self.number, ANSWER_S)[1]

    def ready(self) -> "KeyPartition":
        """Return the partition when it may be written to, taken over anew if a write failed.

        What is to be written must be computed from what is there after this call.

        Raises:
            Fenced: another keeper did the same in this moment.
            Unavailable: Kafka does not answer.
        """
        if self._fenced is not None:
            raise self._fenced
        if self._producer is None:
            self.take_over()
        return self

    def take_over(self) -> None:
        """Fence who wrote before, then read the partition to its end.

        Raises:
            Fenced: another keeper did the same in this moment.
            KeyUnavailable: the topic is older than what this home has seen of it.
            Unavailable: Kafka does not answer.
        """
        producer = Producer(_settings(self._config, self._topic, self.number))
        try:
            producer.init_transactions(TRANSACTION_S)
        except KafkaException as error:
            raise self._failed(error) from error
        state = KeyRows()
        for message in read_all(self._config, self._topic, [self.number]):
            state.apply([_row(message)])
        require_floors(state.rows, self._floors.load(self._is_kept(state.rows)))
        with self.lock:
            self.state.become(state)
        self._producer = producer

    def _is_kept(self, rows: Mapping[bytes, bytes]) -> Callable[[bytes], bool]:
        """Tell which floors are of this partition; of another topic only those of its own trees."""
        count = self._count(self._topic)

        def is_kept(row_key: bytes) -> bool:
            org = row_key.partition(b"/")[0]
            here = partition_of(org, count) == self.number
            return here and (self._topic == TOPIC or row_key in rows)

        return is_kept

    def _failed(self, error: KafkaException) -> Unavailable | Fenced:
        # librdkafka has no KIP-890: after an unclear end of a transaction only a new producer,
        # with a new epoch, can tell what is in the log (faust-kafka.md section 4).
        reason: KafkaError = error.args[0]
        if reason.code() in _FENCED:
            self._fenced = Fenced(f"partition {self.number} of {self._topic} has another keeper")
            return self._fenced
        logger.warning("partition %d: a transaction failed: %s", self.number, in_words(reason))
        return unavailable(error)

    def _count(self, topic: str) -> int:
        if topic not in self._counts:
            self._counts[topic] = len(partitions_of(self._config, topic))
        return self._counts[topic]


def take_over(config: Config, number: int, topic: str = TOPIC) -> KeyPartition:
    """Become the keeper of a partition.

    Raises:
        Fenced: another keeper did the same in this moment.
        Unavailable: Kafka does not answer.
    """
    partition = KeyPartition(config, number, topic)
    partition.take_over()
    return partition


def _row(message: Message) -> Row:
    return message.key() or b"", message.value()


def _settings(config: Config, topic: str, number: int) -> dict[str, object]:
    return {
        **client_settings(config),
        "transactional.id": f"{topic.replace('.', '-')}-{number}",
        "transaction.timeout.ms": int(TRANSACTION_S * 1000),
        # Pages are ciphertext: compressing them costs time and wins nothing.
        "compression.type": "none",
        "linger.ms": 0,
        "message.max.bytes": 1_000_000,
    }
