"""The start of a reader of `turnlog.keys` beside a bare consumer of the same rows.

The rows are what a keeper writes: trees of many orgs, planted and then punctured run by run, so
pages, heads that replace heads and removals of replaced pages, in transactions. Each start of ours
is a first one: in a home without floors, so that every tree's head is checked and its floor stored.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from bench.measure import Result, Sample, Stopwatch, result
from bench.topics import bench_topics
from streams.keys_reader import KeyReader
from turnlog.config import Config
from turnlog.ids import new_id
from turnlog.kafka import client_settings, end_offsets, partition_of, reader_settings, unavailable
from turnlog.keys.index import Subject, index_of
from turnlog.keys.keyfile import KeyFile, create_key_file
from turnlog.keys.kms import LocalKms
from turnlog.keys.mint import Sealer, plant
from turnlog.keys.puncture import puncture
from turnlog.keys.rows import Row, WrappedKey, head_row_key, open_head, wrapping_row
from turnlog.keys.tree import StoredTree

PATH = "keys-reader-start"
TOPIC = "turnlog.keys"
ROWS = 100_000
STARTS = 5
_ORGS = 32
_RUN_BYTES = 32
_TRANSACTION_ROWS = 1_000
_TIMEOUT_S = 60.0


def paths() -> dict[str, Callable[[Config, int], Result]]:
    """Return the measurements of this module by the name of their path."""
    return {PATH: measure_reader_start}


def measure_reader_start(config: Config, rows: int = ROWS) -> Result:
    """Measure how long a reader takes to be complete, and a bare consumer to have seen the rows.

    Args:
        config: of a running stack.
        rows: in the topic, at least.

    Raises:
        Unavailable: Kafka does not answer.
    """
    ours: list[Sample] = []
    raw: list[Sample] = []
    with bench_topics(config, [TOPIC]) as names, tempfile.TemporaryDirectory() as folder:
        file = create_key_file(Path(folder) / "local.key")
        _fill(config, names[TOPIC], islice(_rows(file), rows))
        own = config.model_copy(update={"key_file": file.path, "keeper_public": file.public_hex})
        for at in range(STARTS + 1):
            pair = _started(own, names[TOPIC], Path(folder) / str(at), rows)
            # The first of each warms up broker and page cache.
            if at:
                ours.append(pair[0])
                raw.append(pair[1])
    return result(PATH, ours, raw)


def _started(config: Config, topic: str, home: Path, rows: int) -> tuple[Sample, Sample]:
    watch = Stopwatch()
    reader = KeyReader(config.model_copy(update={"home": home}), topic=topic)
    ours = watch.sample(rows)
    reader.close()
    return ours, _consumed(config, topic, rows)


def _consumed(config: Config, topic: str, rows: int) -> Sample:
    ends = end_offsets(config, topic)
    watch = Stopwatch()
    consumer = Consumer(reader_settings(config, "read_committed"))
    consumer.assign([TopicPartition(topic, number, 0) for number, end in ends.items() if end])
    seen = 0
    while seen < rows:
        messages = consumer.consume(1_000, timeout=0.01)
        seen += sum(message.error() is None for message in messages)
    sample = watch.sample(rows)
    consumer.close()
    return sample


def _fill(config: Config, topic: str, rows: Iterator[Row]) -> None:
    producer = Producer(
        {**client_settings(config), "transactional.id": "turnlog-bench-keys", "linger.ms": 5}
    )
    count = config.partitions
    try:
        producer.init_transactions(_TIMEOUT_S)
        while chunk := list(islice(rows, _TRANSACTION_ROWS)):
            producer.begin_transaction()
            for key, value in chunk:
                org = key.partition(b"/")[0]
                producer.produce(topic, value, key, partition_of(org, count))
            producer.commit_transaction(_TIMEOUT_S)
    except KafkaException as error:
        raise unavailable(error) from error


def _rows(file: KeyFile) -> Iterator[Row]:
    """Give the rows that a keeper writes, org by org in turns, without an end."""
    trees = [_Tree(file, f"bench_{number}") for number in range(_ORGS)]
    for tree in trees:
        yield from tree.planted()
    while True:
        for tree in trees:
            yield from tree.punctured()


class _Tree:
    """A tree of an org of its own."""

    def __init__(self, file: KeyFile, org: str) -> None:
        self.org = org
        self._file = file
        self._tree = os.urandom(16)
        self._sealer = Sealer(1, os.urandom(32), file.signer)
        self._rows: dict[bytes, bytes] = {}

    def planted(self) -> Iterator[Row]:
        kms = LocalKms(self._file)
        wrapped = WrappedKey(1, kms.name, kms.wrap(self.org, 1, self._sealer.org_key))
        yield wrapping_row(self.org, wrapped, self._file.signer)
        yield from self._taken(plant(self.org, self._tree, 1, 15, self._sealer))

    def punctured(self) -> Iterator[Row]:
        """Erase a run of a new conversation."""
        value = self._rows[head_row_key(self.org, self._tree)]
        public = self._file.signer.public_key()
        head = open_head(self.org, self._tree, value, self._sealer.org_key, public)
        subject = Subject(
            self.org, f"user_{os.urandom(1).hex()}", new_id("conv"), new_id("run"), "o"
        )
        prefix = index_of(head.index_key, 1 + os.urandom(1)[0] % 15, 0, subject)[:_RUN_BYTES]
        stored = StoredTree(self.org, self._tree, head, self._rows)
        yield from self._taken(puncture(stored, [prefix], self._sealer).rows)

    def _taken(self, rows: list[Row]) -> list[Row]:
        for key, value in rows:
            if value is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = value
        return rows
