"""The usage sink beside a raw consumer that counts the same records.

The sink is the worker's own loop and code on a topic and a table of the bench's own. Both sides
begin where the group has got to and are timed from the moment they have their partitions: how
long a group takes to join says nothing of the sink. The sink's time ends when the engine has
answered the insert that makes the block complete.
"""

import itertools
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import wait
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.measure import Result, Sample, Stopwatch, blocks, result
from bench.raw import RawProducer, Sent
from bench.topics import bench_name, bench_topics
from sinks.clickhouse.client import ClickHouse
from sinks.clickhouse.tables import USAGE, ensure_tables
from streams.batch import (
    CONSUMER_SETTINGS,
    READ_RECORDS,
    READ_WAIT_S,
    Partition,
    run_sink,
)
from streams.dead import Dead
from streams.rows_sink import RowsSink
from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.events import Encoder
from turnlog.ids import event_id, new_id
from turnlog.kafka import client_settings, partition_of, producer_settings

TOPIC = "turnlog.usage"
WIRE_TOPIC = bench_name(TOPIC)
WORKER = "bench-usage"
TABLE = USAGE.copy("bench_usage", WIRE_TOPIC)
ORG = "local"
RECORDS_A_RUN = 5
SEND_RECORDS = 10_000
SILENCE_S = 60.0
# So that the last block never waits for a batch to come of age: a batch and what is in flight.
TAIL_RECORDS = 2 * RowsSink.max_records
# Two batches at least, so that reading and writing overlap as they do in a worker.
BLOCK_RECORDS = 2 * RowsSink.max_records


class TimedSink(RowsSink):
    """The real sink, and when it began and reached a number of records."""

    def __init__(self, clickhouse: ClickHouse, records: int) -> None:
        super().__init__(clickhouse, TABLE)
        self.reached = threading.Event()
        self.sample: Sample | None = None
        self._records = records
        self._watch = Stopwatch()
        self._durable = 0

    def recover(self, assignments: Mapping[Partition, int]) -> None:
        """Learn what is there; the time begins once it is known."""
        super().recover(assignments)
        self._watch = Stopwatch()

    def write(self, messages: Sequence[Message]) -> list[Dead]:
        """Make a batch durable; the time ends with the batch that makes the block complete."""
        dead = super().write(messages)
        self._durable += len(messages) - len(dead)
        if self._durable >= self._records and self.sample is None:
            self.sample = self._watch.sample(self._durable)
            self.reached.set()
        return dead


def measure_usage_sink(config: Config, records: int, block: int) -> Result:
    """Measure `usage-sink`.

    Args:
        config: of a running stack.
        records: how many each side moves at least.
        block: of one turn; at least two batches of the sink, unless records are fewer.

    Raises:
        Unavailable: a part of the stack does not answer.
    """
    size = min(max(block, BLOCK_RECORDS), records)
    sizes = [size, *blocks(records, size)]
    clickhouse = ensure_tables(config)
    _drop(clickhouse)
    try:
        with bench_topics(config, [TOPIC]):
            ensure_tables(config, TABLE)
            ours, raw = _turns(config, clickhouse, sizes)
    finally:
        _drop(clickhouse)
        _forget_groups(config)
    return result("usage-sink", ours[1:], raw[1:])


def _turns(
    config: Config, clickhouse: ClickHouse, sizes: Sequence[int]
) -> tuple[list[Sample], list[Sample]]:
    ours, raw = [], []
    client = RawProducer(producer_settings(config))
    made = _usage(config.partitions)
    for size in sizes:
        _fill(client, itertools.islice(made, size + min(size, TAIL_RECORDS)))
        start = _committed(config)
        ours.append(_drain(config, clickhouse, size))
        raw.append(_count(config, start, ours[-1].records))
    return ours, raw


def _drain(config: Config, clickhouse: ClickHouse, records: int) -> Sample:
    """Run the sink until it has made this many records durable."""
    sink = TimedSink(clickhouse, records)
    run_sink(config, WORKER, [WIRE_TOPIC], sink, stop=sink.reached)
    if sink.sample is None:
        raise Unavailable("the sink stopped before it was done")
    return sink.sample


def _count(config: Config, start: Sequence[TopicPartition], records: int) -> Sample:
    """Consume as many records and count them."""
    settings: dict[str, Any] = {**client_settings(config), **CONSUMER_SETTINGS}
    consumer = Consumer({**settings, "group.id": f"turnlog.{WORKER}-raw"})
    try:
        consumer.assign(list(start))
        watch = Stopwatch()
        until = time.monotonic() + SILENCE_S
        seen = 0
        while seen < records:
            messages = consumer.consume(READ_RECORDS, READ_WAIT_S)
            if any(map(Message.error, messages)) or time.monotonic() > until:
                raise Unavailable("the raw consumer got no records")
            seen += len(messages)
        return watch.sample(seen)
    finally:
        consumer.close()


def _committed(config: Config) -> list[TopicPartition]:
    """Return where the sink's group has got to."""
    settings = {**client_settings(config), "group.id": f"turnlog.{WORKER}"}
    consumer = Consumer(settings)
    try:
        wanted = [TopicPartition(WIRE_TOPIC, number) for number in range(config.partitions)]
        found = consumer.committed(wanted, timeout=SILENCE_S)
        return [TopicPartition(p.topic, p.partition, max(p.offset, 0)) for p in found]
    finally:
        consumer.close()


def _fill(client: RawProducer, records: Iterator[Sent]) -> None:
    while chunk := list(itertools.islice(records, SEND_RECORDS)):
        client.send(chunk)


def _usage(partitions: int) -> Iterator[Sent]:
    """Make usage records as a producer writes them; every fifth begins a run in a conversation."""
    pick = random.Random(1)
    while True:
        run = new_id("run")
        shared = {
            "org": ORG,
            "project": "default",
            "conversation": new_id("conv"),
            "run": run,
            "user": f"bench_user_{pick.randrange(500)}",
            "writer_epoch": 1,
            "producer_id": "producer_bench",
            "producer_epoch": 1,
            "provider": "openai",
            "model": "gpt-4o-mini",
        }
        encoder = Encoder("usage.recorded", shared)
        for seq in range(RECORDS_A_RUN):
            tokens = pick.randrange(8000), pick.randrange(600)
            made = encoder.record(_body(run, seq, *tokens))
            partition = partition_of(made.key, partitions)
            yield Sent(WIRE_TOPIC, partition, made.key, made.value, made.headers)


def _body(run: str, seq: int, prompt: int, answer: int) -> dict[str, Any]:
    return {
        "event_id": event_id(ORG, run, "usage.recorded", f"1/{seq}"),
        "occurred_at_us": time.time_ns() // 1000,
        "seq": seq,
        "quality": "measured",
        "input_uncached": prompt,
        "output_text": answer,
        "cost_nano_usd": prompt * 150 + answer * 600,
        "price_version": "bench",
        "provider_usage": {"prompt_tokens": str(prompt), "completion_tokens": str(answer)},
    }


def _forget_groups(config: Config) -> None:
    """Remove the offsets of groups that nobody will use again."""
    admin = AdminClient(client_settings(config))
    for future in admin.delete_consumer_groups([f"turnlog.{WORKER}"]).values():
        wait([future], SILENCE_S)


def _drop(clickhouse: ClickHouse) -> None:
    clickhouse.command(f"DROP TABLE IF EXISTS {clickhouse.database}.{TABLE.name} SYNC")
