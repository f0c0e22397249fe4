"""The conversations worker as a process, on a real Kafka and Redis, with every way to lose it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgpack
import pytest
from confluent_kafka import Producer

from local import stack as local_stack
from processors.conversation_rows import unpack_head
from replay.fold import first_occurrences
from serve.conversation_api import is_whole
from sinks.redis import connect
from sinks.redis.conversations import HEAD, Conversations, hash_key
from streams.conversations import GROUP, TABLE, TOPICS, VIEW, digest
from streams.conversations.rebuild import rebuild
from streams.dead import dead_letters
from streams.progress import Progress
from streams.views import named
from tests.conftest import running_stack
from tests.processors.conversation_events import (
    At,
    appended,
    created,
    event,
    imported,
)
from tests.processors.conversation_events import digest as pure_digest
from tests.streams.log import new_org, read, write, write_raw
from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.events import Event, decode
from turnlog.ids import stream_key
from turnlog.kafka import partitions_of, producer_settings, read_all

DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def config() -> Iterator[Config]:
    with running_stack(("kafka", "redis")) as running:
        yield running


class Worker:
    """`python -m streams conversations`, to be killed."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.log = Path(config.home) / "worker.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        env = os.environ | {"TURNLOG_HOME": str(self.config.home)}
        argv = [sys.executable, "-P", "-m", "streams", "conversations"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(argv, env=env, stdout=log, stderr=log)

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(60)

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def catch_up(self) -> None:
        view = named("conversations")
        progress = Progress(self.config)
        ends = progress.ends(view.topics)
        until(lambda: not progress.behind(view, ends), self)


def until(reached: Callable[[], bool], worker: Worker) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not answered(reached):
        assert worker.runs, worker.log.read_text()
        assert time.monotonic() < deadline, worker.log.read_text()
        time.sleep(0.1)


def answered(reached: Callable[[], bool]) -> bool:
    """A broker that has just started, or a slow machine, may not answer in time."""
    try:
        return reached()
    except Unavailable:
        return False


@pytest.fixture(scope="module")
def shared(config: Config) -> Iterator[Worker]:
    process = Worker(config)
    yield process
    if process.runs:
        process.stop(signal.SIGKILL)


@pytest.fixture
def worker(shared: Worker) -> Worker:
    """One worker for all tests; who kills it leaves it killed."""
    if not shared.runs:
        shared.start()
    return shared


def send(config: Config, *events: Event) -> list[tuple[str, int, int]]:
    return write(config, [(each.type, each.body) for each in events])


def folded(config: Config) -> tuple[int, str]:
    partitions = len(partitions_of(config, "turnlog.turns"))
    return pure_digest(
        (found, At(place.partition, place.offset))
        for found, place in first_occurrences(read_all(config, "turnlog.turns"), partitions)
    )


def talk(org: str, conversations: int, turns: int, start: int = 0) -> list[Event]:
    return [
        appended(f"t{n}", org=org, conversation=f"c{c}", frame=b"f" * 50)
        for n in range(start, start + turns)
        for c in range(conversations)
    ]


def test_the_view_says_where_it_is_and_what_it_reads() -> None:
    assert (VIEW, GROUP, TOPICS) == ("conversations", "turnlog-conversations", ("turnlog.turns",))
    assert TABLE == "turnlog-conversations-turns-changelog"


def test_turns_are_folded_shown_and_survive_a_kill(config: Config, worker: Worker) -> None:
    org = new_org("kill")
    send(config, created(org=org, conversation="c0"), *talk(org, 20, 10))
    worker.catch_up()
    progress = Progress(config)
    before = progress.committed(named("conversations"))
    send(config, *talk(org, 20, 60, start=10))
    until(lambda: progress.committed(named("conversations")) != before, worker)
    behind = progress.behind(named("conversations"), progress.ends(TOPICS))
    worker.stop(signal.SIGKILL)
    send(config, *talk(org, 20, 5, start=70))
    worker.start()
    worker.catch_up()
    assert behind or progress.committed(named("conversations"))
    assert digest(config) == folded(config)
    shown = Conversations(connect(config)).read(stream_key(org, "c0", ""))
    assert is_whole(shown) and unpack_head(shown[HEAD]).turns == 75
    assert shown[b"f:t74"] == b"f" * 50


def test_refusals_outcomes_and_dead_letters_say_what_was_decided(
    config: Config, worker: Worker
) -> None:
    org = new_org("said")
    about = {"org": org, "conversation": "c"}
    conflict = appended("a", content_mac=b"other".ljust(32), **about)
    places = send(
        config,
        appended("a", **about),
        appended("b", expected_last_seq=7, **about),
        conflict,
        event("leaf.selected", "l", turn="a", **about),
    )
    stream = stream_key(org, "c", "")
    write_raw(config, "turnlog.turns", stream, b"garbage")
    worker.catch_up()
    refusals = [decode(m.value() or b"").body for m in read(config, "turnlog.refusals", org)]
    assert {(r["turn"], r["reason"], r["expected_last_seq"]) for r in refusals} == {
        ("b", "conflict", 7)
    }
    letters = {
        (letter.offset, letter.reason)
        for letter in dead_letters(config, ["turnlog.turns.dead"])
        if letter.partition == places[0][1] and letter.offset >= places[0][2]
    }
    first = places[0][2]
    assert letters == {
        (first + 2, "conflict"),
        (first + 3, "unsupported"),
        (first + 4, "not_an_event"),
    }
    said = Conversations(connect(config)).outcome(org, *places[1][1:])
    assert said is not None and msgpack.unpackb(said)["status"] == "refused"


def test_a_lost_read_model_is_folded_again_from_the_log(config: Config, worker: Worker) -> None:
    org = new_org("lost")
    stream = stream_key(org, "c", "")
    events = [imported(n, org=org, conversation="c", frame=b"f") for n in (1, 4, 2)]
    send(config, created(org=org, conversation="c", frame=b"title"), *events)
    worker.catch_up()
    redis = connect(config)
    hot = Conversations(redis)
    before = hot.read(stream)
    rebuilt = rebuild(config, stream)
    assert rebuilt is not None and rebuilt[1] == before
    redis.delete(hash_key(stream))
    send(config, imported(3, org=org, conversation="c", frame=b"f"))
    worker.catch_up()
    partial = hot.read(stream)
    assert not is_whole(partial)
    again = rebuild(config, stream)
    assert again is not None and hot.replace(stream, again[0].applied, again[1])
    assert is_whole(hot.read(stream)) and unpack_head(hot.read(stream)[HEAD]).turns == 4
    assert rebuild(config, stream_key(org, "nobody", "")) is None


def test_a_damaged_local_store_is_built_again_from_the_changelog(
    config: Config, worker: Worker
) -> None:
    org = new_org("store")
    send(config, *talk(org, 3, 20))
    worker.catch_up()
    assert worker.stop() == 0
    manifests = list((Path(config.home) / "conversations").rglob("MANIFEST-*"))
    assert manifests
    for path in manifests:
        path.write_bytes(b"garbage" * 100)
    send(config, *talk(org, 3, 10, start=15))
    worker.start()
    worker.catch_up()
    assert digest(config) == folded(config)
    shown = Conversations(connect(config)).read(stream_key(org, "c1", ""))
    assert unpack_head(shown[HEAD]).turns == 25


def test_a_redis_that_was_away_misses_nothing(config: Config, worker: Worker) -> None:
    org = new_org("redis")
    send(config, *talk(org, 2, 2))
    worker.catch_up()
    local_stack.down(config, ["redis"])
    send(config, *talk(org, 2, 4, start=2))
    time.sleep(1.0)
    local_stack.up(config, ["redis"])
    worker.catch_up()
    shown = Conversations(connect(config)).read(stream_key(org, "c1", ""))
    assert is_whole(shown) and unpack_head(shown[HEAD]).turns == 6


def test_a_broker_that_was_killed_costs_nothing(config: Config, worker: Worker) -> None:
    org = new_org("broker")
    send(config, *talk(org, 5, 5))
    worker.catch_up()
    send(config, *talk(org, 5, 40, start=5))
    pid = next(state.pid for state in local_stack.status(config) if state.name == "kafka")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    time.sleep(1.0)
    local_stack.up(config, ["kafka"])
    send(config, *talk(org, 5, 5, start=45))
    worker.catch_up()
    assert digest(config) == folded(config)


def test_every_repeat_of_the_whole_log_changes_nothing(config: Config, worker: Worker) -> None:
    worker.catch_up()
    before = digest(config)
    producer = Producer(producer_settings(config))
    for message in list(read_all(config, "turnlog.turns")):
        producer.produce("turnlog.turns", message.value(), message.key())
    assert producer.flush(60) == 0
    worker.catch_up()
    assert digest(config) == before
