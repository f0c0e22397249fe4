"""What LiteLLM says, in our terms; tests/litellm has the same with LiteLLM itself."""

import gc
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.turnlog.clients.kept import Log, sync_producer
from tests.turnlog.producer.parts import ORG
from turnlog import SyncProducer
from turnlog.errors import Unavailable
from turnlog.litellm.calls import Answer, Calls
from turnlog.litellm.hooks import Hooks
from turnlog.litellm.reading import Asked, answered, asked, failed_with, understood
from turnlog.providers import Usage
from turnlog.recording import COUNTS

SAY = [{"role": "user", "content": "Hi?"}]
AT_US = 1_796_000_000_000_000


def call(**more: Any) -> dict[str, Any]:
    return {"model": "openai/gpt-4o-mini", "messages": SAY, **more}


def answer(usage: Any, **more: Any) -> bytes:
    message = {"role": "assistant", "content": "Hello"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = {"id": "c", "model": "gpt-4o-mini", "choices": [choice], "usage": usage, **more}
    return json.dumps(body).encode()


def usage(block: Any, given: Asked | None = None, standard: Any = None, **more: Any) -> Usage:
    said = {"cached": False, "left": False, **more}
    return understood(given or asked(call()), answer(block), standard, at_us=AT_US, **said).usage


def counts(found: Usage) -> dict[str, int]:
    return {name: count for name, count in found.classes.items() if count}


def deep() -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(1500):
        value = {"a": value}
    return value


def in_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize("value", [deep(), in_itself()], ids=["deep", "in itself"])
def test_what_json_cannot_hold_is_left_out_and_said(
    value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert asked(call(messages=value)).request == b""
    assert answered({"choices": value}) == b""
    said = {record.getMessage() for record in caplog.records}
    assert said == {"a body that JSON cannot hold is not kept (dict)"}


def test_an_error_that_cannot_be_printed_has_its_class_and_status() -> None:
    class Failed(Exception):
        status_code = 529

        def __str__(self) -> str:
            raise ValueError("no text")

    text, status = failed_with(Failed())
    assert "Failed" in text
    assert status == 529
    assert failed_with(None) == ("", 0)


def test_cached_tokens_lie_within_the_prompts() -> None:
    found = usage(
        {
            "prompt_tokens": 1000,
            "completion_tokens": 50,
            "prompt_tokens_details": {
                "cached_tokens": 600,
                "cache_creation_tokens": 300,
                "cache_creation_token_details": {
                    "ephemeral_5m_input_tokens": 200,
                    "ephemeral_1h_input_tokens": 100,
                },
            },
            "completion_tokens_details": {"reasoning_tokens": 20, "audio_tokens": None},
            "cache_read_input_tokens": 600,
            "cache_creation_input_tokens": 300,
        }
    )
    assert counts(found) == {
        "input_uncached": 100,
        "cache_read": 600,
        "cache_write_5m": 200,
        "cache_write_1h": 100,
        "output_text": 30,
        "output_reasoning": 20,
    }
    assert found.quality == "measured"
    assert found.provider_usage["prompt_tokens_details.cached_tokens"] == "600"
    assert found.cost_nano_usd


def test_a_summary_that_counts_otherwise_makes_it_unknown() -> None:
    block = {"prompt_tokens": 10, "completion_tokens": 5}
    assert usage(block, standard={"prompt_tokens": 10, "completion_tokens": 5}).cost_nano_usd
    differs = usage(block, standard={"prompt_tokens": 1000, "completion_tokens": 5})
    assert (differs.quality, differs.reason) == ("unknown", "invalid")
    assert differs.provider_usage["prompt_tokens"] == "10"


@pytest.mark.parametrize("count", [-1, 1.5, 2**60, True])
def test_what_is_no_count_makes_it_unknown(count: Any) -> None:
    found = usage({"prompt_tokens": 3, "completion_tokens": count})
    assert (found.quality, found.reason) == ("unknown", "invalid")


def test_what_litellm_counted_itself_is_an_estimate() -> None:
    block = {"prompt_tokens": 10, "completion_tokens": 5}
    silent = asked(call(stream=True))
    found = usage(block, silent)
    assert (found.quality, found.reason) == ("estimated", "counted_by_litellm")
    wanted = asked(call(stream=True, stream_options={"include_usage": True}))
    assert usage(block, wanted).quality == "measured"
    claude = asked(call(model="anthropic/claude-made", stream=True))
    assert usage(block, claude).quality == "measured"
    assert usage({"prompt_tokens": 0, "completion_tokens": 0}, silent).reason == "no_usage"


def test_an_answer_whose_reader_left_did_not_stop() -> None:
    body = answer({"prompt_tokens": 10, "completion_tokens": 5})
    found = understood(asked(call()), body, None, cached=False, left=True, at_us=AT_US)
    assert (found.status, found.finish_reason) == ("cancelled", "")
    assert found.usage.quality == "estimated"


def test_an_answer_from_the_cache_used_nothing() -> None:
    found = usage({"prompt_tokens": 10, "completion_tokens": 5}, cached=True)
    assert (found.quality, counts(found), found.cost_nano_usd) == ("measured", {}, 0)


def test_a_proxys_name_of_the_model_is_not_the_model() -> None:
    body = answer({"prompt_tokens": 10, "completion_tokens": 5}, model="our-fast-one")
    found = understood(asked(call()), body, None, cached=False, left=False, at_us=AT_US)
    assert found.model == "gpt-4o-mini"
    assert found.usage.cost_nano_usd
    dated = answer({}, model="gpt-4o-mini-2024-07-18")
    found = understood(asked(call()), dated, None, cached=False, left=False, at_us=AT_US)
    assert found.model == "gpt-4o-mini-2024-07-18"


def test_only_what_a_model_may_be_asked_is_stored() -> None:
    found = asked(
        call(
            api_key="sk-secret",
            extra_headers={"authorization": "secret"},
            api_base="https://user:secret@llm.example:8443/v1?key=secret",
            metadata={"user_api_key": "secret", "turnlog": {"user": "u", "secret": "secret"}},
            temperature=0.5,
            tools=[object()],
        )
    )
    assert b"secret" not in repr(found).encode()
    assert json.loads(found.request)["temperature"] == 0.5
    assert found.fields["user"] == "u"
    assert found.fields["host"] == "llm.example:8443"


def test_halves_of_characters_survive() -> None:
    packed = answered({"choices": [{"message": {"content": "\ud83d"}}]})
    assert json.loads(packed)["choices"][0]["message"]["content"] == "\ud83d"


# Exactly one run a call.


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Hooks, SyncProducer, Log]]:
    producer, log = sync_producer(monkeypatch, ORG)
    made = Hooks()
    made.calls = Calls(lambda: producer)
    yield made, producer, log
    producer.close()


def details(**more: Any) -> dict[str, Any]:
    return call(litellm_call_id="id-1", start_time="12:00", call_type="completion", **more)


async def test_many_tellings_are_one_run(hooks: tuple[Hooks, SyncProducer, Log]) -> None:
    told, producer, log = hooks
    given = details()
    told.log_pre_api_call("m", SAY, given)
    assert [body["model"] for body, _ in log.created()] == ["gpt-4o-mini"]
    response = json.loads(answer({"prompt_tokens": 3, "completion_tokens": 1}))
    await told.async_log_success_event(dict(given), response, None, None)
    told.log_success_event(dict(given), response, None, None)
    told.log_failure_event(dict(given), None, None, None)
    producer.close()
    assert log.statuses() == ["completed"]
    assert len(log.transport.of("usage.recorded")) == 1


async def test_a_call_that_nothing_announced_is_written_at_its_end(
    hooks: tuple[Hooks, SyncProducer, Log],
) -> None:
    told, producer, log = hooks
    for _ in range(2):
        await told.async_log_success_event(details(), json.loads(answer({})), None, None)
    producer.close()
    assert log.statuses() == ["completed"]


def test_two_calls_under_one_id_are_two(hooks: tuple[Hooks, SyncProducer, Log]) -> None:
    told, producer, log = hooks
    for at in ("12:00", "12:01"):
        given = details() | {"start_time": at}
        told.log_pre_api_call("m", SAY, given)
        told.log_failure_event(given, None, None, None)
    producer.close()
    assert log.statuses() == ["failed", "failed"]


def test_a_call_that_litellm_forgets_is_cancelled(hooks: tuple[Hooks, SyncProducer, Log]) -> None:
    told, producer, log = hooks
    told.log_pre_api_call("m", SAY, details())
    gc.collect()
    producer.close()
    assert log.statuses() == ["cancelled"]


def test_a_second_attempt_of_a_call_is_a_second_run(
    hooks: tuple[Hooks, SyncProducer, Log],
) -> None:
    told, producer, log = hooks
    given = details()
    told.log_pre_api_call("m", SAY, given)
    told.log_pre_api_call("m", SAY, given)
    told.calls.end(("id-1", "12:00"), Answer(response=answer({})), lambda: asked(given))
    producer.close()
    (first, _), (second, _) = log.created()
    assert second["causation_id"] == first["run"]
    assert sorted(log.statuses()) == ["completed", "failed"]


def test_a_stack_that_is_away_stops_no_call(caplog: pytest.LogCaptureFixture) -> None:
    def away() -> SyncProducer:
        raise Unavailable("away")

    told, before = Hooks(), COUNTS.unrecorded
    told.calls = Calls(away)
    given = details()
    told.log_pre_api_call("m", SAY, given)
    told.log_success_event(given, json.loads(answer({})), None, None)
    assert COUNTS.unrecorded > before
    assert "Hi?" not in caplog.text
