"""What a span says: kind, messages, times, ids, outcome, in the names of each instrumentation."""

import json
from typing import Any

import pytest

from serve.otel.kinds import Kind
from serve.otel.reading import without_content
from tests.serve.otel.made import AT_US, call, event, payload, reading, span, spans_of
from turnlog.ids import is_id

CHAT = {"gen_ai.operation.name": "chat"}
USER = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
PARTS = [
    {"role": "user", "parts": [{"type": "text", "content": "hello"}]},
]
ANSWER = [
    {
        "role": "assistant",
        "parts": [
            {"type": "reasoning", "content": "hm"},
            {"type": "text", "content": "hi"},
            {"type": "tool_call", "id": "c1", "name": "look", "arguments": {"a": 1}},
        ],
        "finish_reason": "tool_call",
    }
]


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"gen_ai.operation.name": "chat"}, Kind.CALL),
        ({"gen_ai.operation.name": "embeddings"}, Kind.EMBEDDING),
        ({"gen_ai.operation.name": "execute_tool"}, Kind.TOOL),
        ({"gen_ai.operation.name": "invoke_agent", "gen_ai.usage.input_tokens": 5}, Kind.WRAPPER),
        ({"openinference.span.kind": "LLM"}, Kind.CALL),
        ({"openinference.span.kind": "llm"}, Kind.CALL),
        ({"openinference.span.kind": "CHAIN", "llm.token_count.prompt": 5}, Kind.WRAPPER),
        ({"openinference.span.kind": "RETRIEVER", "gen_ai.request.model": "m"}, Kind.OTHER),
        ({"openinference.span.kind": "TOOL", "gen_ai.operation.name": "chat"}, Kind.TOOL),
        ({"ai.operationId": "ai.generateText"}, Kind.WRAPPER),
        ({"ai.operationId": "ai.generateText.doGenerate"}, Kind.CALL),
        ({"ai.operationId": "ai.streamText.doStream"}, Kind.CALL),
        ({"operation.name": "ai.toolCall my.function"}, Kind.TOOL),
        ({"traceloop.span.kind": "workflow", "gen_ai.request.model": "m"}, Kind.WRAPPER),
        ({"llm.request.type": "chat"}, Kind.CALL),
        ({"langfuse.observation.type": "generation"}, Kind.CALL),
        ({"langfuse.observation.type": "span"}, Kind.OTHER),
        ({"gen_ai.usage.input_tokens": 5}, Kind.CALL),
        ({"pydantic_ai.all_messages": "[]", "gen_ai.usage.input_tokens": 5}, Kind.WRAPPER),
        ({"http.request.method": "GET"}, Kind.OTHER),
        ({"db.system": "postgresql"}, Kind.OTHER),
        ({}, Kind.OTHER),
    ],
)
def test_kinds(given: dict[str, Any], kind: Kind) -> None:
    found = reading(given)
    assert found.kind is kind
    assert (found.call is not None) is (kind in (Kind.CALL, Kind.EMBEDDING))


@pytest.mark.parametrize(
    ("given", "events"),
    [
        ({"gen_ai.input.messages": json.dumps(USER)}, []),
        ({"gen_ai.input.messages": json.dumps(PARTS)}, []),
        ({"gen_ai.prompt": json.dumps(USER)}, []),
        ({"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "hello"}, []),
        ({"gen_ai.prompt.role": "user", "gen_ai.prompt.content": "hello"}, []),
        (
            {
                "llm.input_messages.1.message.role": "assistant",
                "llm.input_messages.1.message.content": "no",
                "llm.input_messages.0.message.role": "user",
                "llm.input_messages.0.message.content": "hello",
            },
            [],
        ),
        (
            {
                "llm.input_messages.0.message.role": "user",
                "llm.input_messages.0.message.contents.0.message_content.type": "text",
                "llm.input_messages.0.message.contents.0.message_content.text": "hello",
            },
            [],
        ),
        ({"input.value": json.dumps({"messages": USER})}, []),
        ({"input.value": "hello"}, []),
        ({"ai.prompt.messages": json.dumps(USER)}, []),
        ({"ai.prompt": json.dumps({"prompt": "hello"})}, []),
        ({"langfuse.observation.input": json.dumps(USER)}, []),
        ({"traceloop.entity.input": json.dumps({"messages": USER})}, []),
        ({}, [event("gen_ai.user.message", content="hello")]),
        ({}, [event("gen_ai.content.prompt", **{"gen_ai.prompt": json.dumps(USER)})]),
        (
            {},
            [
                event(
                    "gen_ai.client.inference.operation.details",
                    **{"gen_ai.input.messages": json.dumps(PARTS)},
                )
            ],
        ),
    ],
)
def test_the_input_turn_is_the_last_message_of_a_user(
    given: dict[str, Any], events: list[Any]
) -> None:
    message = call(CHAT | given, *events).exchange.message
    assert message is not None
    assert (message.role, message.text) == ("user", "hello")


@pytest.mark.parametrize(
    ("given", "events"),
    [
        ({"gen_ai.output.messages": json.dumps(ANSWER)}, []),
        (
            {
                "gen_ai.completion.0.content": "hi",
                "gen_ai.completion.0.reasoning": "hm",
                "gen_ai.completion.0.tool_calls.0.id": "c1",
                "gen_ai.completion.0.tool_calls.0.name": "look",
                "gen_ai.completion.0.tool_calls.0.arguments": '{"a": 1}',
            },
            [],
        ),
        (
            {
                "llm.output_messages.0.message.content": "hi",
                "llm.output_messages.0.message.reasoning": "hm",
                "llm.output_messages.0.message.tool_calls.0.tool_call.id": "c1",
                "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "look",
                "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": (
                    '{"a": 1}'
                ),
            },
            [],
        ),
        (
            {
                "ai.response.text": "hi",
                "ai.response.reasoning": "hm",
                "ai.response.toolCalls": json.dumps(
                    [{"toolCallId": "c1", "toolName": "look", "args": '{"a": 1}'}]
                ),
            },
            [],
        ),
        (
            {},
            [
                event(
                    "gen_ai.choice",
                    index=0,
                    message=json.dumps(
                        {
                            "content": "hi",
                            "reasoning": "hm",
                            "tool_calls": [
                                {"id": "c1", "function": {"name": "look", "arguments": '{"a": 1}'}}
                            ],
                        }
                    ),
                )
            ],
        ),
    ],
)
def test_the_answer_keeps_text_reasoning_and_calls_apart(
    given: dict[str, Any], events: list[Any]
) -> None:
    (choice,) = call(CHAT | given, *events).exchange.choices
    assert (choice.text, choice.reasoning) == ("hi", "hm")
    (asked,) = choice.tool_calls
    assert (asked.id, asked.name, json.loads(asked.arguments)) == ("c1", "look", {"a": 1})


def test_a_message_of_a_tool_is_the_tool_s() -> None:
    said = [*USER, {"role": "tool", "parts": [{"type": "tool_call_response", "response": "57"}]}]
    message = call(CHAT | {"gen_ai.input.messages": json.dumps(said)}).exchange.message
    assert message is not None
    assert (message.role, message.text) == ("tool", "57")


@pytest.mark.parametrize(
    ("given", "more", "outcome"),
    [
        ({}, {}, ("completed", "")),
        ({}, {"status": {"code": 1}}, ("completed", "")),
        ({}, {"status": {"code": "STATUS_CODE_ERROR"}}, ("failed", "provider_error")),
        ({"error.type": "timeout"}, {"status": {"code": 2}}, ("failed", "timeout")),
        ({"error.type": "429"}, {}, ("failed", "http_429")),
        ({"http.response.status_code": 529}, {}, ("failed", "http_529")),
        ({"error.type": "asyncio.CancelledError"}, {}, ("cancelled", "cancelled")),
        ({"error.type": "a b"}, {}, ("failed", "other")),
    ],
)
def test_outcomes(given: dict[str, Any], more: dict[str, Any], outcome: tuple[str, str]) -> None:
    exchange = call(CHAT | given, **more).exchange
    assert (exchange.status, exchange.error_code) == outcome


@pytest.mark.parametrize(
    ("given", "models"),
    [
        ({"gen_ai.request.model": "a", "gen_ai.response.model": "b"}, ("a", "b")),
        ({"gen_ai.response.model": "b"}, ("b", "b")),
        ({"llm.model_name": "b", "llm.invocation_parameters": '{"model": "a"}'}, ("b", "b")),
        ({"llm.invocation_parameters": '{"model": "a"}'}, ("a", "a")),
        ({"llm.invocation_parameters": "[1]"}, ("", "")),
    ],
)
def test_models(given: dict[str, Any], models: tuple[str, str]) -> None:
    exchange = call(CHAT | given).exchange
    assert (exchange.request_model, exchange.model) == models


def test_what_went_wrong_is_content() -> None:
    failed = {"status": {"code": 2}}
    raised = event("exception", **{"exception.message": "it broke"})
    assert call(CHAT, raised, **failed).exchange.error == "it broke"
    assert call(CHAT, status={"code": 2, "message": "no"}).exchange.error == "no"


def test_times_are_the_span_s_and_those_that_lack_are_filled_in() -> None:
    told = call(CHAT).told
    assert (told.began_us, told.ended_us, told.total_us) == (AT_US, AT_US + 1_500_000, 1_500_000)
    no_end = call(CHAT, endTimeUnixNano=None)
    assert no_end.told.ended_us == AT_US
    none = call(CHAT, startTimeUnixNano="0", endTimeUnixNano="")
    assert (none.told.began_us, none.told.ended_us, none.told.total_us) == (None, None, None)
    assert none.exchange.warnings == ["no_time"]
    assert call(CHAT, startTimeUnixNano=str(2**64 - 1)).told.began_us is None


@pytest.mark.parametrize(
    ("given", "micros"),
    [
        ({"gen_ai.response.time_to_first_chunk": 0.25}, 250_000),
        ({"ai.response.msToFirstChunk": 426.8535}, 426_854),
        ({"gen_ai.response.time_to_first_chunk": -1}, None),
        ({"gen_ai.response.time_to_first_chunk": "soon"}, None),
        ({"langfuse.observation.completion_start_time": '"never"'}, None),
        ({}, None),
    ],
)
def test_time_to_the_first_token(given: dict[str, Any], micros: int | None) -> None:
    found = call(CHAT | given)
    assert found.told.ttft_us == micros
    assert found.exchange.streaming is (micros is not None)


def test_users_and_conversations_that_are_no_ids_get_one_and_stay_in_the_frame() -> None:
    found = call(CHAT | {"user.id": "a@b.org", "session.id": "s", "gen_ai.conversation.id": "c 1"})
    assert is_id(found.told.user)
    assert found.told.user.startswith("x_")
    assert found.told.replaced == {"user": "a@b.org"}
    assert found.exchange.source.file == "c 1"
    plain = call(CHAT | {"enduser.id": "ann", "session.id": "s"})
    assert (plain.told.user, plain.told.replaced, plain.exchange.source.file) == ("ann", {}, "s")


def test_every_attribute_stands_in_one_of_the_two_frames_under_its_own_name() -> None:
    given = CHAT | {
        "gen_ai.prompt.0.content": "q",
        "custom": [1, "two"],
        "gen_ai.request.top_p": 1.0,
    }
    source = call(
        given, event("odd", a=1), event("gen_ai.user.message", content="q")
    ).exchange.source
    request, response = json.loads(source.request), json.loads(source.response)
    assert request["attributes"] | response["attributes"] == given
    assert not request["attributes"].keys() & response["attributes"].keys()
    assert [e["name"] for e in request["events"]] == ["gen_ai.user.message"]
    assert [e["name"] for e in response["events"]] == ["odd"]


def test_the_order_of_attributes_changes_nothing() -> None:
    given = CHAT | {"a": 1, "b": 2}
    turned = dict(reversed(given.items()))
    assert call(given).exchange == call(turned).exchange


def test_a_call_without_its_content_keeps_what_bills() -> None:
    full = call(CHAT | {"gen_ai.usage.input_tokens": 5, "gen_ai.prompt.0.content": "long"})
    bare = without_content(full)
    assert bare.exchange.usage == full.exchange.usage
    assert b"long" not in bare.exchange.source.request + bare.exchange.source.response
    assert bare.exchange.message is None


@pytest.mark.parametrize(
    "given",
    [
        {"gen_ai.input.messages": "[" * 900 + "]" * 900},
        {"input.value": '{"messages":' * 900 + "1" + "}" * 900},
        {
            "gen_ai.input.messages": '[{"role":"user","content":[{"type":"text","content":'
            + "[" * 400
            + "]" * 400
            + "}]}]"
        },
        {"gen_ai.output.messages": '{"role": 1, "content": {"a": null}, "tool_calls": [1, {}]}'},
        {"gen_ai.prompt.99999999999999999999.role": "user"},
        {"llm.input_messages..message.role": "user", "gen_ai.completion.0.": "x"},
        {"gen_ai.input.messages": True, "gen_ai.output.messages": 7, "session.id": 9},
        {"ai.response.providerMetadata": '{"anthropic": {"usage": [1]}}'},
        {"langfuse.observation.usage_details": '{"input": {"a": 1}}'},
        {"gen_ai.response.finish_reasons": [None, "", "stop"]},
    ],
)
def test_odd_values_are_kept_and_break_nothing(given: dict[str, Any]) -> None:
    assert call(CHAT | given).exchange.status == "completed"


def test_a_span_says_nothing_of_its_content_in_its_repr() -> None:
    (found,) = spans_of(payload(span({"gen_ai.prompt.0.content": "secret"})))
    assert "secret" not in repr(found)
