"""What a worker knows of one partition number that it owns."""

import logging
from collections.abc import Mapping
from typing import Any, cast

from confluent_kafka import Message, TopicPartition

from processors import estimates as usage
from processors.common import shaped
from processors.estimates import Estimates
from processors.finalizer import TOPICS, Partition, read_sign
from streams.dead import Dead
from streams.finalizer.appends import Appends
from streams.finalizer.checkpoint import load, mend, store_estimates, store_runs
from turnlog.config import Config
from turnlog.errors import DecodeError
from turnlog.events import decode
from turnlog.ids import is_id

logger = logging.getLogger(__name__)

RUNS, CHUNKS = TOPICS


class Owned:
    """The folds of one partition number, restored from its checkpoint.

    Attributes:
        number: of the partition, in all three topics.
        partition: the open runs.
        undo: bodies of negations that are to be written.
        dead: records that no view takes but this one.
        goal: ends of both topics that must be read before runs are judged; None: not asked for.
        goal_ms: append time at the head of `run-chunks` when they were asked for.
        finished_at: when runs were ended last, by the monotonic clock.
        refused: rows of the checkpoint that are not ours, until `mend`.

    Raises:
        Unavailable: Kafka does not answer.
    """

    def __init__(self, config: Config, number: int) -> None:
        self.number = number
        # Three ticks without a record: neither a finalizer nor a producer could append.
        silence_s = max(3 * config.tick_s, config.run_deadline_s / 2)
        self.partition = Partition(int(config.run_deadline_s * 1000), int(silence_s * 1000))
        self.undo: list[dict[str, Any]] = []
        self.dead: list[Dead] = []
        self.goal: Mapping[str, int] | None = None
        self.goal_ms = 0
        self.finished_at = 0.0
        self._estimates = Estimates()
        self._next: dict[str, int] = {}
        stored = load(config, number)
        self.refused, self._mended = stored.refused, stored.mended
        self._starts = stored.offsets
        self.partition.restore(stored.runs, stored.head_ms)
        for body, append_ms in stored.estimates:
            self._estimates.restore(body, append_ms)
        logger.info("partition %d: %d open runs in its checkpoint", number, len(stored.runs))

    def mend(self, appends: Appends) -> None:
        """Let the checkpoint forget what it refused, once that is acknowledged as dead letters.

        Raises:
            Unavailable: Kafka did not acknowledge it.
        """
        mend(appends, self.number, self._mended)
        self.refused, self._mended = [], []

    def start(self, topic: str) -> int | None:
        """Begin a topic; return the offset to read from, None for its first one."""
        start = self._starts.get(topic)
        self._next[topic] = start or 0
        return start

    def stop(self, topic: str) -> bool:
        """Give a topic up; return whether none is left."""
        self._next.pop(topic, None)
        return not self._next

    @property
    def is_whole(self) -> bool:
        """Whether both topics of runs are ours, so that runs can be judged."""
        return RUNS in self._next and CHUNKS in self._next

    def ask_for(self, goal: Mapping[str, int]) -> None:
        """Set the ends that are read before what is overdue now is judged."""
        self.goal, self.goal_ms = goal, self.partition.head_ms

    @property
    def has_reached_its_goal(self) -> bool:
        """Whether both topics are read up to the ends that were asked for."""
        goal = self.goal
        return goal is not None and all(self._next[topic] >= goal[topic] for topic in TOPICS)

    def take(self, message: Message) -> None:
        """Fold one record, or take note that the end is reached."""
        topic, offset = cast(str, message.topic()), cast(int, message.offset())
        if message.error() is not None:
            self._next[topic] = max(self._next[topic], offset)
            return
        if topic == usage.TOPIC:
            self._take_usage(message, offset)
        else:
            self._take_sign(topic, message, offset)
        self._next[topic] = offset + 1

    def _take_sign(self, topic: str, message: Message, offset: int) -> None:
        try:
            sign = read_sign(message.value(), message.key())
        except DecodeError as error:
            # The sinks of the other topics keep what they refuse; of chunks nobody else would.
            if topic == CHUNKS:
                self.dead.append(Dead(message, str(error)))
            return
        take = self.partition.take_run if topic == RUNS else self.partition.take_chunk
        take(sign, offset, message.timestamp()[1])

    def _take_usage(self, message: Message, offset: int) -> None:
        try:
            event = decode(message.value() or b"")
        except DecodeError:
            return
        if not (is_id(event.body["org"]) and is_id(event.body["run"])):
            return
        # What no view takes is not taken back either: it could not be written.
        if not usage.is_estimate(event) or shaped(event):
            self.undo += self._estimates.take(event, offset, message.timestamp()[1])

    def store(self, appends: Appends) -> list[TopicPartition]:
        """Write the checkpoint; return the offsets that may be committed.

        Raises:
            Unavailable: Kafka did not acknowledge it.
        """
        places: dict[str, int] = {}
        if self.is_whole:
            places = {topic: self._next[topic] for topic in TOPICS}
            store_runs(appends, self.number, self.partition, places)
        if usage.TOPIC in self._next:
            self._estimates.expire(self.partition.head_ms)
            offset = self._next[usage.TOPIC]
            store_estimates(appends, self.number, self._estimates, usage.TOPIC, offset)
            places[usage.TOPIC] = offset
        return [TopicPartition(topic, self.number, at) for topic, at in places.items()]
