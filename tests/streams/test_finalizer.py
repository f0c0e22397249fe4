"""The finalizer on a real stack: every run ends, also when all who could end it are dead."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Message
from confluent_kafka import Producer as KafkaProducer

from local import workers
from local.process import log_tail
from local.stack import up
from processors.estimates import estimate_id
from processors.finalizer import OpenRun
from processors.runs import State, fold
from replay.fold import fold_log
from serve.runs_api import list_runs, run_summary
from sinks.clickhouse.locator import LocatorTable
from streams import runs_sink, usage_sink
from streams.dead import dead_letters
from streams.finalizer.ending import UNCOUNTED
from tests.conftest import running_stack
from tests.lost import SHOWN, USED
from tests.serve.runs_written import KEYS, erase_run, lose_pages
from tests.streams.log import new_org, read, run_body, write, write_raw
from tests.streams.orphans import (
    abandoned,
    beat,
    body_of,
    ended,
    ended_epochs,
    ends,
    events,
    gateway,
    go_on,
    listed,
    output_of,
    own,
    pid_of,
    sums,
    until,
)
from tests.test_kill import lines, start_feed
from turnlog import Producer
from turnlog.config import Config
from turnlog.events import TYPES, codec, decode, record
from turnlog.events.codec import complete
from turnlog.events.slices import marked_may_repeat
from turnlog.kafka import partition_of, partitions_of, producer_settings, read_all
from turnlog.keeper_client import create, credential_of
from turnlog.keys import Subject
from turnlog.producer import Run

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
PARTS = ("kafka", "clickhouse", "keeper", "runs-sink", "usage-sink", "finalizer")
LAST = 2**63 - 1


@pytest.fixture(scope="module")
def quick() -> Iterator[Config]:
    """A stack whose finalizer waits for 3 s instead of 20."""
    settings = {"run_deadline_s": 3.0, "tick_s": 0.3, "checkpoint_s": 1.0}
    with running_stack(PARTS, **settings) as config:
        LocatorTable(config).ensure()
        yield config


def test_a_killed_gateways_runs_end_with_what_had_reached_kafka(quick: Config) -> None:
    org = new_org("lost")
    with gateway(quick, org, "shown", "silent") as process:
        process.kill()
        process.wait()
        end, silent = ended(quick, org, "shown"), ended(quick, org, "silent")
    assert (end.body["provisional"], end.body["seq"]) == (True, LAST)
    assert end.body["output_chars"] == len("".join(SHOWN)) + 2
    assert silent.body["frame"] == b""

    estimated = ("interrupted", "estimated")
    until(lambda: listed(quick, org, "shown") == estimated, "it is not in the tables")
    until(lambda: listed(quick, org, "silent") == estimated, "it is not in the tables")
    shown = run_summary(quick, org, "shown")
    assert shown["output"] == [{"index": 0, "text": "".join(SHOWN), "reasoning": "hm"}]
    assert (shown["usage"]["output_text"], shown["usage"]["output_reasoning"]) == (4, 1)
    assert shown["usage"]["input_uncached"] > 0
    assert shown["cost_nano_usd"] > 0
    assert run_summary(quick, org, "silent")["usage"]["input_uncached"] > 0
    assert_gapless(quick, org)


def assert_gapless(config: Config, org: str) -> None:
    for topic in ("turnlog.runs", "turnlog.run-chunks", "turnlog.usage"):
        numbered = [
            (event.body["run"], event.body["writer_epoch"], event.body["seq"])
            for event in events(config, org, topic)
            if event.body["seq"] != LAST and event.type != "run.heartbeat"
        ]
        for _, found in groupby(sorted(numbered), key=lambda place: place[:2]):
            seqs = [seq for _, _, seq in found]
            assert seqs == list(range(len(seqs)))


def test_the_late_end_of_a_gateway_that_was_cut_off_supersedes(quick: Config) -> None:
    org = new_org("cut")
    with gateway(quick, org, "late") as process:
        ended(quick, org, "late")
        until(lambda: listed(quick, org, "late")[0] == "interrupted", "it is not in the table")
        go_on(process)
    until(lambda: listed(quick, org, "late") == ("completed", "measured"), "not superseded")
    until(lambda: sums(quick, org, "late") == USED | {"output_reasoning": 0}, "not taken back")
    used = events(quick, org, "turnlog.usage", "late")
    assert sorted((e.type, e.body["sign"], e.body["quality"]) for e in used) == [
        ("usage.corrected", -1, "estimated"),
        ("usage.recorded", 1, "estimated"),
        ("usage.recorded", 1, "measured"),
    ]
    assert_gapless(quick, org)
    assert_views_equal_the_fold(quick)


def assert_views_equal_the_fold(config: Config) -> None:
    def equal() -> bool:
        folded = fold_log(config)
        stored = {"runs": runs_sink.digest(config), "usage": usage_sink.digest(config)}
        return stored == {name: folded[name] for name in stored}

    until(equal, "the views differ from the fold")


def test_nobody_is_ended_while_the_finalizer_lags(quick: Config) -> None:
    org = new_org("lag")

    async def live(producer: Producer, run: Run) -> None:
        for turn in range(25):
            await beat(producer, run)
            if turn in (2, 15):
                os.kill(pid_of(quick, "finalizer"), (signal.SIGSTOP, signal.SIGCONT)[turn == 15])
            await asyncio.sleep(0.3)
        assert ends(quick, org, "alive") == []

    abandoned(quick, org, "alive", live)
    assert ended(quick, org, "alive").body["provisional"]


def test_a_restart_in_the_middle_changes_nothing(quick: Config) -> None:
    org = new_org("restart")

    async def live(producer: Producer, run: Run) -> None:
        row = f"/{org}/middle".encode()
        for _ in range(100):
            await beat(producer, run)
            await asyncio.sleep(0.2)
            rows = await asyncio.to_thread(lambda: list(read_all(quick, "turnlog.finalizer")))
            if any((message.key() or b"").endswith(row) for message in rows):
                break
        os.kill(pid_of(quick, "finalizer"), signal.SIGKILL)

    abandoned(quick, org, "middle", live)
    up(quick, ["finalizer"])
    assert ended(quick, org, "middle").body["output_chars"] == 5
    assert output_of(quick, org, "middle") == [{"index": 0, "text": "shown"}]
    said = "".join(log_tail(quick.home, "finalizer", lines=200))
    assert "1 open runs in its checkpoint" in said
    time.sleep(2)
    assert len(ends(quick, org, "middle")) == 1


def test_who_wakes_up_after_its_run_was_taken_over_is_fenced(quick: Config) -> None:
    org = new_org("fence")
    with gateway(quick, org, "fenced") as process:
        os.kill(process.pid, signal.SIGSTOP)
        take_over(quick, org, "fenced")
        process.send_signal(signal.SIGCONT)
        go_on(process)
    until(lambda: 2 in ended_epochs(quick, org, "fenced"), "nobody ended the new epoch")
    state = State()
    for event in events(quick, org, "turnlog.runs", "fenced"):
        state = fold(state, event, 0)
    assert (state.status, state.epoch) == ("interrupted", 2)
    assert ("run.completed", "lower_epoch") in [(r.type, r.reason) for r in state.refused]
    until(lambda: listed(quick, org, "fenced")[0] == "interrupted", "the lower epoch counts")


def take_over(config: Config, org: str, run: str) -> None:
    created = events(config, org, "turnlog.runs", run)[0].body

    async def claim() -> None:
        async with Producer.open(config, credential_of(config, org)) as producer:
            copied = {n: created[n] for n in ("org", "project", "run", "key_tree", "key_day")}
            body = {**copied, "key_gen": created["key_gen"], "writer_epoch": 2, "seq": 0}
            body |= {"previous_epoch": 1, "occurred_at_us": time.time_ns() // 1000}
            await producer.append("run.taken_over", body)

    asyncio.run(claim())


def test_other_content_under_one_seq_is_a_conflict_and_never_merged(quick: Config) -> None:
    org = new_org("conflict")

    async def forge(producer: Producer, run: Run) -> None:
        body = own(body_of(run, "chunk.batch", "1/0", seq=0, chars=6, chunks=1))
        content = {"chunks": [[1, 0, "text", "forged"]]}
        subject = Subject(org, "", "", run.run, "o")
        await producer.append("chunk.batch", body, content, subject, run.key_locator)

    abandoned(quick, org, "forged", forge)
    ended(quick, org, "forged")
    assert output_of(quick, org, "forged") == [{"index": 0, "text": "shown"}]
    letters = [letter for letter in dead_letters(quick) if letter.view == "finalizer"]
    assert [(letter.topic, letter.reason) for letter in letters] == [
        ("turnlog.run-chunks", "conflict: another batch has this seq")
    ]


def test_an_erased_run_ends_without_content(quick: Config) -> None:
    org = new_org("erased")

    async def erase(_: Producer, run: Run) -> None:
        await asyncio.to_thread(erase_run, quick, org, run.run, run.key_locator)

    abandoned(quick, org, "erased", erase)
    end = ended(quick, org, "erased")
    assert (end.body["frame"], end.body["output_chars"]) == (b"", 5)


def test_what_was_measured_before_is_not_estimated(quick: Config) -> None:
    org = new_org("measured")

    async def measure(producer: Producer, run: Run) -> None:
        used = own(body_of(run, "usage.recorded", "1/0", seq=0, quality="measured", **USED))
        await producer.append("usage.recorded", used)

    abandoned(quick, org, "counted", measure)
    ended(quick, org, "counted")
    assert len(events(quick, org, "turnlog.usage", "counted")) == 1
    assert sums(quick, org, "counted") == USED | {"output_reasoning": 0}


def test_a_run_whose_keys_cannot_be_read_waits_and_loses_nothing(quick: Config) -> None:
    org = new_org("keyless")
    number = partition_of(org.encode(), len(partitions_of(quick, KEYS)))
    lost: list[Message] = []

    async def lose(_: Producer, __: Run) -> None:
        lost.extend(await asyncio.to_thread(read_all_of, quick, org, number))
        await asyncio.to_thread(lose_pages, quick, org)

    abandoned(quick, org, "keyless", lose)
    alarm = "run keyless cannot be ended now"
    until(lambda: alarm in "".join(log_tail(quick.home, "finalizer", 50)), "no alarm")
    assert ends(quick, org, "keyless") == []
    producer = KafkaProducer(producer_settings(quick))
    for message in lost:
        producer.produce(KEYS, message.value(), message.key(), partition=number)
    assert producer.flush(30) == 0
    ended(quick, org, "keyless")
    assert output_of(quick, org, "keyless") == [{"index": 0, "text": "shown"}]


def read_all_of(config: Config, org: str, number: int) -> list[Message]:
    """Return the pages of an org's key trees."""
    page = re.compile(f"{org}/[0-9a-f]{{32}}/[0-9a-f]{{32}}".encode())
    return [m for m in read_all(config, KEYS, [number]) if page.fullmatch(m.key() or b"")]


def test_the_first_takeover_owns_the_epoch_and_the_second_is_a_conflict(quick: Config) -> None:
    org = new_org("claims")

    async def claimed_twice(_: Producer, run: Run) -> None:
        for _number in range(2):
            await asyncio.to_thread(take_over, quick, org, run.run)

    abandoned(quick, org, "claimed", claimed_twice)

    def refused() -> bool:
        mine = {m.key() for m in read(quick, "turnlog.runs", org)}
        letters = [m for m in read_all(quick, "turnlog.runs.dead") if m.key() in mine]
        return [decode(m.value() or b"").type for m in letters] == ["run.taken_over"]

    until(refused, "the second claim is not in the dead letters")
    until(lambda: 2 in ended_epochs(quick, org, "claimed"), "nobody ended the new epoch")


def test_two_finalizers_share_the_partitions_and_one_takes_over(quick: Config) -> None:
    org = new_org("two")
    create(quick, org)
    environment = workers.environment(quick, {}) | {"PATH": os.environ["PATH"]}
    command = [sys.executable, "-m", "streams", "finalizer"]
    with (
        (quick.home / "second.log").open("w") as log,
        subprocess.Popen(command, env=environment, stderr=log, cwd=ROOT) as second,
    ):
        try:
            until(lambda: "finalizer reads" in (quick.home / "second.log").read_text(), "idle")
            time.sleep(1)
            asyncio.run(leave(quick, org, "both", 6))
            for name in range(6):
                ended(quick, org, f"both_{name}")
        finally:
            second.kill()
    asyncio.run(leave(quick, org, "one", 6))
    for name in range(6):
        ended(quick, org, f"one_{name}")


async def leave(config: Config, org: str, name: str, count: int) -> None:
    """Leave runs open, in several partitions."""
    async with Producer.open(config, credential_of(config, org)) as producer:
        for number in range(count):
            await producer.run(org=org, run=f"{name}_{number}").__aenter__()
        producer._opened.clear()


def test_what_no_view_takes_for_a_run_stops_nobody(quick: Config) -> None:
    org = new_org("odd")
    good = record("run.created", run_body(org, "odd", user="usr", writer_epoch=1))
    write_raw(quick, good.topic, good.key, good.value.replace(b"usr", b"u/r"))

    async def nothing(_: Producer, __: Run) -> None: ...

    abandoned(quick, org, "good", nothing)
    ended(quick, org, "good")
    assert ends(quick, org, "odd") == []


def test_numbers_that_nobody_has_stop_nobody(quick: Config) -> None:
    """Chunks, epochs, costs and sizes that only another program writes."""
    org = new_org("vast")
    create(quick, org)
    own = {"writer_epoch": 1, "frame": b"", "content_mac": b""}
    vast = 2**63 - 1
    estimate: dict[str, Any] = {
        "event_id": estimate_id(org, "vast", 1),
        "quality": "estimated",
        "seq": LAST,
    }
    odd: list[tuple[str, dict[str, Any]]] = [
        ("chunk.batch", {"chars": vast}),
        ("chunk.batch", {"chars": vast, "seq": 1}),
        ("chunk.batch", {"chars": -1, "seq": 2}),
        ("run.heartbeat", {"writer_epoch": vast}),
        ("run.taken_over", {"writer_epoch": vast}),
        ("usage.recorded", estimate | {"provider_usage": {"a": "b" * 949_000}}),
        ("usage.recorded", estimate | {"cost_nano_usd": vast}),
        ("usage.recorded", {"quality": "measured"}),
    ]
    write(quick, [("run.created", run_body(org, "vast") | own)])
    for type_, fields in odd:
        kind = TYPES[type_]
        body = complete(kind, run_body(org, "vast") | own) | fields
        key = f"{org}/vast".encode()
        write_raw(quick, kind.topic, key, codec.write(kind, body))
    end = ended(quick, org, "vast").body
    assert (end["writer_epoch"], end["output_chars"]) == (1, 0)
    reasons = {item.reason for item in dead_letters(quick) if item.topic == "turnlog.run-chunks"}
    assert {UNCOUNTED, "the writer epoch is out of bounds"} <= reasons


def test_a_restart_over_a_foreign_row_goes_on(quick: Config) -> None:
    org = new_org("foreign")
    number = partition_of(f"{org}/found".encode(), 6)
    producer = KafkaProducer(producer_settings(quick))
    rows = [(b"foreign", b"\xff"), (b"%d" % number, b"[]"), (b"%d/a/b" % number, b"null")]
    for key, value in rows:
        producer.produce("turnlog.finalizer", value, key, partition=number)
    assert producer.flush(30) == 0
    os.kill(pid_of(quick, "finalizer"), signal.SIGKILL)
    up(quick, ["finalizer"])

    async def nothing(_: Producer, __: Run) -> None: ...

    abandoned(quick, org, "found", nothing)
    ended(quick, org, "found")
    found = [(m.key(), m.value()) for m in read_all(quick, "turnlog.finalizer.dead")]
    assert set(rows) - {rows[1]} <= set(found)


def test_a_run_without_a_key_ends_without_content(quick: Config) -> None:
    org = new_org("keys_of_nobody")
    create(quick, org)
    write(quick, [("run.created", run_body(org, "foreign", writer_epoch=1))])
    end = ended(quick, org, "foreign")
    assert (end.body["frame"], end.body["status"]) == (b"", "interrupted")
    (used,) = until(lambda: events(quick, org, "turnlog.usage", "foreign"), "no usage")
    assert used.body["quality"] == "unknown"


def test_a_run_that_is_over_is_not_ended_again(quick: Config) -> None:
    """Not for a stale row of a paused finalizer, nor for a beginning that was drained late."""
    org = new_org("over")

    async def complete(_: Producer, run: Run) -> None:
        await run.complete(usage=USED)

    async def nothing(_: Producer, __: Run) -> None: ...

    for run in ("stale", "again"):
        abandoned(quick, org, run, complete)
    begun = {decode(m.value() or b"").body["run"]: m for m in created_of(quick, org)}
    stale, again = begun["stale"], begun["again"]
    write_raw(quick, "turnlog.runs", again.key(), marked_may_repeat(again.value() or b""))
    producer = KafkaProducer(producer_settings(quick))
    number, offset = cast(int, stale.partition()), cast(int, stale.offset())
    row = OpenRun(offset, 1, stale.timestamp()[1]).row()
    producer.produce("turnlog.finalizer", row, f"{number}/{org}/stale", partition=number)
    assert producer.flush(30) == 0
    os.kill(pid_of(quick, "finalizer"), signal.SIGKILL)
    up(quick, ["finalizer"])
    for message in (stale, again):
        name = named_into(quick, org, cast(int, message.partition()))
        abandoned(quick, org, name, nothing)
        ended(quick, org, name)
    assert ends(quick, org, "stale") == ends(quick, org, "again") == []


def created_of(config: Config, org: str) -> list[Message]:
    found = read(config, "turnlog.runs", org)
    return [m for m in found if decode(m.value() or b"").type == "run.created"]


def named_into(config: Config, org: str, partition: int) -> str:
    """Return a new name for a run of a partition."""
    names = (f"orphan_{time.time_ns()}_{number}" for number in range(1000))
    return next(n for n in names if partition_of(f"{org}/{n}".encode(), 6) == partition)


def test_a_finalizer_killed_in_the_middle_ends_every_orphan_once(
    quick: Config, tmp_path: Path
) -> None:
    org = new_org("killed")
    create(quick, "local")
    create(quick, org)
    log = tmp_path / "feed.log"
    with start_feed(quick, log) as feed:
        asyncio.run(leave(quick, org, "early", 30))
        until(lambda: by_run(quick, org, "turnlog.runs", "run.interrupted"), "nobody ends them")
        # Their time comes in 3 s: whatever became of the early ones, these are still to be ended.
        asyncio.run(leave(quick, org, "late", 30))
        os.kill(pid_of(quick, "finalizer"), signal.SIGKILL)
        assert len(by_run(quick, org, "turnlog.runs", "run.interrupted")) < 60
        up(quick, ["finalizer"])
        log.with_suffix(".stop").touch()
        _, complaint = feed.communicate(timeout=PATIENCE_S)
        assert feed.returncode == 0, complaint
    once = {f"{name}_{number}": 1 for name in ("early", "late") for number in range(30)}
    until(lambda: by_run(quick, org, "turnlog.runs", "run.interrupted") == once, "not each once")
    assert by_run(quick, org, "turnlog.usage", "usage.recorded") == once
    assert_views_equal_the_fold(quick)
    status = {row["run"]: row["status"] for row in list_runs(quick, "local")}
    assert {status[run] for run in lines(log, "ack ended")} == {"completed"}


def by_run(config: Config, org: str, topic: str, type_: str) -> dict[str, int]:
    """How many different events of a type each run of an org has."""
    found = {
        (e.body["run"], e.body["event_id"]) for e in events(config, org, topic) if e.type == type_
    }
    return Counter(run for run, _ in found)
