"""Whatever a caller passes, wherever: taken or refused by an error of ours, and neighbours live."""

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.turnlog.producer.parts import ORG, Opened, later_ns, producer_in_memory
from turnlog.errors import TurnlogError
from turnlog.keys import Subject
from turnlog.producer import Run, RunFields
from turnlog.producer.turns import TurnFields
from turnlog.providers import CLASSES


class Text(str):
    """A str that is not exactly one."""


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


class Unsayable(Exception):
    """An error that cannot even be printed."""

    def __str__(self) -> str:
        raise ValueError("no text")


VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 2**31, 2**63, 2**70, -(2**70), 1.5, math.nan, math.inf,
    "", "x", "\0", "\ud800", "🙂", "x" * 70_000, Text("text"), b"", b"x", bytearray(b"x"),
    memoryview(b"x"), [], [1], (), {}, {"a": 1}, {1: 2}, {"a": object()}, {"\ud800": "a"},
    {"a": 2**70}, {"a": math.nan}, nested(2000), object(), {1}, len, ValueError, ValueError("boom"),
    Unsayable(),
)  # fmt: skip
ENDS = {
    "complete": ("response", "usage", "finish_reason", "model", "http_status"),
    "fail": ("error", "error_code", "http_status", "response", "usage", "model"),
    "cancel": ("response", "usage"),
    "interrupt": ("response", "usage"),
}


async def begun(opened: Opened) -> Run:
    return await opened.producer.run(org=ORG, request=b"{}").__aenter__()


async def whole(opened: Opened, run: Run) -> None:
    """The ticker passes over all runs, and this one ends as it should."""
    run.chunk("whole")
    for each in tuple(opened.producer._opened):
        each.tick(later_ns(1))
    await run.complete(b"{}")
    ends = [body for body in opened.transport.of("run.completed") if body["run"] == run.run]
    assert [end["output_chars"] for end in ends] == [5]


async def each_value(
    call: Callable[[Opened, Any], Awaitable[object]], values: tuple[Any, ...] = VALUES
) -> None:
    async with producer_in_memory() as opened:
        neighbour = await begun(opened)
        for value in values:
            with suppress(TurnlogError):
                await call(opened, value)
        await whole(opened, neighbour)


@pytest.mark.parametrize("name", RunFields.__annotations__)
async def test_a_run(name: str) -> None:
    async def call(opened: Opened, value: Any) -> None:
        given: Any = {"org": ORG, "conversation": "c", "input": "hi", name: value}
        async with opened.producer.run(**given) as run:
            run.chunk("x")
            await run.complete(b"{}")

    await each_value(call)


@pytest.mark.parametrize("name", TurnFields.__annotations__)
async def test_a_turn(name: str) -> None:
    async def call(opened: Opened, value: Any) -> None:
        given: Any = {"org": ORG, "conversation": "c", "text": "hi", name: value}
        await opened.producer.turn(**given)

    await each_value(call)


@pytest.mark.parametrize("kind", ["text", "tool_call"])
@pytest.mark.parametrize("name", ["text", "choice", "kind", "call", "id", "name", "at_ns"])
async def test_a_chunk(name: str, kind: str) -> None:
    async def call(opened: Opened, value: Any) -> None:
        run = await begun(opened)
        given: Any = {"text": "{}", "kind": kind, name: value}
        try:
            run.chunk(**given)
        finally:
            run.tick(later_ns(1))
            await run.complete(b"{}")

    await each_value(call)


@pytest.mark.parametrize(("end", "name"), [(end, name) for end in ENDS for name in ENDS[end]])
async def test_an_end_that_is_refused_leaves_the_run_open(end: str, name: str) -> None:
    async def call(opened: Opened, value: Any) -> None:
        run = await begun(opened)
        try:
            await getattr(run, end)(**{name: value})
        finally:
            if run.is_open:
                await run.complete(b"{}")

    await each_value(call)


@pytest.mark.parametrize("name", [CLASSES[0], "prompt_tokens", "input_tokens", "anything"])
async def test_usage(name: str) -> None:
    async def call(opened: Opened, value: Any) -> None:
        run = await begun(opened)
        try:
            await run.complete(b"{}", {name: value})
        finally:
            if run.is_open:
                await run.complete(b"{}")

    await each_value(call)


@pytest.mark.parametrize(
    "name", ["org", "run", "writer_epoch", "seq", "occurred_at_us", "event_id", "ttft_us"]
)
async def test_an_event(name: str) -> None:
    body = {"org": ORG, "run": "r", "writer_epoch": 1, "seq": 1}

    async def call(opened: Opened, value: Any) -> None:
        await opened.producer.append("run.started", {**body, name: value})

    await each_value(call)


@pytest.mark.parametrize("place", ["type", "body", "content", "subject", "locator"])
async def test_an_argument_of_append(place: str) -> None:
    async def call(opened: Opened, value: Any) -> None:
        run = await begun(opened)
        given: Any = {
            "type": "run.created",
            "body": {"org": ORG, "run": run.run, "writer_epoch": 1, "seq": 9},
            "content": {"request": b"{}"},
            "subject": Subject(ORG, "", "", run.run, "o"),
            "locator": run.key_locator,
        }
        await opened.producer.append(**given | {place: value})

    await each_value(call)


async def test_an_error_that_cannot_be_printed_ends_its_run_all_the_same() -> None:
    async with producer_in_memory() as opened:
        run = await begun(opened)
        await run.fail(Unsayable())
        assert [end["run"] for end in opened.transport.of("run.failed")] == [run.run]
