"""What a caller says about a run or turn, and what is refused before anything is written."""

from typing import Any

import pytest

from tests.turnlog.producer.parts import ORG, Opened, content_of, producer_in_memory
from turnlog.errors import UsageError

BAD_RUNS: list[tuple[dict[str, Any], str]] = [
    ({"org": "other"}, "does not name org 'other'"),
    ({"org": ORG, "project": "nope"}, "has no project 'nope'"),
    ({}, "needs org"),
    ({"org": ORG, "colour": "red"}, "no field colour"),
    ({"org": ORG, "user": 7}, "user must be text"),
    ({"org": ORG, "user": "\ud83d"}, "user is not Unicode text"),
    ({"org": ORG, "streaming": "yes"}, "streaming must be True or False"),
    ({"org": ORG, "versions": {"prompt": 3}}, "versions must be a mapping"),
    ({"org": ORG, "request": 7}, "request must be bytes, text or a mapping"),
    ({"org": ORG, "request": {"a": object()}}, "request holds what JSON cannot"),
    ({"org": ORG, "input": "hi"}, "a turn needs a conversation"),
    ({"org": ORG, "conversation": "c", "input": "hi", "input_role": "poet"}, "role is one of"),
]


@pytest.mark.parametrize(("fields", "says"), BAD_RUNS)
async def test_a_wrong_run_is_refused_before_anything_is_written(
    fields: dict[str, Any], says: str
) -> None:
    async with producer_in_memory() as opened:
        with pytest.raises(UsageError, match=says):
            async with opened.producer.run(**fields):
                pass
        assert opened.transport.kept == []


async def begun(opened: Opened, **fields: Any) -> dict[str, Any]:
    async with opened.producer.run(**({"org": ORG} | fields)) as run:
        await run.complete()
    return opened.transport.of("run.created")[-1]


async def test_values_that_are_no_ids_are_kept_in_the_frame_alone() -> None:
    async with producer_in_memory() as opened:
        one = await begun(opened, user="ann@example.com", conversation="my talk")
        two = await begun(opened, user="ann@example.com", conversation="ann@example.com")
        assert one["user"].startswith("x_") and one["conversation"].startswith("x_")
        assert one["user"] == two["user"] != two["conversation"]
        source = content_of(opened.grant, "run.created", one, "q")["source"]
        assert source == {"user": "ann@example.com", "conversation": "my talk"}


async def test_values_out_of_shape_are_stored_as_other_and_kept_in_the_frame() -> None:
    async with producer_in_memory() as opened:
        body = await begun(
            opened, model="my model, v2", region="eu-west-1", versions={"prompt": "a b"}
        )
        assert (body["model"], body["region"]) == ("other", "eu-west-1")
        assert body["versions"] == {"prompt": "other"}
        source = content_of(opened.grant, "run.created", body, "q")["source"]
        assert source == {"model": "my model, v2", "versions.prompt": "a b"}


@pytest.mark.parametrize(
    ("request_", "stored"),
    [
        (b"\x00\xff raw", b"\x00\xff raw"),
        ("text é", "text é".encode()),
        ({"n": 2**70, "s": "\ud83d"}, b'{"n":1180591620717411303424,"s":"\\ud83d"}'),
        ({"a": [1, None]}, b'{"a":[1,null]}'),
    ],
)
async def test_a_request_is_stored_as_bytes(request_: Any, stored: bytes) -> None:
    async with producer_in_memory() as opened:
        body = await begun(opened, request=request_, path="/v1/chat/completions")
        content = content_of(opened.grant, "run.created", body, "q")
        assert content == {"request": stored, "path": "/v1/chat/completions"}


async def test_ids_given_by_the_caller_are_taken() -> None:
    async with producer_in_memory() as opened:
        given = {"run": "run_1", "conversation": "c", "turn": "t_1", "parent_run": "run_0"}
        body = await begun(opened, **given)
        assert {name: body[name] for name in given} == given


def bad_turns() -> list[tuple[dict[str, Any], str]]:
    whole = {"org": ORG, "conversation": "c", "text": "hi"}
    return [
        ({"org": ORG, "conversation": "c"}, "needs text"),
        (whole | {"conversation": ""}, "needs a conversation"),
        (whole | {"org": "other"}, "does not name org"),
        (whole | {"role": "poet"}, "role is one of"),
        (whole | {"expected_last_seq": True}, "expected_last_seq must be a whole number"),
        (whole | {"raw": "text"}, "raw must be bytes"),
    ]


@pytest.mark.parametrize(("fields", "says"), bad_turns())
async def test_a_wrong_turn_is_refused(fields: dict[str, Any], says: str) -> None:
    async with producer_in_memory() as opened:
        with pytest.raises(UsageError, match=says):
            await opened.producer.turn(**fields)
        assert opened.transport.kept == []


async def test_a_turn_has_its_own_text_under_its_own_key() -> None:
    async with producer_in_memory() as opened:
        turn = await opened.producer.turn(
            org=ORG, conversation="c", text="hi", raw=b"{}", role="tool", parent_turn="t_0"
        )
        (body,) = opened.transport.of("turn.appended")
        assert (body["turn"], body["role"], body["parent_turn"]) == (turn.turn, "tool", "t_0")
        assert str(turn.position).startswith("turnlog.turns/")
        content = content_of(opened.grant, "turn.appended", body, "t")
        assert content == {"text": "hi", "raw": b"{}"}


async def test_an_idempotency_key_names_turn_and_event() -> None:
    async with producer_in_memory() as opened:
        for _ in range(2):
            await opened.producer.turn(org=ORG, conversation="c", text="hi", idempotency_key="k")
        await opened.producer.turn(org=ORG, conversation="c", text="hi", idempotency_key="k2")
        one, two, other = opened.transport.of("turn.appended")
        assert (one["turn"], one["event_id"]) == (two["turn"], two["event_id"])
        assert other["turn"] != one["turn"]
        assert one["content_mac"] == two["content_mac"]
        assert one["may_repeat"] and two["may_repeat"]


async def test_append_checks_org_and_content() -> None:
    async with producer_in_memory() as opened:
        body = {"org": "other", "run": "r", "writer_epoch": 1, "occurred_at_us": 1}
        with pytest.raises(UsageError, match="does not name org"):
            await opened.producer.append("run.started", body)
        body["org"] = ORG
        with pytest.raises(UsageError, match="say whose it is"):
            await opened.producer.append("run.started", body, {"text": "x"})
        with pytest.raises(UsageError, match="needs event_id"):
            await opened.producer.append("run.started", body | {"writer_epoch": 0})
        with pytest.raises(UsageError, match="writes no 'pack.added'"):
            await opened.producer.append("pack.added", body | {"event_id": b"e" * 16})
        assert opened.transport.kept == []
        position = await opened.producer.append("run.started", body)
        assert (position.offset, position.via) == (0, "broker")
