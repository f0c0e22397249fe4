"""The loop of batch consumers on a real Kafka, with sinks that remember what they were given."""

import itertools
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest
from confluent_kafka import Message

from streams import batch
from streams.batch import DeadLimit, Partition, Sink, Stopped, run_sink
from streams.dead import Dead, DeadLetter, dead_letters
from tests.streams.own_topic import committed, delete_before, new_topic, produce
from turnlog.config import Config
from turnlog.errors import TurnlogError, Unavailable

PATIENCE_S = 60.0
_names = itertools.count()


class Remembering(Sink):
    """Keeps what it was given; refuses values that begin with `bad`."""

    max_age_s = 0.05
    max_records = 50
    max_bytes = 1 << 20

    def __init__(self) -> None:
        self.taken: list[tuple[Partition, int, bytes | None]] = []
        self.recovered: dict[Partition, int] = {}
        self.forgotten: list[Partition] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.error: TurnlogError | None = None

    def recover(self, assignments: Mapping[Partition, int]) -> None:
        self.recovered |= assignments

    def forget(self, partitions: Collection[Partition]) -> None:
        self.forgotten += partitions

    def write(self, messages: Sequence[Message]) -> list[Dead]:
        assert self.go_on.wait(PATIENCE_S)
        if self.error:
            raise self.error
        self.taken += [(_place(m), m.offset() or 0, m.value()) for m in messages]
        return [Dead(m, "bad") for m in messages if (m.value() or b"bad").startswith(b"bad")]

    def values(self) -> list[bytes | None]:
        return [value for _, _, value in self.taken]


def _place(message: Message) -> Partition:
    return message.topic() or "", message.partition() or 0


class Running:
    """A loop in a thread."""

    def __init__(
        self, config: Config, name: str, topic: str, sink: Sink, limit: DeadLimit | None
    ) -> None:
        self.stop = threading.Event()
        self.error: TurnlogError | None = None
        self._arguments = config, name, [topic], sink
        self._limit = limit
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            run_sink(*self._arguments, stop=self.stop, limit=self._limit)
        except TurnlogError as error:
            self.error = error

    def end(self) -> TurnlogError | None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.error


@contextmanager
def running(
    config: Config, name: str, topic: str, sink: Sink, limit: DeadLimit | None = None
) -> Iterator[Running]:
    loop = Running(config, name, topic, sink, limit)
    try:
        yield loop
    finally:
        loop.stop.set()
        loop.end()


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def new_name() -> str:
    return f"test-{os.getpid()}-{next(_names)}"


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_an_offset_is_committed_only_after_its_record_is_durable(stores: Config) -> None:
    topic, name, sink = new_topic(stores), new_name(), Remembering()
    produce(stores, topic, numbered(10))
    sink.go_on.clear()
    with running(stores, name, topic, sink):
        wait_for(lambda: sink.recovered)
        time.sleep(0.5)
        assert committed(stores, f"turnlog.{name}", topic) < 0
        sink.go_on.set()
        wait_for(lambda: committed(stores, f"turnlog.{name}", topic) == 10)
    assert sink.values() == numbered(10)
    assert sink.recovered == {(topic, 0): 0, (topic, 1): 0}
    assert sorted(sink.forgotten) == [(topic, 0), (topic, 1)]


def test_a_store_that_fails_ends_the_loop_and_commits_nothing(stores: Config) -> None:
    topic, name, sink = new_topic(stores), new_name(), Remembering()
    produce(stores, topic, numbered(5))
    sink.error = Unavailable("the store is away")
    with running(stores, name, topic, sink) as loop:
        error = loop.end()
    assert isinstance(error, Unavailable) and "away" in str(error)
    assert committed(stores, f"turnlog.{name}", topic) < 0
    again = Remembering()
    with running(stores, name, topic, again):
        wait_for(lambda: len(again.taken) == 5)
    assert again.values() == numbered(5)


def test_what_was_committed_is_not_read_again(stores: Config) -> None:
    topic, name, sink = new_topic(stores), new_name(), Remembering()
    produce(stores, topic, numbered(5))
    with running(stores, name, topic, sink):
        wait_for(lambda: len(sink.taken) == 5)
    produce(stores, topic, [b"more"])
    again = Remembering()
    with running(stores, name, topic, again):
        wait_for(lambda: again.taken)
    assert again.values() == [b"more"]
    assert again.recovered[(topic, 0)] == 5


def test_bad_records_go_to_the_dead_letters_and_the_rest_goes_on(stores: Config) -> None:
    topic, name, sink = new_topic(stores), new_name(), Remembering()
    produce(stores, topic, [b"good", b"bad bytes", None, b"good"])
    with running(stores, name, topic, sink):
        wait_for(lambda: committed(stores, f"turnlog.{name}", topic) == 4)
    found = list(dead_letters(stores, [f"{topic}.dead"]))
    assert found == [
        DeadLetter(name, topic, 0, 1, "bad", 1, len(b"bad bytes")),
        DeadLetter(name, topic, 0, 2, "bad", 1, 0),
    ]


def test_too_many_bad_records_stop_the_worker_for_good(stores: Config) -> None:
    topic, name, sink = new_topic(stores), new_name(), Remembering()
    produce(stores, topic, [b"bad"] * 30)
    with running(stores, name, topic, sink, DeadLimit(in_a_row=20)) as loop:
        error = loop.end()
    assert isinstance(error, Stopped) and "bad records in a row" in str(error)
    letters = list(dead_letters(stores, [f"{topic}.dead"]))
    assert len(letters) == committed(stores, f"turnlog.{name}", topic) >= 20


def test_a_slow_store_loses_nothing_and_keeps_the_order(
    stores: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "HOLD_S", 0.1)
    topic, name, sink = new_topic(stores), new_name(), Remembering()
    sink.go_on.clear()
    produce(stores, topic, numbered(2000))
    with running(stores, name, topic, sink):
        wait_for(lambda: sink.recovered)
        time.sleep(1)
        sink.go_on.set()
        wait_for(lambda: len(sink.taken) >= 2000)
    assert sink.values() == numbered(2000)


def test_partitions_move_to_a_second_worker_without_loss_or_repeat(stores: Config) -> None:
    topic, name, first, second = new_topic(stores), new_name(), Remembering(), Remembering()
    produce(stores, topic, numbered(100), 0)
    produce(stores, topic, numbered(100), 1)
    with running(stores, name, topic, first):
        wait_for(lambda: len(first.taken) == 200)
        with running(stores, name, topic, second):
            wait_for(lambda: second.recovered)
            produce(stores, topic, [b"after"], 0)
            produce(stores, topic, [b"after"], 1)
            wait_for(lambda: len(first.taken) + len(second.taken) >= 202)
    moved = list(second.recovered.items())
    assert moved[0][1] == 100
    assert first.forgotten[0] == moved[0][0]
    assert len(set(first.taken) | set(second.taken)) == len(first.taken) + len(second.taken) == 202


def test_a_gap_in_the_log_after_the_first_start_stops_the_worker(stores: Config) -> None:
    topic, name, sink = new_topic(stores), new_name(), Remembering()
    produce(stores, topic, numbered(5))
    with running(stores, name, topic, sink):
        wait_for(lambda: committed(stores, f"turnlog.{name}", topic) == 5)
    produce(stores, topic, numbered(5))
    delete_before(stores, topic, 8)
    with running(stores, name, topic, Remembering()) as loop:
        error = loop.end()
    assert isinstance(error, Stopped) and "no longer holds the offset" in str(error)


def test_the_first_start_begins_at_the_earliest_record(stores: Config) -> None:
    topic, name, sink = new_topic(stores), new_name(), Remembering()
    produce(stores, topic, numbered(5))
    delete_before(stores, topic, 3)
    with running(stores, name, topic, sink):
        wait_for(lambda: len(sink.taken) == 2)
    assert [offset for _, offset, _ in sink.taken] == [3, 4]


def judged(limit: DeadLimit, outcome: str, partition: int = 0) -> str | None:
    """Judge a batch: one letter a record, `x` for a bad one."""
    messages = [Message(topic="t", partition=partition, offset=at) for at in range(len(outcome))]
    bad = [Dead(m, "") for m, letter in zip(messages, outcome, strict=True) if letter == "x"]
    return limit.judge(messages, bad)


def test_bad_records_in_a_row_count_over_batches_and_by_partition() -> None:
    limit = DeadLimit(in_a_row=4)
    assert judged(limit, ".xx") is None
    assert judged(limit, "xx", partition=1) is None
    assert judged(limit, "x.xxx") is None
    assert judged(limit, "xx", partition=1) == "4 bad records in a row"
    assert judged(limit, "x") == "4 bad records in a row"


def test_a_large_share_of_bad_records_is_too_much() -> None:
    limit = DeadLimit(share=0.5, of_last=10)
    assert judged(limit, "x." * 5) is None
    assert judged(limit, "xx." * 4) == "8 of the last 12 records are bad"
