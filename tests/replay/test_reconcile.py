"""Producers, log and views against each other, on a stack that is damaged on purpose."""

import asyncio
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from bench.chaos.producer import gateway
from replay.reconcile import Report, as_json
from serve.cli.reconcile import run as compare
from sinks.clickhouse.client import ClickHouse
from tests.conftest import running_stack
from tests.serve.runs_written import created, ended, used, write_runs
from tests.streams.log import new_org, write, write_raw
from tests.turnlog.spool.test_damage import flip
from turnlog.config import Config
from turnlog.events import record
from turnlog.ids import event_id
from turnlog.kafka import client_settings
from turnlog.keeper_client import create
from turnlog.spool import Spool, Spooled

RUNS = {f"r{n}": [created(), ended("completed"), used(output_text=n)] for n in range(6)}


@pytest.fixture(scope="module")
def damaged() -> Iterator[Config]:
    with running_stack() as config:
        yield config


def reconciled(config: Config, org: str) -> Report:
    outcome = compare(config, org, 120)
    assert outcome.behind == {}
    return outcome.report


def usage(org: str, seq: int, run: str = "r", **more: Any) -> tuple[str, dict[str, Any]]:
    body = {
        "org": org, "run": run, "event_id": event_id(org, run, "usage.recorded", str(seq)),
        "occurred_at_us": time.time_ns() // 1000, "writer_epoch": 1, "seq": seq, "sign": 1,
        "producer_id": f"producer_{org}", "producer_epoch": 1, "producer_seq": seq,
    }  # fmt: skip
    return "usage.recorded", body | more


def mark(
    org: str, partition: int, acked_seq: int, closed: bool = True
) -> tuple[str, dict[str, Any]]:
    body = {
        "org": "", "event_id": event_id("", org, "ledger.mark", str(acked_seq)),
        "occurred_at_us": time.time_ns() // 1000, "topic": "turnlog.usage",
        "producer_id": f"producer_{org}", "producer_epoch": 1, "partition": partition,
        "acked_seq": acked_seq, "closed": True,
    }  # fmt: skip
    return "ledger.mark", body


def test_a_clean_system_is_clean(damaged: Config) -> None:
    org = new_org("clean")
    write_runs(damaged, org, RUNS)
    report = reconciled(damaged, org)
    assert report.ok
    assert (report.missing, report.doubles, report.again) == ([], [], [])
    assert (report.numbers.holes, report.numbers.tails) == ([], [])
    assert report.numbers.sent == report.numbers.in_log == 18
    events = {name: sums.events for name, sums in report.views.items()}
    assert events == {"conversations": 0, "runs": 12, "usage": 6, "packs": 18, "locator": 18}


def test_a_row_that_is_gone_is_named(damaged: Config) -> None:
    org = new_org("gone")
    write_runs(damaged, org, RUNS)
    assert reconciled(damaged, org).ok
    ClickHouse(damaged).command(
        "ALTER TABLE turnlog.usage DELETE WHERE org = {org:String} AND run = 'r3' "
        "SETTINGS mutations_sync = 1",
        {"org": org},
    )
    report = reconciled(damaged, org)
    assert not report.ok
    [missing] = report.missing
    assert (missing.view, missing.topic, missing.extra) == ("usage", "turnlog.usage", False)
    assert report.views["usage"].missing == 1
    assert sum(view.missing for view in report.views.values()) == 1


def test_a_row_that_is_there_twice_is_named(damaged: Config) -> None:
    org = new_org("twice")
    write_runs(damaged, org, RUNS)
    assert reconciled(damaged, org).ok
    ClickHouse(damaged).command(
        "INSERT INTO turnlog.locator SELECT * FROM turnlog.locator "
        "WHERE org = {org:String} AND run = 'r3' AND type = 'run.created'",
        {"org": org},
    )
    report = reconciled(damaged, org)
    assert not report.ok
    [(view, double)] = report.doubles
    assert (view, double.topic, double.times) == ("locator", "turnlog.runs", 2)
    assert report.views["locator"].duplicates == 1


def test_a_row_of_which_the_log_knows_nothing_is_named(damaged: Config) -> None:
    org = new_org("extra")
    write_runs(damaged, org, RUNS)
    assert reconciled(damaged, org).ok
    ClickHouse(damaged).command(
        "INSERT INTO turnlog.locator SELECT * REPLACE (unhex(repeat('ab', 16)) AS event_id) "
        "FROM turnlog.locator WHERE org = {org:String} AND run = 'r3' AND type = 'run.created'",
        {"org": org},
    )
    report = reconciled(damaged, org)
    assert not report.ok
    assert report.views["locator"].extra == 1
    assert [missing.event_id for missing in report.missing] == [b"\xab" * 16]


def test_a_number_that_was_acknowledged_and_is_not_there_is_a_gap(damaged: Config) -> None:
    org = new_org("hole")
    create(damaged, org)
    placed = write(damaged, [usage(org, seq) for seq in (0, 1, 3, 4)])
    write(damaged, [mark(org, placed[0][1], 4)])
    report = reconciled(damaged, org)
    assert not report.ok
    [hole] = report.numbers.holes
    assert (hole.lane.producer, hole.first, hole.last) == (f"producer_{org}", 2, 2)
    assert (report.numbers.sent, report.numbers.in_log) == (5, 4)


def test_an_event_twice_in_the_log_is_listed_and_harmless(damaged: Config) -> None:
    org = new_org("dup")
    create(damaged, org)
    placed = write(damaged, [usage(org, 0), usage(org, 1), usage(org, 0, may_repeat=True)])
    write(damaged, [mark(org, placed[0][1], 1)])
    report = reconciled(damaged, org)
    assert report.ok
    [again] = report.again
    assert again.same
    assert [place.offset for place in again.places] == [placed[0][2], placed[2][2]]
    assert (report.views["usage"].events, report.views["usage"].repeats) == (2, 1)
    assert report.repeats == 1


def test_another_event_under_the_same_number_is_a_conflict(damaged: Config) -> None:
    org = new_org("conflict")
    create(damaged, org)
    other = usage(org, 1, producer_seq=0)
    placed = write(damaged, [usage(org, 0), other])
    write(damaged, [mark(org, placed[0][1], 0)])
    report = reconciled(damaged, org)
    assert not report.ok
    [conflict] = report.conflicts
    assert [place.offset for place in conflict.places] == [placed[0][2], placed[1][2]]


def test_a_refused_record_is_listed_with_its_reason_and_is_not_missing(damaged: Config) -> None:
    write_raw(damaged, "turnlog.usage", b"acme/x", b"no event")
    report = compare(damaged, "", 120).report
    assert {found.view for found in report.refused if found.topic == "turnlog.usage"} == {
        "usage", "packs", "locator",
    }  # fmt: skip
    assert all(found.reason for found in report.refused)
    assert not [missing for missing in report.missing if missing.event_id == b""]


def test_the_tail_of_a_killed_producer_is_unknown_and_not_zero(
    damaged: Config, tmp_path: Path
) -> None:
    org = new_org("killed")
    create(damaged, org)
    with gateway(damaged, org, tmp_path, 0, 1) as running:
        running.kill()
    report = reconciled(damaged, org)
    assert report.ok
    assert report.numbers.tails
    assert {tail.lane.topic for tail in report.numbers.tails} >= {"turnlog.runs"}


async def test_what_the_spool_could_not_read_is_a_gap_until_its_number_arrives(
    damaged: Config,
) -> None:
    org = new_org("bits")
    create(damaged, org)
    partition = write(damaged, [usage(org, seq) for seq in (0, 2)])[0][1]
    spool = damaged.spool_folder
    one = await Spool.open(spool, f"producer_{org}")
    for seq in (1, 3):
        value = record(*usage(org, seq)).value
        await one.append("usage", Spooled("turnlog.usage", partition, b"a/r", value, [], seq, 1))
    await one.close()
    [segment] = (spool / f"producer_{org}").glob("*.seg")
    for at in (40, segment.stat().st_size // 2 + 9):
        flip(segment, at)
    await (await Spool.open(spool, f"heir_{org}")).close()
    report = await asyncio.to_thread(reconciled, damaged, org)
    assert not report.ok
    assert [(hole.lane.partition, hole.first, hole.last) for hole in report.numbers.holes] == [
        (partition, 1, 1),
        (partition, 3, 3),
    ]
    assert {row["state"] for row in as_json(report)["unknown"]} == {"gone"}
    write(damaged, [usage(org, seq) for seq in (1, 3)])
    assert (await asyncio.to_thread(reconciled, damaged, org)).ok
    shutil.rmtree(spool / "damaged" / f"producer_{org}")


def test_what_kafka_has_forgotten_is_taken_from_the_packs(damaged: Config) -> None:
    org = new_org("old")
    write_runs(damaged, org, RUNS)
    before = reconciled(damaged, org)
    assert before.ok
    forget(damaged, "turnlog.usage")
    report = reconciled(damaged, org)
    assert report.ok
    assert (report.numbers, report.views) == (before.numbers, before.views)
    ClickHouse(damaged).command(
        "ALTER TABLE turnlog.usage DELETE WHERE org = {org:String} AND run = 'r2' "
        "SETTINGS mutations_sync = 1",
        {"org": org},
    )
    assert [missing.view for missing in reconciled(damaged, org).missing] == ["usage"]


def forget(config: Config, topic: str) -> None:
    """Have Kafka delete everything that a topic holds now."""
    admin = AdminClient(client_settings(config))
    wanted = [TopicPartition(topic, number, -1) for number in range(config.partitions)]
    for future in admin.delete_records(wanted).values():
        future.result(30)
