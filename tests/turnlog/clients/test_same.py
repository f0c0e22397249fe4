"""Wrapped clients beside bare ones: the caller sees the same, and each call is one run."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from pydantic import BaseModel

import turnlog
from tests.provider import Provider
from tests.turnlog.clients.asked import (
    ASK,
    CHAT,
    CLAUDE,
    KEY,
    USAGE,
    Link,
    anthropic_of,
    openai_of,
)
from tests.turnlog.clients.kept import Log, producer_in_memory, sync_producer
from tests.turnlog.producer.parts import ORG
from turnlog import SyncProducer


def plain(value: Any) -> Any:
    """What a client gave, as data that can be compared."""
    if isinstance(value, BaseModel):
        return type(value).__name__, value.model_dump(warnings=False)
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, openai.APIStatusError | anthropic.APIStatusError):
        return type(value), str(value), value.status_code, value.body, value.request_id
    if isinstance(value, Exception):
        return type(value), str(value), type(value.__cause__)
    return value


def outcome(call: Callable[[Any], Any], client: Any) -> Any:
    try:
        return plain(call(client))
    except (openai.OpenAIError, anthropic.AnthropicError, httpx2.HTTPError, ValueError) as error:
        return plain(error)


def chat_stream_helper(client: Any) -> Any:
    with client.chat.completions.stream(**CHAT) as stream:
        kinds = [event.type for event in stream]
        return kinds, stream.get_final_completion()


def responses_stream_helper(client: Any) -> Any:
    with client.responses.stream(**ASK) as stream:
        kinds = [event.type for event in stream]
        return kinds, stream.get_final_response()


def messages_stream_helper(client: Any) -> Any:
    with client.messages.stream(**CLAUDE) as stream:
        texts = list(stream.text_stream)
        return texts, stream.get_final_message()


def raw(client: Any) -> Any:
    answer = client.chat.completions.with_raw_response.create(**CHAT)
    return answer.status_code, answer.headers["x-request-id"], answer.text, answer.parse()


def raw_lines(client: Any) -> Any:
    with client.chat.completions.with_streaming_response.create(**CHAT, stream=True) as answer:
        return answer.status_code, list(answer.iter_lines())


OPENAI: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "chat": ("", lambda c: c.chat.completions.create(**CHAT), "completed"),
    "stream": ("", lambda c: list(c.chat.completions.create(**CHAT, stream=True)), "completed"),
    "stream with usage": (
        "",
        lambda c: list(c.chat.completions.create(**CHAT, stream=True, stream_options=USAGE)),
        "completed",
    ),
    "gzip": (
        "encoding=gzip",
        lambda c: list(c.chat.completions.create(**CHAT, stream=True)),
        "completed",
    ),
    "single bytes": (
        "piece=1",
        lambda c: list(c.chat.completions.create(**CHAT, stream=True)),
        "completed",
    ),
    "stream helper": ("", chat_stream_helper, "completed"),
    "tool calls": (
        "exchange=smp-chat-tool-call",
        lambda c: list(c.chat.completions.create(**CHAT, stream=True)),
        "completed",
    ),
    "refusal": (
        "exchange=smp-chat-refusal",
        lambda c: c.chat.completions.create(**CHAT),
        "completed",
    ),
    "structured": (
        "exchange=structured",
        lambda c: c.chat.completions.parse(**CHAT, response_format=Link).choices[0].message.parsed,
        "completed",
    ),
    "not structured": (
        "",
        lambda c: c.chat.completions.parse(**CHAT, response_format=Link),
        "completed",
    ),
    "legacy": ("", lambda c: c.completions.create(model="m", prompt="Say"), "completed"),
    "responses": ("", lambda c: c.responses.create(**ASK), "completed"),
    "responses stream": ("", lambda c: list(c.responses.create(**ASK, stream=True)), "completed"),
    "responses helper": ("exchange=helped", responses_stream_helper, "completed"),
    "embeddings": ("", lambda c: c.embeddings.create(model="m", input="a"), "completed"),
    "images": ("", lambda c: c.images.generate(model="m", prompt="a"), "completed"),
    "raw": ("", raw, "completed"),
    "raw stream": ("", raw_lines, "completed"),
    "no such model": ("status=404", lambda c: c.chat.completions.create(**CHAT), "failed"),
    "wrong key": ("status=401", lambda c: c.chat.completions.create(**CHAT), "failed"),
    "limited": ("status=429", lambda c: c.chat.completions.create(**CHAT), "failed"),
    "broken": ("status=500", lambda c: c.chat.completions.create(**CHAT, stream=True), "failed"),
    "error in the stream": (
        "error_after=3",
        lambda c: list(c.chat.completions.create(**CHAT, stream=True)),
        "failed",
    ),
    "cut": (
        "cut=700",
        lambda c: list(c.chat.completions.create(**CHAT, stream=True)),
        "interrupted",
    ),
    "cut before anything": ("cut=0", lambda c: c.chat.completions.create(**CHAT), "failed"),
    "late": (
        "stall=700",
        lambda c: list(c.chat.completions.create(**CHAT, stream=True, timeout=0.2)),
        "interrupted",
    ),
    "never": (
        "delay_ms=5000",
        lambda c: c.chat.completions.create(**CHAT, timeout=0.1),
        "failed",
    ),
}
ANTHROPIC: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "messages": ("", lambda c: c.messages.create(**CLAUDE), "completed"),
    "stream": ("", lambda c: list(c.messages.create(**CLAUDE, stream=True)), "completed"),
    "helper": ("", messages_stream_helper, "completed"),
    "overloaded": ("status=529", lambda c: c.messages.create(**CLAUDE), "failed"),
    "error in the stream": (
        "error_after=3",
        lambda c: list(c.messages.create(**CLAUDE, stream=True)),
        "failed",
    ),
    "cut": ("cut=500", lambda c: list(c.messages.create(**CLAUDE, stream=True)), "interrupted"),
    "raw": (
        "",
        lambda c: c.messages.with_raw_response.create(**CLAUDE).text(),
        "completed",
    ),
}
SYNC = [(openai_of, *case) for case in OPENAI.values()] + [
    (anthropic_of, *case) for case in ANTHROPIC.values()
]
NAMES = [*(f"openai {name}" for name in OPENAI), *(f"anthropic {name}" for name in ANTHROPIC)]


@pytest.mark.parametrize(("make", "scenario", "call", "status"), SYNC, ids=NAMES)
def test_a_caller_sees_the_same_and_the_log_has_it(
    provider: Provider,
    written: tuple[SyncProducer, Log],
    make: Callable[..., Any],
    scenario: str,
    call: Callable[[Any], Any],
    status: str,
) -> None:
    producer, log = written
    with make(provider, scenario) as bare:
        expected = outcome(call, bare)
        wrapped = turnlog.wrap(bare, producer)
        assert type(wrapped) is type(bare)
        assert outcome(call, wrapped) == expected
        sent = provider.asked[-1]
        producer.close()
        ((created, request),) = log.created()
        ((terminal, response),) = log.ended()
    assert request["request"] == sent.body
    assert request["path"] == sent.path if not scenario else True
    assert terminal["status"] == status
    assert created["provider"] == ("anthropic" if make is anthropic_of else "openai")
    assert created["model"] == json.loads(sent.body)["model"]
    source = provider.recordings.by_id.get(scenario.partition("exchange=")[2]) or (
        provider.recordings.find(sent.path, sent.body)
    )
    if status == "completed":
        assert source is not None
        assert response["response"] == source.response
    assert KEY.encode() not in repr(log.transport.kept).encode()


async def chat_stream_helper_async(client: Any) -> Any:
    async with client.chat.completions.stream(**CHAT) as stream:
        kinds = [event.type async for event in stream]
        return kinds, await stream.get_final_completion()


async def all_of(stream: Awaitable[AsyncIterator[Any]]) -> list[Any]:
    return [one async for one in await stream]


async def raw_async(client: Any) -> Any:
    answer = await client.chat.completions.with_raw_response.create(**CHAT)
    return answer.status_code, answer.headers["x-request-id"], answer.text, answer.parse()


ASYNC: dict[str, tuple[Any, str, Callable[[Any], Awaitable[Any]], str]] = {
    "chat": (openai.AsyncOpenAI, "", lambda c: c.chat.completions.create(**CHAT), "completed"),
    "stream": (
        openai.AsyncOpenAI,
        "",
        lambda c: all_of(c.chat.completions.create(**CHAT, stream=True, stream_options=USAGE)),
        "completed",
    ),
    "helper": (openai.AsyncOpenAI, "", chat_stream_helper_async, "completed"),
    "raw": (openai.AsyncOpenAI, "", raw_async, "completed"),
    "responses": (openai.AsyncOpenAI, "", lambda c: c.responses.create(**ASK), "completed"),
    "cut": (
        openai.AsyncOpenAI,
        "cut=700",
        lambda c: all_of(c.chat.completions.create(**CHAT, stream=True)),
        "interrupted",
    ),
    "limited": (
        openai.AsyncOpenAI,
        "status=429",
        lambda c: c.chat.completions.create(**CHAT),
        "failed",
    ),
    "messages": (
        anthropic.AsyncAnthropic,
        "",
        lambda c: all_of(c.messages.create(**CLAUDE, stream=True)),
        "completed",
    ),
    "overloaded": (
        anthropic.AsyncAnthropic,
        "status=529",
        lambda c: c.messages.create(**CLAUDE),
        "failed",
    ),
}


async def outcome_async(call: Callable[[Any], Awaitable[Any]], client: Any) -> Any:
    try:
        return plain(await call(client))
    except (openai.OpenAIError, anthropic.AnthropicError) as error:
        return plain(error)


@pytest.mark.parametrize("beside", [False, True], ids=["on its loop", "beside its loop"])
@pytest.mark.parametrize(("kind", "scenario", "call", "status"), ASYNC.values(), ids=ASYNC)
async def test_an_async_caller_sees_the_same(
    provider: Provider,
    monkeypatch: pytest.MonkeyPatch,
    kind: Any,
    scenario: str,
    call: Callable[[Any], Awaitable[Any]],
    status: str,
    beside: bool,
) -> None:
    base = provider.url(scenario) + ("/v1" if kind is openai.AsyncOpenAI else "")
    async with kind(base_url=base, api_key=KEY, max_retries=0) as bare:
        expected = await outcome_async(call, bare)
        if beside:
            producer, log = sync_producer(monkeypatch, ORG)
            wrapped = turnlog.wrap(bare, producer)
            assert await outcome_async(call, wrapped) == expected
            producer.close()
        else:
            async with producer_in_memory() as opened:
                wrapped = turnlog.wrap(bare, opened.producer)
                assert await outcome_async(call, wrapped) == expected
            log = Log.of(opened)
        assert type(wrapped) is type(bare)
    assert log.statuses() == [status]
    assert len(log.transport.of("usage.recorded")) == 1
