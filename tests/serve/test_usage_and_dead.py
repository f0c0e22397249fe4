"""`turnlog usage` and `turnlog dead` as a user calls them."""

import asyncio
import json
import sys
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

from processors.usage import CLASSES
from serve.cli import main
from serve.cli.usage import _honest, usd
from serve.cli.views import _compared
from serve.views import wait_for
from sinks.clickhouse.client import ClickHouse
from sinks.clickhouse.queries import usage_by
from streams.conversations import HEADS_CHANGELOG
from tests.serve.cli.terminal import at_terminal
from tests.serve.runs_written import used, write_runs
from turnlog import Producer as TurnlogProducer
from turnlog.config import Config
from turnlog.events import encode
from turnlog.kafka import producer_settings
from turnlog.keeper_client import credential_path

RUNS = {
    "one": [used(provider="openai", model="gpt", output_text=3, cost_nano_usd=1_200_000_007)],
    "two": [used(provider="openai", model="gpt", output_text=4, input_uncached=1)],
    "three": [used(provider="anthropic", model="opus", quality="unknown", reason="no_usage")],
}


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Turnlog = Callable[..., Done]


@pytest.fixture
def turnlog(
    stack: Config, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Turnlog:
    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["turnlog", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(int(ended.value.code or 0), *capfd.readouterr())

    return run


@pytest.fixture(scope="module")
def org(stack: Config) -> str:
    name = f"usage_{uuid.uuid4().hex[:8]}"
    write_runs(stack, name, RUNS)
    assert wait_for(stack, ["usage"], 120) == {}
    return name


def test_usage_by_provider_and_model_costliest_first(turnlog: Turnlog, org: str) -> None:
    done = turnlog("usage", "--org", org, "--by", "provider,model", "--json")
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    rest = dict.fromkeys(CLASSES, 0)
    assert first == rest | {
        "provider": "openai",
        "model": "gpt",
        "runs": 2,
        "output_text": 7,
        "input_uncached": 1,
        "cost_nano_usd": 1_200_000_007,
        "unknown": 0,
        "unpriced": 1,
    }
    assert second == rest | {
        "provider": "anthropic",
        "model": "opus",
        "runs": 1,
        "cost_nano_usd": 0,
        "unknown": 1,
        "unpriced": 0,
    }


def test_a_producer_takes_its_credential_file_as_text(stack: Config, org: str) -> None:
    async def grant() -> tuple[str, ...]:
        async with TurnlogProducer.open(stack, str(credential_path(stack, org))) as producer:
            return tuple(producer.grant.projects(org))

    assert asyncio.run(grant()) == ("default",)


def test_usage_of_a_time_begins_at_since_and_ends_before_until(
    turnlog: Turnlog, stack: Config, org: str
) -> None:
    clickhouse = ClickHouse(stack)
    instants = clickhouse.stream(
        "SELECT DISTINCT toUnixTimestamp64Micro(effective_at) AS at FROM "
        f"{clickhouse.database}.usage WHERE org = {{org:String}} ORDER BY at",
        {"org": org},
    )
    first, *_, last = [int(at) for (at,) in instants]

    def runs(since_us: int | None = None, until_us: int | None = None) -> int:
        (row,) = usage_by(clickhouse, org, (), since_us=since_us, until_us=until_us)
        return int(row["runs"])

    assert runs(since_us=first, until_us=last + 1) == 3
    assert runs(since_us=first + 1) == runs(until_us=last) == 2
    assert runs(until_us=first) == runs(since_us=last + 1) == 0
    day = datetime.fromtimestamp(last // 1_000_000, UTC).date()
    ask = "usage", "--org", org, "--by", "provider", "--json"
    assert len(turnlog(*ask, "--since", f"{day - timedelta(1)}").stdout.splitlines()) == 2
    assert turnlog(*ask, "--since", f"{day + timedelta(1)}").stdout == ""
    wrong = turnlog(*ask, "--since", f"{day}", "--until", f"{day}T00:00:00Z")
    assert (wrong.returncode, "--since must lie before" in wrong.stderr) == (2, True)


def test_usage_for_people_shows_dollars(turnlog: Turnlog, org: str) -> None:
    done = turnlog("usage", "--org", org, "--by", "provider")
    assert done.returncode == 0
    assert "openai" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--by", "provider,colour"), "'colour'"),
        (("--by", "model,model"), "twice"),
        (("--by", "event_id); DROP TABLE usage"), "--by knows"),
    ],
)
def test_a_column_that_is_none_is_a_mistake(
    turnlog: Turnlog, org: str, arguments: tuple[str, ...], said: str
) -> None:
    done = turnlog("usage", "--org", org, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["nobody", "not an id"])
def test_usage_of_an_org_without_a_credential_here(turnlog: Turnlog, name: str) -> None:
    done = turnlog("usage", "--org", name, "--json")
    assert (done.returncode, done.stdout) == (2, "")


def test_a_person_sees_a_total_below_the_groups(stack: Config, org: str) -> None:
    code, lines = at_terminal(
        stack.home, 200, "-m", "serve", "usage", "--org", org, "--by", "model"
    )
    assert code == 0
    total = dict(zip(lines[0].split(), lines[-1].split(), strict=True))
    assert (total["model"], total["runs"], total["output_text"]) == ("total", "3", "7")
    assert total["cost_usd"] == "1.200000007"


def test_usage_of_no_run_is_shown_with_its_tokens() -> None:
    row = dict.fromkeys(CLASSES, 0) | {"runs": 0, "unknown": 0, "unpriced": 0, "output_text": 5}
    shown = _honest({**row, "cost_nano_usd": 7}, ["output_text"])
    assert (shown["output_text"], shown["cost_usd"]) == (5, "0.000000007")


def test_dollars_are_exact_text() -> None:
    assert usd(0) == "0.000000000"
    assert usd(1_200_000_007) == "1.200000007"
    assert usd(-1) == "-0.000000001"
    assert usd(12_345_678_901_234_567_890) == "12345678901.234567890"


def test_dead_lists_what_a_view_refused_without_its_content(
    stack: Config, turnlog: Turnlog
) -> None:
    key = f"dead_{uuid.uuid4().hex[:8]}/c"
    producer = Producer(producer_settings(stack))
    producer.produce("turnlog.usage", b"SECRET", key, partition=1)
    assert producer.flush(30) == 0
    assert wait_for(stack, ["usage"], 60) == {}
    listed = turnlog("dead", "--view", "usage", "--json")
    found = [json.loads(line) for line in listed.stdout.splitlines()]
    assert {"usage", "turnlog.usage", 1, "the value is not in Avro single-object encoding", 6} in [
        {row["view"], row["topic"], row["partition"], row["reason"], row["bytes"]} for row in found
    ]
    for done in (listed, turnlog("dead")):
        assert done.returncode == 0
        assert "SECRET" not in done.stdout + done.stderr
    assert turnlog("dead", "--view", "nothing").stdout == "no dead letters\n"


def test_dead_lists_what_the_fold_refused(stack: Config, turnlog: Turnlog) -> None:
    org = f"refused_{uuid.uuid4().hex[:8]}"
    about = {"org": org, "conversation": "c", "turn": "t", "occurred_at_us": 1}
    refused = {"refused_type": "turn.appended", "refused_topic": "turnlog.turns"}
    place = {"refused_partition": 2, "refused_offset": 7, "reason": "conflict"}
    body = {**about, "event_id": uuid.uuid4().bytes, **refused, **place}
    producer = Producer(producer_settings(stack))
    for _ in range(2):
        producer.produce("turnlog.refusals", encode("append.refused", body), f"{org}/c")
    assert producer.flush(30) == 0
    shown = turnlog("dead", "--view", "conversations", "--json")
    [row] = [row for row in map(json.loads, shown.stdout.splitlines()) if row.get("org") == org]
    assert (row["topic"], row["partition"], row["offset"]) == ("turnlog.turns", 2, 7)
    assert (row["reason"], row["type"], row["turn"]) == ("conflict", "turn.appended", "t")
    lines = turnlog("dead").stdout.splitlines()
    assert "Refused by the fold of conversations:" in lines
    assert [line.split()[-1] for line in lines if line.startswith(org)] == ["conflict"]


def test_a_dead_letter_that_somebody_forged_is_shown_and_not_obeyed(
    stack: Config, turnlog: Turnlog
) -> None:
    view = f"forged_{uuid.uuid4().hex[:8]}\x1b[2J[/red]"
    headers: list[tuple[str, str | bytes | None]] = [
        ("dlq-view", view.encode()),
        ("dlq-topic", b"turnlog.usage\n"),
        ("dlq-partition", "\u0664\u00b2".encode()),
        ("dlq-reason", b"\x1b]0;owned\x07\xff\xc0 \xe2\x80\xaedone"),
    ]
    producer = Producer(producer_settings(stack))
    producer.produce("turnlog.usage.dead", b"SECRET", b"\xff/c", headers=headers)
    assert producer.flush(30) == 0
    done = turnlog("dead", "--view", view)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(line.isprintable() for line in done.stdout.splitlines())
    for shown in (r"\x1b[2J[/red]", r"turnlog.usage\n", r"\x1b]0;owned\x07\ufffd\ufffd"):
        assert shown in done.stdout.replace("\ufffd", r"\ufffd")
    [row] = map(json.loads, turnlog("dead", "--view", view, "--json").stdout.splitlines())
    assert (row["view"], row["partition"]) == (view, -1)
    assert turnlog("status").returncode == 0


def test_a_view_that_cannot_be_read_is_named_and_the_others_are_read(
    stack: Config, turnlog: Turnlog
) -> None:
    key = f"{uuid.uuid4().hex}/c".encode()
    producer = Producer(producer_settings(stack))

    def write(value: bytes | None) -> None:
        producer.produce(HEADS_CHANGELOG, value, key, partition=0)
        assert producer.flush(30) == 0

    write(b"\x01garbage")
    try:
        done = turnlog("digest", "--json")
    finally:
        write(None)
    assert done.returncode == 1
    rows = {row["view"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert rows.pop("conversations")["digest"] is None
    assert len(rows) == 4 and all(len(row["digest"]) == 64 for row in rows.values())
    assert done.stderr.startswith("turnlog: view conversations is unreadable in turnlog-conv")
    assert done.stderr.count("\n") == 1


def test_a_digest_of_the_log_is_compared_with_the_views(stack: Config, turnlog: Turnlog) -> None:
    assert wait_for(stack, ["usage"], 60) == {}
    done = turnlog("digest", "usage", "--fold", "--json")
    [row] = map(json.loads, done.stdout.splitlines())
    assert (done.returncode, row["view"], row["state"]) == (0, "usage", "ok")


def test_a_view_that_holds_something_else_differs(stack: Config) -> None:
    stored = [({"view": "usage", "events": 1, "digest": "0" * 64}, "")]
    [row] = _compared(stack, stored)
    assert row["state"] == "differs"
