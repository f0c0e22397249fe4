"""10. A run has one locator: what says otherwise is never read under a second key."""

import asyncio
import uuid
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from replay.fold import fold_log
from serve.runs_api import find_run, run_content
from serve.views import wait_for
from streams import runs_sink
from streams.dead import dead_letters
from tests.streams.test_keeper_minting import Org
from tests.turnlog.producer.parts import KeepingTransport
from turnlog import Producer
from turnlog.config import Config
from turnlog.events import decode
from turnlog.ids import event_id
from turnlog.kafka import read_all
from turnlog.keeper_client import create, credential_of
from turnlog.keys import Grant, Locator, Subject
from turnlog.producer.fields import RunFields

OTHERS = ("user", "conversation", "tree", "day", "generation")


class Said(NamedTuple):
    """An event of a run, under whose ids and locator it says that it is."""

    type: str
    epoch: int
    content: dict[str, Any]
    user: str
    conversation: str
    locator: Locator


@pytest.fixture(scope="module")
def org(stack: Config) -> str:
    """An org with a run for each way of saying something else, before and after its own end."""
    name = f"onekey_{uuid.uuid4().hex[:8]}"
    for project in ("default", "other"):
        create(stack, name, project)
    asyncio.run(write_all(stack, name))
    assert wait_for(stack, ["runs", "packs", "locator"], 120) == {}
    return name


async def write_all(config: Config, org: str) -> None:
    async with Producer.open(config, credential_of(config, org)) as producer:
        own = begin(producer.grant, org, "default")
        for other in OTHERS:
            stray = said_otherwise(producer.grant, org, own, other)
            request = Said("run.created", 1, {"request": b"asked"}, "ann", "", own)
            answer = Said("run.completed", 1, {"response": b"answered"}, "ann", "", own)
            await write(producer, org, f"open_{other}", [request, stray])
            await write(producer, org, f"ended_{other}", [request, answer, stray])
            again = stray._replace(type="run.created", content={"request": b"stray"})
            await write(producer, org, f"twice_{other}", [request, again, answer])


def begin(grant: Grant, org: str, project: str) -> Locator:
    ids = {"user": "ann", "conversation": "", "subject_id": "any", "kind": "o"}
    return grant.begin(org, project, **ids)


def said_otherwise(grant: Grant, org: str, own: Locator, other: str) -> Said:
    """Return an end that a later epoch wrote, so that it would win if it were the run's."""
    [granted] = grant.to_json()["orgs"]
    days = {(bytes.fromhex(day["tree"]), day["day"]) for day in granted["days"] if day["cover"]}
    tomorrow = next(day for day in sorted(days) if day[1] != own.day)
    stray = Said("run.completed", 2, {"response": b"stray"}, "ann", "", own)
    return {
        "user": stray._replace(user="ben"),
        "conversation": stray._replace(conversation="talk"),
        "tree": stray._replace(locator=begin(grant, org, "other")),
        "day": stray._replace(locator=Locator(*tomorrow, 0)),
        "generation": stray._replace(locator=own._replace(gen=1)),
    }[other]


async def write(producer: Producer, org: str, run: str, events: list[Said]) -> None:
    for at, said in enumerate(events):
        body: dict[str, Any] = {
            "org": org, "project": "default", "run": run, "user": said.user,
            "conversation": said.conversation, "writer_epoch": said.epoch, "seq": at,
            "occurred_at_us": 1_760_000_000_000_000 + at,
            "event_id": event_id(org, run, said.type, f"{said.epoch}/{at}"),
        }  # fmt: skip
        if said.type != "run.created":
            body["status"] = "completed"
        kind = "q" if said.type == "run.created" else "o"
        subject = Subject(org, said.user, said.conversation, run, kind)
        await producer.append(said.type, body, said.content, subject, said.locator)


@pytest.mark.parametrize("other", OTHERS)
def test_10_an_end_that_says_otherwise_does_not_end_the_run(
    stack: Config, org: str, other: str
) -> None:
    found = find_run(stack, org, f"open_{other}")
    assert (found.row["status"], found.row["conversation"]) == ("running", None)
    assert not found.response.has_content


@pytest.mark.parametrize("other", OTHERS)
def test_10_the_runs_own_end_is_read_whatever_came_later(
    stack: Config, org: str, other: str
) -> None:
    assert find_run(stack, org, f"ended_{other}").row["conversation"] is None
    assert run_content(stack, org, f"ended_{other}", "response") == b"answered"
    assert run_content(stack, org, f"ended_{other}", "request") == b"asked"


@pytest.mark.parametrize("other", [name for name in OTHERS if name != "conversation"])
def test_10_of_two_beginnings_the_first_wins(stack: Config, org: str, other: str) -> None:
    assert run_content(stack, org, f"twice_{other}", "request") == b"asked"
    assert run_content(stack, org, f"twice_{other}", "response") == b"answered"


@pytest.mark.parametrize("other", [name for name in OTHERS if name != "conversation"])
def test_10_what_says_otherwise_is_a_dead_letter(stack: Config, org: str, other: str) -> None:
    """One of another conversation is the first of the run in another partition."""
    offsets = {
        (message.partition(), message.offset())
        for message in read_all(stack, "turnlog.runs")
        for body in [decode(message.value() or b"").body]
        if (body["org"], body["run"], body["writer_epoch"]) == (org, f"ended_{other}", 2)
    }
    letters = [letter for letter in dead_letters(stack) if letter.view == "runs"]
    found = [x for x in letters if (x.partition, x.offset) in offsets]
    assert len(offsets) == 1
    assert [letter.reason.partition(":")[0] for letter in found] == ["conflict"]


def test_10_the_views_hold_what_a_fold_of_the_log_holds(stack: Config, org: str) -> None:
    assert wait_for(stack, ["runs"], 120) == {}
    assert runs_sink.digest(stack) == fold_log(stack)["runs"]


async def test_10_a_run_over_midnight_of_a_months_end_has_one_locator(tmp_path: Path) -> None:
    org = Org(tmp_path)
    org.mint(date(2026, 11, 20))
    clock = [int(datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC).timestamp()) * 1_000_000]
    issued = clock[0]
    grant = Grant(
        [org.grant(date(2026, 11, 30))],
        issued,
        issued + 3_600_000_000,
        clock_us=lambda: clock[0],
    )
    transport = KeepingTransport()
    fields: RunFields = {
        "org": "acme", "project": "support", "run": "late", "provider": "openai", "model": "m",
        "request": {"messages": []}, "conversation": "talk", "input": "hello",
    }  # fmt: skip
    producer = Producer.over(grant, transport)
    async with producer.run(**fields) as run:
        clock[0] += 2_000_000
        run.chunk("after midnight")
        await run.complete(response=b"{}", usage={"output_text": 1}, finish_reason="stop")
    async with producer.run(**fields | {"run": "early"}) as run:
        await run.complete(response=b"{}", usage={"output_text": 1}, finish_reason="stop")
    tree = {month: org.book.tree_of(*found).tree for month, found in months(org)}
    assert places(transport, "late") == {(tree["2026-11"], 30, 0)}
    assert places(transport, "early") == {(tree["2026-12"], 1, 0)}


def months(org: Org) -> list[tuple[str, Any]]:
    [project] = org.state.projects("acme")
    return [(month, (project, month)) for month in org.state.months(project)]


def places(transport: KeepingTransport, run: str) -> set[tuple[bytes, int, int]]:
    bodies = [kept.body for kept in transport.kept if kept.body.get("run") == run]
    assert len(bodies) > 3
    return {(body["key_tree"], body["key_day"], body["key_gen"]) for body in bodies if run}
