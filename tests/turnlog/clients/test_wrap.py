"""What a wrapped client records of readers who leave, of retries, of who calls, of what is away."""

import asyncio
import gc
import json
from concurrent.futures import ThreadPoolExecutor

import anthropic
import httpx2
import openai
import pytest

import turnlog
from tests.provider import Provider, Recordings
from tests.turnlog.clients.asked import (
    CHAT,
    CLAUDE,
    KEY,
    USAGE,
    anthropic_of,
    openai_of,
)
from tests.turnlog.clients.kept import Log, producer_in_memory, sync_producer
from turnlog import SyncProducer
from turnlog.clients import process
from turnlog.errors import Unavailable, UsageError
from turnlog.recording import COUNTS

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
