"""Which message of a request gives a turn."""

from typing import Any

import pytest

from tests.turnlog.providers.lines import line, read

USER = {"role": "user", "content": "ask"}
ASSISTANT = {"role": "assistant", "content": "said"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


@pytest.mark.parametrize(
    ("request_body", "role", "text"),
    [
        ({"messages": [{"role": "system", "content": "s"}, USER]}, "user", "ask"),
        ({"messages": [USER, ASSISTANT]}, "user", "ask"),
        ({"messages": [USER, ASSISTANT, {"role": "tool", "content": "42"}]}, "tool", "42"),
        ({"messages": [USER, {"role": "function", "name": "f", "content": "42"}]}, "tool", "42"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}]}, "user", "a"),  # noqa: E501
        ({"messages": [{"role": "user", "content": None}]}, "user", ""),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "r"}]}]}, "tool", "r"),  # noqa: E501
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "r"}]}, {"type": "text", "text": "and?"}]}]}, "user", "r\nand?"),  # noqa: E501
        ({"input": "ask"}, "user", "ask"),
        ({"input": [{"role": "developer", "content": "s"}, {"role": "user", "content": [{"type": "input_text", "text": "ask"}]}]}, "user", "ask"),  # noqa: E501
        ({"input": [USER, {"type": "function_call", "name": "f"}, {"type": "function_call_output", "output": "42"}]}, "tool", "42"),  # noqa: E501
        ({"contents": "ask"}, "user", "ask"),
        ({"contents": {"parts": [{"text": "ask"}]}}, "user", "ask"),
        ({"contents": [{"parts": [{"text": "ask"}]}, {"role": "model", "parts": [{"text": "x"}]}]}, "user", "ask"),  # noqa: E501
        ({"contents": [{"role": "user", "parts": [{"functionResponse": {"response": {"r": 1}}}]}]}, "tool", '{"r": 1}'),  # noqa: E501
        ({"prompt": "once"}, "user", "once"),
        ({"prompt": ["a", "b"]}, "user", "a\nb"),
        ({"prompt": [1, 2, 3]}, "user", ""),
        ({"messages": [{"role": "user", "content": [{"text": "ask"}]}]}, "user", "ask"),
    ],
)  # fmt: skip
def test_the_last_user_or_tool_message_gives_the_turn(
    request_body: dict[str, Any], role: str, text: str
) -> None:
    message = read(line("chat", {}, request_body)).message
    assert message is not None
    assert (message.role, message.text) == (role, text)


@pytest.mark.parametrize(
    "request_body",
    [{}, {"messages": []}, {"messages": [ASSISTANT]}, {"messages": [None, 3]}, {"input": []}, []],
)
def test_a_request_without_such_a_message_gives_no_turn(request_body: Any) -> None:
    assert read(line("chat", {}, request_body)).message is None


def test_a_message_of_more_than_text_is_kept_whole_beside_it() -> None:
    only_text = read(line("chat", {}, {"messages": [USER]})).message
    with_image = {"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}
    both = read(line("chat", {}, {"messages": [with_image]})).message
    assert only_text is not None and only_text.raw == b""
    assert both is not None and b"data:image/png" in both.raw


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        ("/v1/chat/completions", {"model": "m"}, "m"),
        ("/v1beta/models/gemini-2.5-flash:generateContent", {}, "gemini-2.5-flash"),
        ("/model/amazon.nova-lite-v1%3A0/converse", {}, "amazon.nova-lite-v1:0"),
        ("/model/anthropic.claude-v2:1/invoke", {}, "anthropic.claude-v2:1"),
        ("/openai/deployments/mine/chat/completions", {}, "mine"),
        ("/v1/responses/resp_1", {}, ""),
    ],
)
def test_the_model_is_in_the_body_or_the_path(path: str, body: dict[str, Any], model: str) -> None:
    assert read(line("", {}, body, path=path)).request_model == model
