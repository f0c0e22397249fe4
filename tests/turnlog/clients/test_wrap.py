"""Wrapped clients beside bare ones: the caller sees the same, and each call is one run."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from pydantic import BaseModel

import turnlog
from tests.provider import Provider, Recordings
from tests.turnlog.clients.kept import Log, producer_in_memory, provider_thread, sync_producer
from tests.turnlog.producer.parts import ORG
from turnlog import SyncProducer
from turnlog.clients import process
from turnlog.errors import Unavailable, UsageError
from turnlog.providers import Source
from turnlog.recording import COUNTS

KEY = "sk-never-to-be-recorded"
SAY: Any = [{"role": "user", "content": "Shorten the link, please."}]
CHAT: dict[str, Any] = {"model": "gpt-4o-mini", "messages": SAY}
CLAUDE: dict[str, Any] = {"model": "claude-made", "messages": SAY, "max_tokens": 99}
ASK: dict[str, Any] = {"model": "gpt-4o-mini", "input": "Shorten the link, please."}
USAGE: Any = {"include_usage": True}


class Link(BaseModel):
    url: str


def structured() -> Source:
    """An answer whose text is JSON."""
    plain = Recordings.read().by_id["smp-chat-plain"]
    body = json.loads(plain.response)
    body["choices"][0]["message"]["content"] = '{"url": "https://a.example"}'
    return replace(plain, id="structured", request=b"", response=json.dumps(body).encode())


def responses_stream() -> Source:
    """A stream that the client's own helper takes: the sample leaves out what that insists on."""
    part = {"type": "output_text", "text": "", "annotations": []}
    item: dict[str, Any] = {
        "id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress",
        "content": [],
    }  # fmt: skip
    response: dict[str, Any] = {
        "id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-4o-mini",
        "status": "in_progress", "output": [], "parallel_tool_calls": True, "tool_choice": "auto",
        "tools": [],
    }  # fmt: skip
    whole = {**part, "text": "Hello"}
    done = {**item, "status": "completed", "content": [whole]}
    usage = {
        "input_tokens": 3, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 5,
    }  # fmt: skip
    ended = {**response, "status": "completed", "output": [done], "usage": usage}
    at: dict[str, Any] = {"output_index": 0, "item_id": "msg_1", "content_index": 0}
    events: list[tuple[str, dict[str, Any]]] = [
        ("created", {"response": response}),
        ("output_item.added", {"output_index": 0, "item": item}),
        ("content_part.added", {**at, "part": part}),
        ("output_text.delta", {**at, "delta": "Hel", "logprobs": []}),
        ("output_text.delta", {**at, "delta": "lo", "logprobs": []}),
        ("output_text.done", {**at, "text": "Hello", "logprobs": []}),
        ("content_part.done", {**at, "part": whole}),
        ("output_item.done", {"output_index": 0, "item": done}),
        ("completed", {"response": ended}),
    ]
    body = "".join(
        f"event: response.{kind}\ndata: "
        + json.dumps({"type": f"response.{kind}", "sequence_number": n, **fields})
        + "\n\n"
        for n, (kind, fields) in enumerate(events)
    )
    sample = Recordings.read().by_id["smp-responses-stream"]
    return replace(sample, id="helped", request=b"", response=body.encode())


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    recordings = Recordings([*Recordings.read().by_id.values(), structured(), responses_stream()])
    with provider_thread(recordings) as served:
        yield served


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SyncProducer, Log]]:
    producer, log = sync_producer(monkeypatch, ORG)
    yield producer, log
    producer.close()


def openai_of(provider: Provider, scenario: str = "", **more: Any) -> openai.OpenAI:
    base = f"{provider.url(scenario)}/v1"
    return openai.OpenAI(base_url=base, api_key=KEY, **{"max_retries": 0, **more})


def anthropic_of(provider: Provider, scenario: str = "", **more: Any) -> anthropic.Anthropic:
    base = provider.url(scenario)
    return anthropic.Anthropic(base_url=base, api_key=KEY, **{"max_retries": 0, **more})


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


# Readers who leave.


def test_a_reader_who_breaks_off_cancels_the_run(
    provider: Provider, written: tuple[SyncProducer, Log]
) -> None:
    producer, log = written
    client = turnlog.wrap(openai_of(provider, "pace_ms=30"), producer)
    stream = client.chat.completions.create(**CHAT, stream=True)
    for number, _ in enumerate(stream):
        if number == 2:
            break
    stream.close()
    producer.close()
    client.close()
    ((terminal, content),) = log.ended()
    assert terminal["status"] == "cancelled"
    whole = provider.recordings.by_id["made-chat-no-usage"].response
    assert 0 < len(content["response"]) < len(whole)
    assert whole.startswith(content["response"])


def test_a_stream_that_is_dropped_cancels_the_run(
    provider: Provider, written: tuple[SyncProducer, Log]
) -> None:
    producer, log = written
    client = turnlog.wrap(openai_of(provider, "pace_ms=30"), producer)
    for _ in client.chat.completions.create(**CHAT, stream=True):
        break
    gc.collect()
    producer.close()
    client.close()
    assert log.statuses() == ["cancelled"]


async def test_a_cancelled_task_cancels_the_run(provider: Provider) -> None:
    base = f"{provider.url('delay_ms=5000')}/v1"
    async with (
        producer_in_memory() as opened,
        openai.AsyncOpenAI(base_url=base, api_key=KEY) as bare,
    ):
        client = turnlog.wrap(bare, opened.producer)
        call = asyncio.ensure_future(client.chat.completions.create(**CHAT))
        while not opened.producer._opened:
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert Log.of(opened).statuses() == ["cancelled"]


async def test_an_async_reader_who_breaks_off_cancels_the_run(provider: Provider) -> None:
    base = f"{provider.url('pace_ms=30')}/v1"
    async with (
        producer_in_memory() as opened,
        openai.AsyncOpenAI(base_url=base, api_key=KEY) as bare,
    ):
        client = turnlog.wrap(bare, opened.producer)
        async with await client.chat.completions.create(**CHAT, stream=True) as stream:
            async for _ in stream:
                break
    assert Log.of(opened).statuses() == ["cancelled"]


# What makes a run.


def test_a_retry_is_a_run_of_its_own_in_the_same_group(
    provider: Provider, written: tuple[SyncProducer, Log]
) -> None:
    producer, log = written
    bare = openai_of(provider, "status=500,times=2", max_retries=2)
    client = turnlog.wrap(bare, producer, conversation="c-1")
    assert client.chat.completions.create(**CHAT).choices
    client.chat.completions.create(**CHAT)
    producer.close()
    bare.close()
    first, second, third, other = (body for body, _ in log.created())
    assert first["run_group"] == second["run_group"] == third["run_group"] == first["run"]
    assert (second["causation_id"], third["causation_id"]) == (first["run"], second["run"])
    assert other["run_group"] == other["run"]
    assert other["causation_id"] == ""
    assert log.statuses() == ["failed", "failed", "completed", "completed"]
    roles = [turn["role"] for turn in log.transport.of("turn.appended")]
    assert roles.count("user") == 2


def test_calls_that_ask_no_model_are_no_runs(
    provider: Provider, written: tuple[SyncProducer, Log]
) -> None:
    producer, log = written
    with openai_of(provider) as bare:
        assert list(turnlog.wrap(bare, producer).models.list())
    producer.close()
    assert log.transport.kept == []


def test_wrapping_twice_records_once(provider: Provider, written: tuple[SyncProducer, Log]) -> None:
    producer, log = written
    with openai_of(provider) as bare:
        once = turnlog.wrap(bare, producer, user="first")
        twice = turnlog.wrap(once, producer, user="second")
        twice.with_options(timeout=9).chat.completions.create(**CHAT)
        bare.chat.completions.create(**CHAT)
    producer.close()
    assert [body["user"] for body, _ in log.created()] == ["second"]


def test_a_wrapped_client_that_is_dropped_leaves_the_bare_one_open(
    provider: Provider, written: tuple[SyncProducer, Log]
) -> None:
    producer, _ = written
    with openai_of(provider) as bare:
        assert bare.chat.completions.create(**CHAT).choices
        turnlog.wrap(bare, producer).chat.completions.create(**CHAT)
        gc.collect()
        before = len(provider.asked)
        assert bare.chat.completions.create(**CHAT).choices
        assert len(provider.asked) == before + 1


def test_a_bare_client_that_is_dropped_leaves_the_wrapped_one_open(
    provider: Provider, written: tuple[SyncProducer, Log]
) -> None:
    producer, _ = written
    client = turnlog.wrap(openai_of(provider), producer)
    gc.collect()
    assert client.chat.completions.create(**CHAT).choices
    client.close()


def test_what_is_said_of_calls_stands_in_their_runs_and_not_in_their_requests(
    provider: Provider, written: tuple[SyncProducer, Log]
) -> None:
    producer, log = written
    with openai_of(provider) as bare:
        client = turnlog.wrap(bare, producer, user="u-1", versions={"prompt": "7"})
        with (
            turnlog.annotate(conversation="c-9", run_group="g-1"),
            turnlog.annotate(user="u-2"),
        ):
            client.chat.completions.create(**CHAT)
        client.chat.completions.create(**CHAT)
        assert json.loads(provider.asked[-2].body) == CHAT
        assert not [name for name, _ in provider.asked[-2].headers if "turnlog" in name.lower()]
    producer.close()
    (first, request), (second, _) = log.created()
    assert (first["user"], first["conversation"], first["run_group"]) == ("u-2", "c-9", "g-1")
    assert (second["user"], second["conversation"]) == ("u-1", "")
    assert first["versions"] == second["versions"] == {"prompt": "7"}
    turns = [turn["role"] for turn in log.transport.of("turn.appended")]
    assert turns == ["user", "assistant"]
    assert request["request"] == provider.asked[-2].body


def test_threads_say_it_each_for_itself(
    provider: Provider, written: tuple[SyncProducer, Log]
) -> None:
    producer, log = written
    with openai_of(provider) as bare:
        client = turnlog.wrap(bare, producer)

        def one(n: int) -> None:
            with turnlog.annotate(user=f"user-{n}"):
                assert len(list(client.chat.completions.create(**CHAT, stream=True))) > 3

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(one, range(40)))
    producer.close()
    assert sorted(body["user"] for body, _ in log.created()) == sorted(
        f"user-{n}" for n in range(40)
    )
    assert log.statuses() == ["completed"] * 40


def test_usage_that_was_not_asked_for_is_unknown_and_not_zero(
    provider: Provider, written: tuple[SyncProducer, Log]
) -> None:
    producer, log = written
    with openai_of(provider) as bare:
        client = turnlog.wrap(bare, producer)
        list(client.chat.completions.create(**CHAT, stream=True))
        list(client.chat.completions.create(**CHAT, stream=True, stream_options=USAGE))
    producer.close()
    without, measured = log.transport.of("usage.recorded")
    assert (without["quality"], without["reason"]) == ("unknown", "no_usage")
    assert measured["quality"] == "measured"
    assert measured["output_text"] > 0


def test_an_upload_is_recorded_while_it_is_small(
    provider: Provider, written: tuple[SyncProducer, Log]
) -> None:
    producer, log = written
    with openai_of(provider) as bare:
        client = turnlog.wrap(bare, producer)
        for size in (1000, 2 << 20):
            with pytest.raises(openai.NotFoundError):
                client.audio.transcriptions.create(model="whisper-1", file=bytes(size))
            assert len(provider.asked[-1].body) > size
    producer.close()
    (_, small), (_, large) = log.created()
    assert bytes(1000) in small["request"]
    assert "request" not in large
    assert large["content_type"].startswith("multipart/form-data")


def test_a_transport_of_a_test_is_recorded_too(written: tuple[SyncProducer, Log]) -> None:
    producer, log = written
    body = Recordings.read().by_id["smp-chat-plain"].response
    answer = httpx2.MockTransport(lambda request: httpx2.Response(200, content=body))
    with openai.OpenAI(api_key=KEY, http_client=httpx2.Client(transport=answer)) as bare:
        assert turnlog.wrap(bare, producer).chat.completions.create(**CHAT).choices
    producer.close()
    assert log.ended()[0][1]["response"] == body


def test_azure_is_azure(provider: Provider, written: tuple[SyncProducer, Log]) -> None:
    producer, log = written
    with openai.AzureOpenAI(
        azure_endpoint=provider.url(), api_key=KEY, api_version="2024-10-21", max_retries=0
    ) as bare:
        turnlog.wrap(bare, producer).chat.completions.create(**CHAT)
    producer.close()
    ((created, request),) = log.created()
    assert created["provider"] == "azure"
    path = "/openai/deployments/gpt-4o-mini/chat/completions?api-version=2024-10-21"
    assert request["path"] == path


# When nothing can be recorded.


def test_a_call_that_cannot_be_recorded_passes_or_is_refused(
    provider: Provider, written: tuple[SyncProducer, Log]
) -> None:
    producer, log = written
    before = COUNTS.unrecorded
    with openai_of(provider) as bare:
        log.transport.refuse = Unavailable("away")
        assert turnlog.wrap(bare, producer).chat.completions.create(**CHAT).choices
        assert before + 1 == COUNTS.unrecorded
        refusing = turnlog.wrap(bare, producer, on_unavailable="refuse")
        asked = len(provider.asked)
        with pytest.raises(Unavailable):
            refusing.chat.completions.create(**CHAT)
        with anthropic_of(provider) as other:
            refusing_too = turnlog.wrap(other, producer, on_unavailable="refuse")
            with pytest.raises(anthropic.APIConnectionError) as caught:
                refusing_too.messages.create(**CLAUDE)
            assert isinstance(caught.value.__cause__, Unavailable)
        assert len(provider.asked) == asked
        log.transport.refuse = None


def test_a_stack_that_is_away_stops_no_call(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Away(process.OfProcess):
        def _opened(self) -> SyncProducer:
            raise Unavailable("the keeper does not answer")

    monkeypatch.setattr("turnlog.clients.wrapping.OF_PROCESS", Away())
    with openai_of(provider) as bare:
        assert turnlog.wrap(bare).chat.completions.create(**CHAT).choices
    assert "unrecorded" in caplog.text
    assert "Shorten" not in caplog.text


def test_a_client_of_something_else_is_refused() -> None:
    with pytest.raises(UsageError, match="openai and anthropic"):
        turnlog.wrap(object())


def test_wrap_says_which_field_is_wrong(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, _ = sync_producer(monkeypatch, "org-a", "org-b")
    with openai_of(provider) as bare, producer:
        with pytest.raises(UsageError, match="several orgs"):
            turnlog.wrap(bare, producer)
        with pytest.raises(UsageError, match="does not name org"):
            turnlog.wrap(bare, producer, org="org-c")
        with pytest.raises(UsageError, match="no project"):
            turnlog.wrap(bare, producer, org="org-a", project="secret")
        with pytest.raises(UsageError, match="user must be text"):
            turnlog.wrap(bare, producer, org="org-a", user=7)  # type: ignore[arg-type]
        with (
            pytest.raises(UsageError, match="no field frobnicate"),
            turnlog.annotate(
                frobnicate="x"  # type: ignore[call-arg]
            ),
        ):
            pass


async def test_a_client_that_is_not_async_needs_a_sync_producer(provider: Provider) -> None:
    async with producer_in_memory() as opened:
        with openai_of(provider) as bare, pytest.raises(UsageError, match="SyncProducer"):
            turnlog.wrap(bare, opened.producer)
