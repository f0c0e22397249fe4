"""The forms of Bedrock, Cohere, Mistral and Ollama: output, calls, ends and usage."""

import base64
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.eventstream import EventStreamBuffer

from tests.turnlog.providers.lines import line, read, stream
from turnlog.providers import Exchange, eventstream

DATA = Path(__file__).parents[4] / "shared" / "data"
BEDROCK = {"host": "bedrock-runtime.us-east-1.amazonaws.com"}
CONVERSE = BEDROCK | {"path": "/model/amazon.nova-lite-v1%3A0/converse"}
CONVERSE_STREAM = CONVERSE | {
    "path": "/model/amazon.nova-lite-v1%3A0/converse-stream",
    "framing": "aws-eventstream",
    "streaming": True,
}
OLLAMA = {"host": "127.0.0.1:11434", "path": "/api/chat"}


def frame(event: str, payload: Any, kind: str = "event") -> bytes:
    """Return a binary message as Amazon frames it."""
    headers = b""
    for name, value in ((":message-type", kind), (f":{kind}-type", event)):
        headers += bytes((len(name),)) + name.encode() + b"\x07"
        headers += struct.pack(">H", len(value)) + value.encode()
    body = json.dumps(payload).encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(body), len(headers))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + body
    return message + struct.pack(">I", zlib.crc32(message))


def chunk(inner: Any) -> bytes:
    """Return what InvokeModelWithResponseStream wraps a piece of a model's own stream in."""
    return frame("chunk", {"bytes": base64.b64encode(json.dumps(inner).encode()).decode()})


def binary(*messages: bytes, **where: Any) -> Exchange:
    body = {"b64": base64.b64encode(b"".join(messages)).decode()}
    return read(line("", "", **(where or CONVERSE_STREAM)) | {"response_body": body})


def used(found: Exchange) -> dict[str, int]:
    assert found.usage.quality == "measured", found.usage
    return {name: count for name, count in found.usage.classes.items() if count}


TOOL_USE = {"toolUse": {"toolUseId": "t1", "name": "look", "input": {"a": 1}}}
TALK = (
    frame("messageStart", {"role": "assistant"}),
    frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"reasoningContent": {"text": "hm"}}}),  # noqa: E501
    frame("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"text": "Hi"}}),
    frame("contentBlockStart", {"contentBlockIndex": 2, "start": {"toolUse": {"toolUseId": "t1", "name": "look"}}}),  # noqa: E501
    frame("contentBlockDelta", {"contentBlockIndex": 2, "delta": {"toolUse": {"input": '{"a": '}}}),
    frame("contentBlockDelta", {"contentBlockIndex": 2, "delta": {"toolUse": {"input": "1}"}}}),
)  # fmt: skip
STOP = frame("messageStop", {"stopReason": "tool_use"})
METADATA = frame(
    "metadata",
    {"usage": {"inputTokens": 9, "outputTokens": 4, "cacheReadInputTokens": 5, "totalTokens": 18}},
)


def test_converse_streams_and_plain_answers_say_the_same() -> None:
    streamed = binary(*TALK, STOP, METADATA)
    plain = read(
        line(
            "",
            {
                "output": {
                    "message": {
                        "content": [
                            {"reasoningContent": {"reasoningText": {"text": "hm"}}},
                            {"text": "Hi"},
                            TOOL_USE,
                        ]
                    }
                },
                "stopReason": "tool_use",
                "usage": {"inputTokens": 9, "outputTokens": 4, "cacheReadInputTokens": 5},
            },
            **CONVERSE,
        )
    )
    for found in (streamed, plain):
        assert (found.form, found.status, found.finish_reason) == (
            "bedrock",
            "completed",
            "tool_use",
        )
        assert found.model == "amazon.nova-lite-v1:0"
        (choice,) = found.choices
        assert (choice.text, choice.reasoning) == ("Hi", "hm")
        (call,) = choice.tool_calls
        assert (call.id, call.name, json.loads(call.arguments)) == ("t1", "look", {"a": 1})
        assert used(found) == {"input_uncached": 9, "cache_read": 5, "output_text": 4}
        assert found.usage.cost_nano_usd == 9 * 60 + 5 * 15 + 4 * 240
    assert [piece.text for piece in streamed.chunks if piece.kind == "text"] == ["Hi"]


def test_a_converse_stream_that_breaks_off_is_interrupted_and_an_exception_fails() -> None:
    cut = binary(*TALK)
    assert (cut.status, cut.usage.reason) == ("interrupted", "no_usage")
    error = frame("throttlingException", {"message": "too fast"}, kind="exception")
    failed = binary(*TALK, error)
    assert (failed.status, failed.error_code, failed.error) == (
        "failed",
        "provider_error",
        "too fast",
    )
    assert failed.choices[0].text == "Hi"


def test_nova_under_invoke_says_the_events_of_converse() -> None:
    found = binary(
        chunk({"messageStart": {"role": "assistant"}}),
        chunk({"contentBlockDelta": {"delta": {"text": "Hi"}, "contentBlockIndex": 0}}),
        chunk({"messageStop": {"stopReason": "end_turn"}}),
        chunk({"metadata": {"usage": {"inputTokens": 3, "outputTokens": 2, "cacheReadInputTokenCount": 1}}}),  # noqa: E501
        **CONVERSE_STREAM
        | {"path": "/model/amazon.nova-micro-v1%3A0/invoke-with-response-stream"},
    )  # fmt: skip
    assert (found.form, found.choices[0].text, found.status) == ("bedrock", "Hi", "completed")
    assert used(found) == {"input_uncached": 3, "cache_read": 1, "output_text": 2}


def test_titan_counts_beside_its_text() -> None:
    where = CONVERSE | {"path": "/model/amazon.titan-text-lite-v1/invoke"}
    result = {"tokenCount": 4.0, "outputText": "Hi", "completionReason": "FINISH"}
    plain = read(line("", {"inputTextTokenCount": 28.0, "results": [result]}, **where))
    streamed = binary(
        chunk({"outputText": "H", "index": 0.0, "inputTextTokenCount": 28.0}),
        chunk(
            {
                "outputText": "i",
                "totalOutputTextTokenCount": 4,
                "completionReason": "FINISH",
                "amazon-bedrock-invocationMetrics": {"inputTokenCount": 28, "outputTokenCount": 4},
            }
        ),
        **CONVERSE_STREAM | {"path": f"{where['path']}-with-response-stream"},
    )
    for found in (plain, streamed):
        assert (found.choices[0].text, found.finish_reason) == ("Hi", "FINISH")
        assert used(found) == {"input_uncached": 28, "output_text": 4}


def test_an_exception_within_anthropic_s_stream_on_bedrock_fails_it() -> None:
    found = binary(
        chunk({"type": "message_start", "message": {"id": "m", "model": "claude"}}),
        frame("modelStreamErrorException", {"message": "no"}, kind="exception"),
        **CONVERSE_STREAM | {"path": "/model/anthropic.claude-v2/invoke-with-response-stream"},
    )
    assert (found.form, found.status, found.error) == ("anthropic", "failed", "no")


def test_bedrock_bills_the_model_and_region_of_the_path() -> None:
    body = {
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5-20250929",
        "content": [],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 1000, "output_tokens": 0},
    }
    costs = [
        read(line("", body, **BEDROCK, path=f"/model/{model}/invoke")).usage.cost_nano_usd
        for model in (
            "global.anthropic.claude-sonnet-4-5-20250929-v1%3A0",
            "us.anthropic.claude-sonnet-4-5-20250929-v1%3A0",
        )
    ]
    assert costs == [3_000_000, 3_300_000]


COHERE = {"host": "api.cohere.com", "path": "/v2/chat"}
UNITS = {
    "billed_units": {"input_tokens": 7, "output_tokens": 9},
    "tokens": {"input_tokens": 69, "output_tokens": 9},
}


def test_cohere_v2_streams_and_plain_answers_say_the_same() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
    plain = read(
        line(
            "",
            {
                "id": "r",
                "finish_reason": "TOOL_CALL",
                "message": {
                    "tool_plan": "hm",
                    "content": [{"type": "text", "text": "Hi"}],
                    "tool_calls": [call],
                },
                "usage": UNITS,
            },
            {"model": "command-r"},
            **COHERE,
        )
    )
    start = call | {"function": {"name": "look", "arguments": ""}}
    streamed = read(
        stream(
            "",
            {"type": "message-start", "id": "r"},
            {"type": "tool-plan-delta", "delta": {"message": {"tool_plan": "hm"}}},
            {"type": "content-delta", "delta": {"message": {"content": {"text": "Hi"}}}},
            {"type": "tool-call-start", "index": 0, "delta": {"message": {"tool_calls": start}}},
            {"type": "tool-call-delta", "index": 0, "delta": {"message": {"tool_calls": {"function": {"arguments": '{"a": '}}}}},  # noqa: E501
            {"type": "tool-call-delta", "index": 0, "delta": {"message": {"tool_calls": {"function": {"arguments": "1}"}}}}},  # noqa: E501
            {"type": "message-end", "delta": {"finish_reason": "TOOL_CALL", "usage": UNITS}},
            request={"model": "command-r"},
            **COHERE,
        )
    )  # fmt: skip
    for found in (plain, streamed):
        assert (found.form, found.status, found.finish_reason, found.response_id) == (
            "cohere",
            "completed",
            "TOOL_CALL",
            "r",
        )
        (choice,) = found.choices
        assert (choice.text, choice.reasoning) == ("Hi", "hm")
        (asked,) = choice.tool_calls
        assert (asked.id, asked.name, asked.arguments) == ("c1", "look", '{"a": 1}')
        assert used(found) == {"input_uncached": 7, "output_text": 9}
        assert found.usage.provider_usage["tokens.input_tokens"] == "69"
        assert found.usage.cost_nano_usd


def test_cohere_v1_calls_its_usage_meta() -> None:
    where = COHERE | {"path": "/v1/chat"}
    plain = read(line("", {"text": "Hi", "finish_reason": "COMPLETE", "meta": UNITS}, **where))
    rows = [
        {"event_type": "stream-start", "generation_id": "g"},
        {"event_type": "text-generation", "text": "H"},
        {"event_type": "text-generation", "text": "i"},
        {"event_type": "stream-end", "finish_reason": "COMPLETE", "response": {"meta": UNITS}},
    ]
    lines = "\n".join(json.dumps(row) for row in rows)
    streamed = read(line("", lines, framing="ndjson", streaming=True, **where))
    for found in (plain, streamed):
        assert (found.form, found.choices[0].text, found.finish_reason) == (
            "cohere",
            "Hi",
            "COMPLETE",
        )
        assert used(found) == {"input_uncached": 7, "output_text": 9}


def test_mistral_thinks_in_parts_of_its_content() -> None:
    message = {
        "content": [
            {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
            {"type": "text", "text": "Hi"},
        ]
    }
    body = {
        "model": "mistral-small-latest",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 4},
    }
    found = read(line("", body, host="api.mistral.ai", path="/v1/chat/completions"))
    assert (found.choices[0].text, found.choices[0].reasoning) == ("Hi", "hm")
    assert used(found) == {"input_uncached": 10, "output_text": 4}
    assert found.usage.cost_nano_usd


END = {"done": True, "done_reason": "stop", "prompt_eval_count": 17, "eval_count": 3}


def ollama(*rows: dict[str, Any], **where: Any) -> Exchange:
    body = "\n".join(json.dumps({"model": "llama3", **row}) for row in rows)
    return read(line("", body, framing="ndjson", streaming=True, **OLLAMA | where))


def test_ollama_streams_lines_and_counts_in_the_last() -> None:
    found = ollama(
        {"message": {"thinking": "hm", "content": ""}, "done": False},
        {"message": {"content": "Hi"}, "done": False},
        {"message": {"content": "", "tool_calls": [{"function": {"name": "look", "arguments": {"a": 1}}}]}, "done": False},  # noqa: E501
        {"message": {"content": ""}, **END},
    )  # fmt: skip
    assert (found.form, found.status, found.finish_reason, found.model) == (
        "ollama",
        "completed",
        "stop",
        "llama3",
    )
    (choice,) = found.choices
    assert (choice.text, choice.reasoning) == ("Hi", "hm")
    assert json.loads(choice.tool_calls[0].arguments) == {"a": 1}
    assert used(found) == {"input_uncached": 17, "output_text": 3}
    assert found.usage.cost_nano_usd is None
    assert ollama({"message": {"content": "Hi"}, "done": False}).status == "interrupted"


def test_ollama_s_token_ids_are_content_and_not_usage() -> None:
    found = ollama({"response": "Hi", "context": [1, 2, 3], **END}, path="/api/generate")
    assert found.choices[0].text == "Hi"
    assert found.usage.provider_usage == {"prompt_eval_count": "17", "eval_count": "3"}


def test_a_prompt_that_ollama_had_cached_is_not_known_to_be_free() -> None:
    end = {name: value for name, value in END.items() if name != "prompt_eval_count"}
    found = ollama({"response": "Hi", **end}, path="/api/generate")
    assert (found.usage.quality, found.usage.reason) == ("unknown", "partial")


# Recorded traffic.


def test_binary_frames_are_those_of_botocore_s_decoder() -> None:
    compared = 0
    for exchange in recorded("streams"):
        if exchange.source.framing != "aws-eventstream":
            continue
        theirs = EventStreamBuffer()
        theirs.add_data(exchange.source.response)
        whole = [
            (str(m.headers.get(":event-type", "")), eventstream._unwrapped(m.payload))
            for m in theirs
        ]
        ours = [(m.event, m.payload) for m in eventstream.messages(exchange.source.response)]
        assert ours == whole
        compared += len(ours)
    assert compared > 1000


OWN = ("bedrock", "cohere", "mistral", "ollama")
# Of what is priced: models that the book does not have.
UNPRICED = (
    "claude-v2",
    "kimi-k2-thinking",
    "sagemaker",
    "command-a-reasoning",
    "gpt-oss-safeguard",
)


def recorded(name: str) -> Iterator[Exchange]:
    path = DATA / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"the recorded traffic is not at {path}")
    for text in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(text)
        if row["provider"].startswith(OWN):
            yield read(row)


@pytest.mark.parametrize(("name", "count"), [("streams", 61), ("completions", 139)])
def test_recorded_exchanges_are_understood_measured_and_priced(name: str, count: int) -> None:
    found = list(recorded(name))
    assert len(found) == count
    for exchange in found:
        assert (exchange.form != "other", exchange.status) == (True, "completed")
        assert exchange.choices
        assert exchange.finish_reason
        if exchange.usage.quality == "unknown":
            assert (exchange.form, exchange.usage.reason) == ("ollama", "partial")
            continue
        assert exchange.usage.classes["output_text"] > 0
        asked = exchange.source.path + exchange.request_model
        local = exchange.form == "ollama"
        priced = exchange.usage.cost_nano_usd is not None
        assert priced is not (local or any(name in asked for name in UNPRICED)), exchange.source.id
