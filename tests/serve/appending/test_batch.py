"""Batches: repeats, keys and durability, over a transport that keeps records and a real Redis."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import pytest
from redis.asyncio import Redis

from serve.appending import Answer, Appender, Scope
from serve.appending.batch import LINGER_S, Given
from serve.appending.known import Begun
from serve.appending.seen import Seen
from sinks.redis import connect_async
from tests.turnlog.producer.parts import ORG, TREE, KeepingTransport, Opened, make_grant
from turnlog.config import Config
from turnlog.errors import SpoolFull, Unavailable
from turnlog.ids import event_id, new_id
from turnlog.keys import Grant, Locator
from turnlog.keys.grant import Cover, DayGrant, OrgGrant, day_of, now_us
from turnlog.keys.tree import CoverNode
from turnlog.producer import Producer

END: dict[str, Any] = {"type": "run.completed", "writer_epoch": 1, "seq": 1}


class Process:
    """One process that appends: what it remembers by itself, and the Redis that it shares."""

    def __init__(self, config: Config, redis: Redis, held: Opened) -> None:
        self.transport = held.transport
        self.producer = held.producer
        self.appender = Appender.over(config, redis)
        self.known = self.appender.known

    async def append(self, *events: dict[str, Any]) -> list[Answer]:
        scope = Scope(ORG, "", ("default",), b"i" * 32, now_us())
        return await self.appender.append(self.producer, scope, [Given(event) for event in events])

    async def statuses(self, *events: dict[str, Any]) -> list[int]:
        return [answer.status for answer in await self.append(*events)]


@asynccontextmanager
async def opened(grant: Grant | None = None) -> AsyncIterator[Opened]:
    transport, held = KeepingTransport(), grant or make_grant(ORG)
    producer = Producer.over(held, transport)
    yield Opened(producer, transport, held)
    await producer.close()


@pytest.fixture
async def redis(stack: Config) -> AsyncIterator[Redis]:
    client = connect_async(stack, 0.5)
    yield client
    await client.aclose()


@pytest.fixture
async def process(stack: Config, redis: Redis) -> AsyncIterator[Process]:
    async with opened() as held:
        yield Process(stack, redis, held)


def turn(**fields: Any) -> dict[str, Any]:
    content = {"text": fields.pop("text", "Hello")}
    return {"type": "turn.appended", "conversation": new_id("talk"), "content": content, **fields}


def gone(config: Config) -> Redis:
    return connect_async(config.model_copy(update={"redis": "redis://127.0.0.1:1/0"}), 0.5)


async def test_no_answer_comes_before_the_event_is_durable(process: Process) -> None:
    process.transport.hold = True
    event = turn(id=new_id("id"))
    asked = [asyncio.create_task(process.append(event)) for _ in range(3)]
    await asyncio.sleep(0.2)
    assert not any(task.done() for task in asked)
    process.transport.release()
    found = sorted(answer.status for (answer,) in await asyncio.gather(*asked))
    assert found == [200, 200, 201]
    assert len(process.transport.kept) == 1


async def test_what_was_never_written_is_never_a_duplicate(process: Process) -> None:
    process.transport.refuse = SpoolFull("no room")
    event = turn(id=new_id("id"))
    first, repeated = await process.append(event, event)
    assert (first.status, first.outcome) == (503, "refused")
    assert (repeated.status, repeated.outcome) == (503, "refused")
    process.transport.refuse = None
    assert await process.statuses(event, event) == [201, 200]


async def test_a_caller_that_goes_away_leaves_no_mark_of_what_failed(process: Process) -> None:
    process.transport.hold = True
    event = turn(id=new_id("id"))
    asking = asyncio.create_task(process.append(event))
    await asyncio.sleep(0.1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    process.transport.refuse = Unavailable("lost")
    process.transport.release()
    process.transport.hold, process.transport.refuse = False, None
    assert await process.statuses(event) == [201]


async def test_another_process_tells_the_repeat(
    process: Process, stack: Config, redis: Redis
) -> None:
    event = turn(id=new_id("id"))
    assert await process.statuses(event) == [201]
    async with opened(process.producer.grant) as held:
        other = Process(stack, redis, held)
        again = await other.append(event, event | {"content": {"text": "else"}})
        assert [answer.outcome for answer in again] == ["duplicate", "conflict"]
        assert not held.transport.kept


@pytest.fixture
async def other(process: Process, stack: Config, redis: Redis) -> AsyncIterator[Process]:
    """A second process of the same org."""
    async with opened(process.producer.grant) as held:
        yield Process(stack, redis, held)


async def test_one_id_in_two_processes_at_once_is_one_event(
    process: Process, other: Process
) -> None:
    for _ in range(20):
        event = turn(id=new_id("id"))
        asked = [
            each.append(event | {"content": {"text": text}})
            for each, text in ((process, "a"), (other, "b"), (process, "c"), (other, "d"))
        ]
        answers = [answer for (answer,) in await asyncio.gather(*asked)]
        assert sorted(answer.status for answer in answers) == [201, 409, 409, 409]
    kept = [*process.transport.of("turn.appended"), *other.transport.of("turn.appended")]
    assert len(kept) == 20


async def being_written(process: Process, event: dict[str, Any]) -> "asyncio.Task[list[Answer]]":
    """Have an event's record held by the transport until it is released."""
    process.transport.hold = True
    task = asyncio.create_task(process.append(event))
    await asyncio.sleep(0.1)
    return task


async def test_another_process_waits_for_what_is_being_written(
    process: Process, other: Process
) -> None:
    event = turn(id=new_id("id"))
    first = await being_written(process, event)
    second = asyncio.create_task(other.append(event))
    await asyncio.sleep(0.2)
    assert not second.done()
    process.transport.release()
    assert [(await task)[0].outcome for task in (first, second)] == ["accepted", "duplicate"]
    assert not other.transport.kept


async def test_a_slow_writer_keeps_its_ids_and_others_are_told_to_come_again(
    process: Process, other: Process
) -> None:
    event = turn(id=new_id("id"))
    first = await being_written(process, event)
    (answer,) = await other.append(event)
    assert (answer.status, answer.outcome) == (503, "refused")
    process.transport.release()
    assert (await first)[0].status == 201
    assert await other.statuses(event) == [200]


async def test_the_ids_of_a_dead_writer_are_free_after_a_while_and_may_repeat(
    process: Process, redis: Redis
) -> None:
    event = turn(id=new_id("id"), time=now_us())
    await process.statuses(event)
    (body,) = process.transport.of("turn.appended")
    event["conversation"] = new_id("talk")
    seen, ids = Seen(redis), [dead_id(event["id"], event["conversation"])]
    assert body["event_id"] not in ids
    assert (await seen.reserve(ORG, ids, os.urandom(16))) is not None
    assert await process.statuses(event) == [201]
    body = process.transport.of("turn.appended")[-1]
    assert (body["event_id"], body["may_repeat"]) == (ids[0], True)
    assert await process.statuses(event) == [200]


async def test_what_failed_on_its_way_may_have_been_written_and_frees_its_id(
    process: Process, other: Process
) -> None:
    process.transport.hold = True
    event = turn(id=new_id("id"), time=now_us())
    asking = asyncio.create_task(process.append(event))
    await asyncio.sleep(0.1)
    process.transport.refuse = Unavailable("lost")
    process.transport.release()
    (answer,) = await asking
    assert (answer.status, answer.outcome) == (503, "refused")
    assert "may have been written" in answer.detail
    (again,) = await other.append(event)
    assert again.status == 201
    (body,) = other.transport.of("turn.appended")
    assert body["may_repeat"]


async def test_what_was_refused_before_it_was_written_frees_its_id(
    process: Process, other: Process
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise SpoolFull("no room")

    process.transport.send = refuse  # type: ignore[method-assign, assignment]
    event = turn(id=new_id("id"), time=now_us())
    (answer,) = await process.append(event)
    assert "may have been written" not in answer.detail
    assert await other.statuses(event) == [201]
    (body,) = other.transport.of("turn.appended")
    assert not body["may_repeat"]


async def test_the_rest_of_a_run_is_taken_when_its_beginning_is_a_repeat(
    process: Process, other: Process
) -> None:
    run = new_id("run")
    began = {"type": "run.created", "run": run, "writer_epoch": 1, "content": {"request": "x"}}
    end = END | {"run": run, "content": {"response": "x"}}
    assert await process.statuses(began) == [201]
    assert await other.statuses(began, end) == [200, 201]


def dead_id(id: str, conversation: str) -> bytes:
    return event_id(ORG, conversation, "turn.appended", id)


async def test_without_redis_events_are_accepted_and_say_that_they_may_repeat(
    process: Process, stack: Config
) -> None:
    silent = gone(stack)
    lost = Process(
        stack, silent, Opened(process.producer, process.transport, process.producer.grant)
    )
    now = {"time": now_us()}
    event = turn(id=new_id("id"), **now)
    assert await lost.statuses(event) == [201]
    await asyncio.sleep(LINGER_S + 0.1)
    assert await lost.statuses(event) == [201]
    assert [body["may_repeat"] for body in process.transport.of("turn.appended")] == [True, True]
    ids = {body["event_id"] for body in process.transport.of("turn.appended")}
    assert len(ids) == 1
    await silent.aclose()


async def test_only_what_redis_may_have_forgotten_says_that_it_may_repeat(
    process: Process,
) -> None:
    day_us = 24 * 3600 * 1_000_000
    events = [
        turn(id=new_id("id"), time=now_us()),
        turn(id=new_id("id"), time=now_us() - day_us),
        turn(id=new_id("id")),
        turn(),
    ]
    assert await process.statuses(*events) == [201] * 4
    marks = [body["may_repeat"] for body in process.transport.of("turn.appended")]
    assert marks == [False, True, True, False]


async def test_a_run_is_gone_on_with_in_another_process(
    process: Process, stack: Config, redis: Redis
) -> None:
    run = new_id("run")
    began = {"type": "run.created", "run": run, "writer_epoch": 1, "user": "u", "conversation": "c"}
    assert await process.statuses(began) == [201]
    async with opened(process.producer.grant) as held:
        other = Process(stack, redis, held)
        end = END | {"run": run, "content": {"response": "x"}}
        assert await other.statuses(end) == [201]
        (body,) = held.transport.of("run.completed")
    (first,) = process.transport.of("run.created")
    for name in ("user", "conversation", "key_tree", "key_day", "key_gen"):
        assert body[name] == first[name]


async def test_a_run_whose_key_was_destroyed_is_erased(stack: Config, redis: Redis) -> None:
    run = new_id("run")
    async with opened(punctured_grant()) as held:
        process = Process(stack, redis, held)
        locator = Locator(TREE, day_of(now_us()).day, 0)
        process.known.remember(ORG, run, Begun(locator, "default", "", "", ""))
        (answer,) = await process.append(END | {"run": run, "content": {"response": "x"}})
        assert (answer.status, answer.outcome) == (409, "erased")
        (answer,) = await process.append(turn())
        assert (answer.status, answer.outcome) == (409, "erased")
        assert not held.transport.kept


def punctured_grant() -> Grant:
    """A grant of today of which every key was destroyed."""
    now = now_us()
    day = day_of(now).day
    node = CoverNode(8, bytes([0]), os.urandom(32))
    granted = (DayGrant(TREE, day, 1, os.urandom(32), Cover([node])),)
    org = OrgGrant(ORG, b"i" * 32, {"default": {day_of(now): (TREE, day)}}, granted)
    return Grant([org], now, now + 10**12)
