"""Spans on a real stack: each call one run, each token once, in whatever order they come."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from itertools import permutations
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from serve.conversation_api import read_conversation
from serve.importer.found import Views
from serve.otel.writing import Outcome, Spans
from serve.runs_api import list_runs
from serve.views import wait_for
from sinks.clickhouse.client import ClickHouse
from sinks.clickhouse.queries import usage_by
from sinks.redis import connect_async
from tests.serve.otel.made import AT_US, payload, span, spans_of
from tests.serve.runs_written import erase_run
from turnlog import Producer
from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.keeper_client import create, credential_of

CHAT = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "openai",
    "gen_ai.response.model": "gpt-4o-mini",
}
LEAF = CHAT | {"gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 20}
VIEWS = ("runs", "usage", "conversations")


class Org(NamedTuple):
    config: Config
    name: str
    redis: Redis
    producer: Producer

    async def take(self, *given: Any, redis: Redis | None = None) -> list[Outcome]:
        spans = Spans(self.config, redis or self.redis, self.producer, self.name, "default")
        return await spans.take(spans_of(payload(*given)))

    async def used(self) -> dict[str, Any]:
        """Return the sums over all of the org's runs."""
        await self.settled()
        (row,) = usage_by(ClickHouse(self.config), self.name, ())
        return row

    async def settled(self) -> None:
        assert await asyncio.to_thread(wait_for, self.config, VIEWS, 60) == {}


@pytest.fixture
async def org(stack: Config) -> AsyncIterator[Org]:
    name = f"otel-{uuid4().hex[:12]}"
    create(stack, name)
    # Patiently: a stack that has just started has no tables yet.
    await asyncio.to_thread(Views(stack, name).runs, ["none"])
    redis = connect_async(stack)
    async with Producer.open(stack, credential_of(stack, name)) as producer:
        yield Org(stack, name, redis, producer)
    await redis.aclose()


def of(trace: str, given: Mapping[str, Any], number: int, parent: int = 0) -> dict[str, Any]:
    return span(given, number, parent, traceId=trace)


def outcomes(found: list[Outcome]) -> list[tuple[str, str]]:
    return [(one.outcome, one.reason) for one in found]


async def test_a_span_is_one_run_with_its_times_and_its_usage(org: Org) -> None:
    given = LEAF | {
        "gen_ai.conversation.id": "c1",
        "user.id": "ann@example.com",
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": "hello",
        "gen_ai.completion.0.content": "hi there",
        "gen_ai.response.time_to_first_chunk": 0.25,
    }
    first = await org.take(span(given), span({"db.system": "redis"}, 2), span({}, spanId="x"))
    assert outcomes(first) == [
        ("recorded", ""),
        ("not_recorded", "not_a_model_call"),
        ("rejected", "bad_span_id"),
    ]
    used = await org.used()
    assert (used["runs"], used["input_uncached"], used["output_text"]) == (1, 100, 20)
    assert used["cost_nano_usd"] == 27_000
    (run,) = list_runs(org.config, org.name)
    assert run["run"] == first[0].run
    assert (run["status"], run["started_at"][-8:], run["ended_at"][-8:]) == (
        "completed",
        ".000000Z",
        ".500000Z",
    )
    said = read_conversation(org.config, org.name, "c1")
    assert [(turn["role"], turn["text"]) for turn in said.turns] == [
        ("user", "hello"),
        ("assistant", "hi there"),
    ]


async def test_a_span_that_comes_again_adds_nothing_with_and_without_the_index(org: Org) -> None:
    assert outcomes(await org.take(span(LEAF), span(LEAF))) == [
        ("recorded", ""),
        ("duplicate", ""),
    ]
    assert outcomes(await org.take(span(LEAF))) == [("duplicate", "")]
    before = await org.used()
    # Redis lost it: the view of runs knows.
    await org.redis.delete(f"{{{org.name}}}/otlp/{span({})['traceId']}")
    assert outcomes(await org.take(span(LEAF))) == [("duplicate", "")]
    assert await org.used() == before


async def test_another_span_under_the_same_id_is_a_conflict(org: Org) -> None:
    other = span(LEAF | {"gen_ai.prompt.0.content": "other"})
    assert outcomes(await org.take(span(LEAF), other))[1] == ("rejected", "conflict")
    assert outcomes(await org.take(other)) == [("rejected", "conflict")]
    await org.settled()
    await org.redis.delete(f"{{{org.name}}}/otlp/{span({})['traceId']}")
    assert outcomes(await org.take(other)) == [("rejected", "conflict")]


async def test_a_call_within_calls_is_billed_once_in_every_order_of_requests(org: Org) -> None:
    traces = []
    for order in permutations(range(3)):
        trace = uuid4().hex
        spans = [
            of(trace, LEAF, 1),
            of(trace, {"openinference.span.kind": "CHAIN"}, 2, parent=1),
            of(trace, LEAF, 3, parent=2),
        ]
        for at in order:
            await org.take(spans[at])
        traces.append(spans)
    used = await org.used()
    assert (used["runs"], used["input_uncached"], used["output_text"]) == (12, 600, 120)
    # Again, all at once: the same events, which change nothing.
    await org.take(*(one for spans in traces for one in reversed(spans)))
    assert await org.used() == used


async def test_requests_at_the_same_time_bill_once(org: Org) -> None:
    for _ in range(5):
        trace = uuid4().hex
        await asyncio.gather(
            org.take(of(trace, LEAF, 1)),
            org.take(of(trace, LEAF, 2, parent=1)),
            org.take(of(trace, LEAF, 2, parent=1)),
        )
    used = await org.used()
    assert (used["runs"], used["input_uncached"]) == (10, 500)


async def test_wrappers_are_not_billed_and_siblings_all_are(org: Org) -> None:
    agent = {"gen_ai.operation.name": "invoke_agent", "gen_ai.usage.input_tokens": 200}
    found = await org.take(span(agent), span(LEAF, 2, parent=1), span(LEAF, 3, parent=1))
    assert outcomes(found) == [("not_recorded", "wrapper"), ("recorded", ""), ("recorded", "")]
    assert (await org.used())["input_uncached"] == 200


async def test_without_redis_what_lies_in_one_request_is_seen(org: Org) -> None:
    away = Redis.from_url("redis://127.0.0.1:1/0")
    await org.take(span(LEAF), span(LEAF, 2, parent=1), redis=away)
    await org.take(span(LEAF), span(LEAF, 2, parent=1), redis=away)
    assert (await org.used())["input_uncached"] == 100
    await away.aclose()


async def test_while_the_view_of_runs_is_away_nothing_is_taken(org: Org) -> None:
    nowhere = org.config.model_copy(update={"clickhouse": "http://127.0.0.1:1"})
    with pytest.raises(Unavailable):
        await org._replace(config=nowhere).take(span(LEAF))
    assert outcomes(await org.take(span(LEAF))) == [("recorded", "")]


async def test_turns_stand_in_the_order_of_their_times(org: Org) -> None:
    def said(text: str, number: int) -> dict[str, Any]:
        given = CHAT | {"session.id": "s", "gen_ai.prompt.0.content": text}
        start_ns = (AT_US + number * 1_000_000) * 1000
        return span(
            given | {"gen_ai.completion.0.content": f"re {text}"},
            number,
            startTimeUnixNano=str(start_ns),
            endTimeUnixNano=str(start_ns + 1000),
        )

    await org.take(said("two", 2))
    await org.take(said("one", 1), said("three", 3))
    await org.settled()
    found = read_conversation(org.config, org.name, "s")
    assert [turn["text"] for turn in found.turns] == [
        "one", "re one", "two", "re two", "three", "re three",
    ]  # fmt: skip


async def test_content_that_fits_no_frame_costs_no_usage(org: Org) -> None:
    noise = "".join(uuid4().hex for _ in range(60_000))
    found = await org.take(span(LEAF | {"gen_ai.prompt.0.content": noise}))
    assert outcomes(found) == [("recorded", "content_too_large")]
    assert (await org.used())["input_uncached"] == 100
    assert outcomes(await org.take(span(LEAF | {"gen_ai.prompt.0.content": noise}))) == [
        ("duplicate", "")
    ]


async def test_a_span_whose_key_was_erased_is_not_written_again(org: Org) -> None:
    (first,) = await org.take(span(LEAF))
    await org.settled()
    (known,) = Views(org.config, org.name).runs([first.run]).values()
    erase_run(org.config, org.name, first.run, known.locator)
    await org.redis.delete(f"{{{org.name}}}/otlp/{first.trace}")
    # A producer keeps its grant for a day: the one of tomorrow knows.
    async with Producer.open(org.config, credential_of(org.config, org.name)) as later:
        found = await org._replace(producer=later).take(span(LEAF))
    assert outcomes(found) == [("rejected", "erased")]
