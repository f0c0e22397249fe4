"""What tests of wrapped clients ask for, and the answers that no sample has."""

import json
from dataclasses import replace
from typing import Any

import anthropic
import openai
from pydantic import BaseModel

from tests.provider import Provider, Recordings
from turnlog.providers import Source

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


def openai_of(provider: Provider, scenario: str = "", **more: Any) -> openai.OpenAI:
    base = f"{provider.url(scenario)}/v1"
    return openai.OpenAI(base_url=base, api_key=KEY, **{"max_retries": 0, **more})


def anthropic_of(provider: Provider, scenario: str = "", **more: Any) -> anthropic.Anthropic:
    base = provider.url(scenario)
    return anthropic.Anthropic(base_url=base, api_key=KEY, **{"max_retries": 0, **more})
