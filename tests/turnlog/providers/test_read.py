"""What exchanges say: terminal states, output, ids, however strange the bodies are."""

import base64
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.turnlog.providers.lines import DONE, delta, line, read, stream
from turnlog.providers import BadLine, ToolCall

ROOT = Path(__file__).parents[3]
SAMPLES = ROOT / "samples" / "exchanges.jsonl"
DATA = ROOT.parent / "shared" / "data"


def lines(path: Path) -> Iterator[dict[str, Any]]:
    for text in path.read_text(encoding="utf-8").splitlines():
        yield json.loads(text)


# Terminal states.

ANTHROPIC_START = {
    "type": "message_start",
    "message": {"id": "msg_1", "model": "claude", "usage": {"input_tokens": 9, "output_tokens": 1}},
}
ANTHROPIC_TEXT = {
    "type": "content_block_delta",
    "index": 0,
    "delta": {"type": "text_delta", "text": "Hi"},
}
ANTHROPIC_END = {
    "type": "message_delta",
    "delta": {"stop_reason": "end_turn"},
    "usage": {"output_tokens": 5},
}
GEMINI = {"candidates": [{"content": {"parts": [{"text": "Hi"}]}}], "usageMetadata": {}}
ERROR = {"error": {"message": "upstream broke", "code": 502}}


@pytest.mark.parametrize(
    ("exchange", "status", "finish", "code"),
    [
        (stream("chat", delta("a"), delta(finish="stop"), end=DONE), "completed", "stop", ""),
        (stream("chat", delta("a"), delta(finish="stop")), "completed", "stop", ""),
        (stream("chat", delta("a"), end=DONE), "completed", "", ""),
        (stream("chat", delta("a"), delta("b")), "interrupted", "", "cut_off"),
        (stream("chat", delta("a"), end='data: {"id": "chatc'), "interrupted", "", "cut_off"),
        (stream("chat"), "interrupted", "", "cut_off"),
        (stream("chat", delta("a"), delta(finish=7), end=DONE), "completed", "7", ""),
        (stream("chat", delta("a"), delta(finish="")), "completed", "", ""),
        (stream("chat", delta("a", finish=""), delta("b", finish="")), "interrupted", "", "cut_off"),  # noqa: E501
        (stream("chat", delta("a"), delta("b", 1), delta(finish="stop")), "interrupted", "stop", "cut_off"),  # noqa: E501
        (stream("chat", delta("a"), ERROR), "failed", "", "provider_error"),
        (stream("chat", delta("a"), ERROR, end=DONE), "failed", "", "provider_error"),
        (stream("chat", ERROR), "failed", "", "provider_error"),
        (stream("chat", delta("a"), delta(finish="error")), "failed", "error", "provider_error"),
        (line("chat", ERROR), "failed", "", "provider_error"),
        (line("chat", {"error": {"message": "filtered", "code": "content_filter"}}), "completed", "content_filter", ""),  # noqa: E501
        (line("chat", {"choices": [{"message": {"content": None}, "finish_reason": "weird"}]}), "completed", "weird", ""),  # noqa: E501
        (line("chat", {"choices": [{"message": {"content": None}, "finish_reason": None}]}), "completed", "", ""),  # noqa: E501
        (line("chat", '{"choices": [{"mess', framing="json"), "interrupted", "", "cut_off"),
        (line("chat", "", framing="json"), "interrupted", "", "cut_off"),
        (line("chat", "", framing="json", status=204), "completed", "", ""),
        (line("chat", ERROR, status=429), "failed", "", "http_429"),
        (line("chat", "<html>bad gateway</html>", status=502), "failed", "", "http_502"),
        (stream("chat", delta("a"), delta(finish="stop"), end=DONE, status=500), "failed", "stop", "http_500"),  # noqa: E501
        (line("anthropic", {"type": "error", "error": {"type": "overloaded_error"}}, status=529), "failed", "", "http_529"),  # noqa: E501
        (stream("anthropic", ANTHROPIC_START, ANTHROPIC_TEXT, ANTHROPIC_END), "completed", "end_turn", ""),  # noqa: E501
        (stream("anthropic", ANTHROPIC_START, ANTHROPIC_TEXT), "interrupted", "", "cut_off"),
        (stream("anthropic", ANTHROPIC_START, ANTHROPIC_TEXT, {"type": "error", "error": {"message": "overloaded"}}), "failed", "", "provider_error"),  # noqa: E501
        (stream("gemini", GEMINI, {"candidates": [{"finishReason": "SAFETY"}]}), "completed", "SAFETY", ""),  # noqa: E501
        (stream("gemini", GEMINI), "interrupted", "", "cut_off"),
        (stream("gemini", {"promptFeedback": {"blockReason": "OTHER"}}), "completed", "OTHER", ""),
        (line("gemini", {"candidates": [{"finishReason": 2}]}), "completed", "2", ""),
        (line("responses", {"object": "response", "status": "queued"}), "completed", "", ""),
        (line("responses", {"object": "response", "status": "failed", "error": {"code": "server_error"}}), "failed", "", "provider_error"),  # noqa: E501
        (line("responses", {"object": "response", "incomplete_details": {"reason": "max_output_tokens"}}), "completed", "max_output_tokens", ""),  # noqa: E501
        (stream("responses", {"type": "response.created", "response": {"id": "r"}}), "interrupted", "", "cut_off"),  # noqa: E501
        (stream("responses", {"type": "response.completed", "response": {"id": "r"}}), "completed", "", ""),  # noqa: E501
        (stream("responses", {"type": "response.failed", "response": {"error": None}}), "failed", "", "provider_error"),  # noqa: E501
        (stream("responses", {"type": "response.cancelled", "response": {}}), "cancelled", "", "cancelled"),  # noqa: E501
        (stream("responses", {"type": "error", "code": "x", "message": "broke"}), "failed", "", "provider_error"),  # noqa: E501
        (line("", {"object": "list", "data": []}), "completed", "", ""),
        (line("", '{"done":false}\n{"done":true}\n', framing="ndjson"), "completed", "", ""),
        (line("", '{"done":false}\n{"done":fal', framing="ndjson"), "interrupted", "", "cut_off"),
    ],
)  # fmt: skip
def test_every_exchange_has_one_terminal_state(
    exchange: dict[str, Any], status: str, finish: str, code: str
) -> None:
    found = read(exchange)
    assert (found.status, found.finish_reason, found.error_code) == (status, finish, code)


def test_an_error_after_good_chunks_keeps_them_and_its_message() -> None:
    found = read(stream("chat", delta("good "), delta("chunks"), ERROR))
    assert found.choices[0].text == "good chunks"
    assert found.error == "upstream broke"


def test_a_refusal_is_a_normal_end() -> None:
    answer = {"message": {"content": None, "refusal": "I will not."}, "finish_reason": "stop"}
    found = read(line("chat", {"choices": [answer]}))
    assert (found.status, found.choices[0].refusal) == ("completed", "I will not.")


# Output.


def test_choices_that_come_interleaved_are_told_apart() -> None:
    chunks = [delta("a", 0), delta("x", 1), delta("b", 0), delta("y", 1)]
    found = read(stream("chat", *chunks, end=DONE))
    assert [choice.text for choice in found.choices] == ["ab", "xy"]
    assert [(chunk.choice, chunk.text) for chunk in found.chunks] == [
        (0, "a"), (1, "x"), (0, "b"), (1, "y")
    ]  # fmt: skip


def call(index: int | None, arguments: str, call_id: str = "", name: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {"function": {"arguments": arguments}}
    if index is not None:
        found["index"] = index
    if call_id:
        found |= {"id": call_id, "type": "function"}
        found["function"]["name"] = name
    return delta(tool_calls=[found])


@pytest.mark.parametrize(
    "chunks",
    [
        [call(0, "", "a", "f"), call(0, '{"x'), call(1, "", "b", "g"), call(0, '":1}'), call(1, "{}")],  # noqa: E501
        [call(0, '{"x', "a", "f"), call(0, '":1}', "a", "f"), call(1, "{}", "b", "g")],
        [call(None, '{"x', "a", "f"), call(None, '":1}'), call(None, "{}", "b", "g")],
        [call(0, '{"x":1}', "a", "f"), call(0, "", "b", "g"), call(0, "{}")],
    ],
)  # fmt: skip
def test_deltas_of_a_tool_call_find_their_call(chunks: list[dict[str, Any]]) -> None:
    found = read(stream("chat", *chunks, end=DONE))
    assert found.choices[0].tool_calls == [
        ToolCall("a", "f", '{"x":1}'), ToolCall("b", "g", "{}")
    ]  # fmt: skip
    assert sum(chunk.kind == "tool_call" for chunk in found.chunks) == len(chunks)


def test_a_character_split_over_two_chunks_is_whole_in_the_later_one() -> None:
    chunks = [delta("ok \ud83d"), delta("\ude04!"), delta("\ud83d", 1)]
    found = read(stream("chat", *chunks, end=DONE))
    assert [choice.text for choice in found.choices] == ["ok 😄!", "\ufffd"]
    assert [chunk.text for chunk in found.chunks] == ["ok ", "😄!", "\ufffd"]


def test_reasoning_is_kept_apart_from_text() -> None:
    chunks = [delta(reasoning_content="think"), delta(None, reasoning="ing"), delta("done")]
    found = read(stream("chat", *chunks, end=DONE))
    assert (found.choices[0].reasoning, found.choices[0].text) == ("thinking", "done")


@pytest.mark.parametrize("message", [None, "text", [], {"content": 5}, {"tool_calls": {"a": 1}}])
def test_contents_of_odd_types_say_nothing(message: Any) -> None:
    found = read(line("chat", {"choices": [{"message": message}, None, 3], "usage": []}))
    assert (found.status, found.usage.reason) == ("completed", "no_usage")


def test_the_id_and_model_are_the_first_that_are_not_empty() -> None:
    empty = {"id": "", "model": "", "choices": []}
    later = delta("b") | {"id": "chatcmpl-2", "model": "other"}
    found = read(stream("chat", empty, delta("a"), later, end=DONE))
    assert (found.response_id, found.model) == ("chatcmpl-1", "gpt-4o-mini")


def test_a_resumed_stream_takes_its_output_from_the_end() -> None:
    output = [
        {"type": "reasoning", "summary": [{"text": "thought"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "all of it"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    ]
    end = {"type": "response.completed", "response": {"id": "r", "output": output}}
    found = read(stream("responses", {"type": "response.output_text.delta", "delta": "of it"}, end))
    assert (found.choices[0].text, found.choices[0].reasoning) == ("all of it", "thought")
    assert found.choices[0].tool_calls == [ToolCall("c", "f", "{}")]
    assert [chunk.text for chunk in found.chunks] == ["of it"]


def test_a_gemini_stream_without_sse_is_one_array() -> None:
    body = json.dumps([GEMINI, {"candidates": [{"finishReason": "STOP"}]}])
    whole = read(line("gemini", body, streaming=True))
    cut = read(line("gemini", body[:-30], streaming=True))
    assert (whole.status, cut.status) == ("completed", "interrupted")
    assert whole.choices[0].text == cut.choices[0].text == "Hi"


# Usage.

FULL = {"prompt_tokens": 10, "completion_tokens": 2}


def test_usage_may_come_in_a_last_chunk_without_choices_or_under_groqs_name() -> None:
    last = {"choices": [], "usage": FULL}
    groq = delta(finish="stop") | {"x_groq": {"usage": FULL}}
    for end in (last, groq):
        found = read(stream("chat", delta("a") | {"usage": None}, delta(finish="stop"), end))
        assert found.usage.classes["input_uncached"] == 10
        assert found.usage.quality == "measured"


def test_repeated_counts_are_never_summed() -> None:
    chunks = [
        {**GEMINI, "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": n}}
        for n in (1, 5, 8)
    ]
    chunks[-1]["candidates"] = [{"finishReason": "STOP"}]
    found = read(stream("gemini", *chunks))
    assert (found.usage.classes["input_uncached"], found.usage.classes["output_text"]) == (9, 8)


def test_the_last_count_of_an_anthropic_stream_holds() -> None:
    end = ANTHROPIC_END | {"usage": {"input_tokens": 12, "output_tokens": 5}}
    found = read(stream("anthropic", ANTHROPIC_START, ANTHROPIC_TEXT, end))
    assert (found.usage.classes["input_uncached"], found.usage.classes["output_text"]) == (12, 5)


def test_a_count_up_to_a_cut_is_not_the_usage_but_is_kept() -> None:
    found = read(stream("anthropic", ANTHROPIC_START, ANTHROPIC_TEXT))
    assert (found.usage.quality, found.usage.reason) == ("unknown", "partial")
    assert found.usage.provider_usage == {"input_tokens": "9", "output_tokens": "1"}


# Forms.


@pytest.mark.parametrize(
    ("provider", "host", "path", "response", "form"),
    [
        ("x", "any.example", "/v9/generate", {"choices": []}, "chat"),
        ("x", "any.example", "/v1/chat/completions", {"outputs": []}, "other"),
        ("x", "any.example", "/v1/chat/completions", ANTHROPIC_START, "anthropic"),
        ("azure_openai", "r.openai.azure.com", "/openai/deployments/d/chat/completions?api-version=1", {"choices": []}, "chat"),  # noqa: E501
        ("mistral", "api.mistral.ai", "/v1/chat/completions", {"choices": []}, "chat"),
        ("bedrock_invoke", "", "/model/anthropic.claude-v2/invoke", {"type": "message", "role": "assistant", "content": []}, "anthropic"),  # noqa: E501
        ("bedrock_invoke", "", "/model/amazon.titan-text-lite-v1/invoke", {"results": [], "inputTextTokenCount": 3}, "bedrock"),  # noqa: E501
        ("bedrock_converse", "", "/model/amazon.nova-lite-v1%3A0/converse", {"output": {}, "stopReason": "end_turn"}, "bedrock"),  # noqa: E501
        ("bedrock", "", "/model/anthropic.claude-v2/count-tokens", {"inputTokens": 3}, "other"),
        ("cohere", "api.cohere.com", "/v2/chat", {"message": {}, "usage": {"billed_units": {}}}, "cohere"),  # noqa: E501
        ("cohere", "api.cohere.com", "/v2/rerank", {"results": []}, "other"),
        ("ollama", "127.0.0.1:11434", "/api/chat", {"message": {}, "done": True}, "ollama"),
        ("openai_embeddings", "api.openai.com", "/v1/embeddings", {"object": "list"}, "other"),
        ("anthropic", "api.anthropic.com", "/v1/messages/count_tokens", {"input_tokens": 3}, "other"),  # noqa: E501
        ("gemini", "", "/v1/models/m:countTokens", {"totalTokens": 3}, "other"),
        ("openai_assistants", "api.openai.com", "/v1/threads/t/messages", {"object": "list"}, "other"),  # noqa: E501
    ],
)  # fmt: skip
def test_the_form_is_decided_by_path_and_shape(
    provider: str, host: str, path: str, response: Any, form: str
) -> None:
    found = read(line("", response, provider=provider, host=host, path=path))
    assert found.form == form
    assert bool(found.warnings) == (form == "other")
    assert (found.usage.reason == "not_understood") == (form == "other")


@pytest.mark.parametrize("framing", ["json", "sse", "ndjson", "", "nonsense"])
def test_the_bytes_decide_how_a_body_is_framed(framing: str) -> None:
    plain = read(line("chat", {"choices": [{"finish_reason": "stop"}]}, framing=framing))
    streamed = read(stream("chat", delta("a"), end=DONE, framing=framing, streaming=False))
    assert plain.status == streamed.status == "completed"
    assert (plain.streaming, streamed.streaming) == (framing == "ndjson", True)


def test_plain_data_lines_are_counted_and_do_no_harm() -> None:
    found = read(stream("chat", delta("a"), end=f"data: keep going\n\n{DONE}"))
    assert found.status == "completed"
    assert found.warnings == ["plain_data: 1 data lines are not JSON"]


# Lines.


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"id": None}, "id: missing"),
        ({"id": 5}, "id: not a string"),
        ({"id": "x" * 5000}, "id: longer than 4096 bytes"),
        ({"status": None}, "status: missing"),
        ({"status": "200"}, "status: not an integer"),
        ({"status": True}, "status: not an integer"),
        ({"status": 0}, "status: not within 100 to 599"),
        ({"n": -1}, "n: not within 0 to 4611686018427387902"),
        ({"streaming": "yes"}, "streaming: neither true nor false"),
        ({"file": "\ud800"}, "file: a lone surrogate, which no UTF-8 has"),
        ({"response_headers": []}, "response_headers: not an object"),
        ({"response_body": "text"}, "response_body: not an object with text or b64"),
        ({"response_body": {}}, "response_body: neither text nor b64"),
        ({"response_body": {"b64": "a"}}, "response_body: b64 does not decode"),
        ({"request_body": {"b64": "?é"}}, "request_body: b64 does not decode"),
        ({"request_body": {"text": "\udc00"}}, "request_body: a lone surrogate, which no UTF-8 has"),  # noqa: E501
    ],
)  # fmt: skip
def test_a_line_that_is_no_exchange_says_which_field_is_wrong(
    change: dict[str, Any], reason: str
) -> None:
    with pytest.raises(BadLine) as caught:
        read(line("chat", {}) | change)
    assert str(caught.value) == reason


def test_bodies_are_the_bytes_that_were_sent_and_received() -> None:
    raw = bytes(range(256))
    found = read(line("", "") | {"response_body": {"b64": base64.b64encode(raw).decode()}})
    assert found.source.response == raw
    found = read(line("", "a\0b\r\né") | {"request_body": None})
    assert (found.source.response, found.source.request) == ("a\0b\r\né".encode(), b"")


NESTED = "[" * 100_000 + "]" * 100_000
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from(
        ["\ud83d", "stop", "response.completed", "message_delta", "message-end", "stream-end"]
    ),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["choices", "delta", "message", "content", "tool_calls", "function", "index", "usage",
             "type", "error", "candidates", "parts", "usageMetadata", "response", "output", "item",
             "content_block", "id", "model", "finish_reason", "prompt_tokens", "arguments",
             "event_type", "contentBlockDelta", "contentBlockIndex", "toolUse", "outputText",
             "results", "billed_units", "meta", "done", "prompt_eval_count", "stop_reason"]
        ),
        inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["chat", "responses", "anthropic", "gemini", ""]), st.lists(ODD), ODD)
def test_no_body_makes_the_reader_fail(form: str, events: list[Any], request: Any) -> None:
    for exchange in (stream(form, *events), line(form, events, request)):
        found = read(exchange)
        assert found.status in ("completed", "failed", "cancelled", "interrupted")
        for choice in found.choices:
            (choice.text + choice.reasoning + choice.refusal).encode()


@pytest.mark.parametrize("form", ["chat", "responses", "anthropic", "gemini", ""])
def test_deep_nesting_is_stored_and_not_followed(form: str) -> None:
    deep = '{"a":' * 900 + "1" + "}" * 900
    for text in (NESTED, f'{{"error":{deep},"choices":{deep}}}'):
        read(line(form, text, framing="json"))
        read(line(form, f"data: {text}\n\n", framing="sse"))


# Whole files.


def test_the_samples_cover_what_they_are_for() -> None:
    found = [read(exchange) for exchange in lines(SAMPLES)]
    assert {exchange.form for exchange in found} == {"chat", "responses", "anthropic", "gemini"}
    assert {exchange.status for exchange in found} == {"completed", "failed", "interrupted"}
    assert not any(exchange.warnings for exchange in found)
    assert all(
        exchange.usage.cost_nano_usd for exchange in found if exchange.usage.quality == "measured"
    )


EXPECTED = {
    "streams": Counter(completed=345, interrupted=4),
    "completions": Counter(completed=927),
    "errors": Counter(failed=57),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_recorded_traffic_ends_as_it_did(name: str) -> None:
    path = DATA / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"the recorded traffic is not at {path}")
    found = [read(exchange) for exchange in lines(path)]
    assert Counter(exchange.status for exchange in found) == EXPECTED[name]
    for exchange in found:
        recorded = exchange.source.response_bytes
        assert recorded is None or len(exchange.source.response) == recorded
