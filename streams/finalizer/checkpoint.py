"""The checkpoint of open runs in `turnlog.finalizer`: what bounds a restart to a minute of the log.

Partition n of the topic is about partition n of the streams. Row `{n}/{org}/{run}`: an open run as
`processors.finalizer` packs it; row `{n}`: where in the two topics reading goes on. Row
`usage/{n}/{org}/{run}/{epoch}`: an estimate that nobody measured yet, row `usage/{n}`: where in
`turnlog.usage` reading goes on. The last row of a checkpoint is that of the offsets, so that rows
are never older than it; reading on from older offsets over newer rows changes nothing.

A row that is none of these is refused: it is a dead letter, and its key gets back what it had
before (`mend`). Where that is not known any more, the topics that it came from are read from their
start: an open run or an estimate that is missing would never end or be taken back.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

import orjson
from confluent_kafka import Consumer, Message

from processors import estimates as usage
from processors.estimates import RECORDED, Estimates
from processors.finalizer import TOPICS, Partition
from streams.dead import Dead
from streams.finalizer.appends import Appends
from streams.finalizer.rows import USAGE, Estimated, Row, Rows, packed
from turnlog.config import Config
from turnlog.errors import DecodeError
from turnlog.events import encode
from turnlog.kafka import ANSWER_S, read_all, reader_settings
from turnlog.passing import bounds

TOPIC = "turnlog.finalizer"


@dataclass
class Stored:
    """What the checkpoint of a partition number holds.

    Attributes:
        runs: row of each open run, by `{org}/{run}`.
        estimates: those that were not measured.
        offsets: by topic, where reading goes on; a topic that is missing is read from its start.
        head_ms: append time at the head of `run-chunks` when it was written.
        refused: rows that are not ours, to be dead letters.
        mended: what their keys get back, in this order; None: nothing.
    """

    runs: dict[bytes, bytes] = field(default_factory=dict)
    estimates: list[Estimated] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=dict)
    head_ms: int = 0
    refused: list[Dead] = field(default_factory=list)
    mended: list[tuple[bytes, bytes | None]] = field(default_factory=list)

    def take(self, row: Row) -> None:
        """Take in what a row says."""
        if row.run:
            self.runs[row.run] = row.value
        elif row.estimated is not None:
            self.estimates.append(row.estimated)
        else:
            self.offsets.update(row.offsets)
            self.head_ms = max(self.head_ms, row.head_ms)

    def forget(self, *topics: str) -> None:
        """Let topics be read from their start."""
        for topic in topics:
            self.offsets.pop(topic, None)
        if TOPICS[0] in topics:
            self.head_ms = 0


def load(config: Config, number: int) -> Stored:
    """Read the checkpoint of a partition number.

    Raises:
        Unavailable: Kafka does not answer.
    """
    latest: dict[bytes, Message] = {}
    for message in read_all(config, TOPIC, [number]):
        key = message.key() or b""
        latest.pop(key, None)
        if message.value() is not None:
            latest[key] = message
    rows = Rows(number, _ends(config, number) if latest else {})
    stored = Stored()
    for key, message in latest.items():
        try:
            stored.take(rows.read(key, message))
        except DecodeError as error:
            stored.refused.append(Dead(message, str(error)))
    if stored.refused:
        _mend(stored, rows, read_all(config, TOPIC, [number]))
    return stored


def _ends(config: Config, number: int) -> dict[str, int]:
    """Return the ends of the three topics; no checkpoint leads behind them."""
    consumer = Consumer(reader_settings(config, "read_uncommitted"))
    try:
        topics = (*TOPICS, usage.TOPIC)
        return {topic: bounds(consumer, topic, number, ANSWER_S)[1] for topic in topics}
    finally:
        consumer.close()


def _mend(stored: Stored, rows: Rows, log: Iterable[Message]) -> None:
    """Take what refused keys held before; give up the offsets that rest on what is not known."""
    keys = {dead.message.key() or b"" for dead in stored.refused}
    before = _before(keys, rows, log)
    for row in before.values():
        if row is not None:
            stored.take(row)
    lost = {place for key in keys - before.keys() if (place := rows.place_of(key))}
    for place in lost:
        stored.forget(usage.TOPIC) if place.startswith(USAGE) else stored.forget(*TOPICS)
    # First of all the offsets: without the rows that were behind them they must not be believed.
    stored.mended = [(place, None) for place in sorted(lost)]
    held = ((key, before.get(key)) for key in sorted(keys - lost))
    stored.mended += [(key, row and row.value) for key, row in held]


def _before(keys: Set[bytes], rows: Rows, log: Iterable[Message]) -> dict[bytes, Row | None]:
    """Return the last of each key that was ours; None: its run or estimate was over."""
    before: dict[bytes, Row | None] = {}
    for message in log:
        key = message.key() or b""
        if key not in keys:
            continue
        try:
            before[key] = None if message.value() is None else rows.read(key, message)
        except DecodeError:
            continue
    return before


def mend(appends: Appends, number: int, mended: Iterable[tuple[bytes, bytes | None]]) -> None:
    """Give refused keys back what they held, once the dead letters of them are acknowledged.

    Raises:
        Unavailable: Kafka did not acknowledge it.
    """
    for key, value in mended:
        appends.put(TOPIC, key, value, number)
        appends.settle()


def store_runs(
    appends: Appends, number: int, partition: Partition, offsets: Mapping[str, int]
) -> int:
    """Write what changed of the open runs, then the offsets; return how many rows it took.

    Raises:
        Unavailable: Kafka did not acknowledge it; start again from what is stored.
    """
    rows = 0
    for key, row in partition.changes():
        appends.put(TOPIC, b"%d/%s" % (number, key), row, number)
        rows += 1
    appends.settle()
    place = orjson.dumps({**offsets, "head_ms": partition.head_ms})
    appends.put(TOPIC, b"%d" % number, place, number)
    appends.settle()
    return rows


def store_estimates(
    appends: Appends, number: int, estimates: Estimates, topic: str, offset: int
) -> None:
    """Write what changed of the estimates, then where reading goes on; raises as `store_runs`."""
    for key, epoch, waiting in estimates.changes():
        row = None
        if waiting is not None:
            row = packed(waiting.append_ms, encode(RECORDED, waiting.body))
        appends.put(TOPIC, b"%s%d/%s/%d" % (USAGE, number, key, epoch), row, number)
    appends.settle()
    place = orjson.dumps({topic: estimates.rewind(offset)})
    appends.put(TOPIC, b"%s%d" % (USAGE, number), place, number)
    appends.settle()
