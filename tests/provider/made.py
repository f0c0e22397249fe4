"""Answers in forms that the project's samples lack, made here after the providers' references."""

import base64
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from tests.provider.kinds import message
from turnlog.providers import Source

SAID = ("Two ", "links ", "and a ", "quick ", "link ", "🔗.")
_JSON = "application/json"


def made() -> Iterator[tuple[str, bool, Source]]:
    """Yield kind, whether it is a stream, and the answer."""
    for kind, body in _PLAIN.items():
        yield kind, False, _source(kind, "json", _JSON, orjson.dumps(body))
    for kind, events in _SSE.items():
        framed = b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events)
        end = b"" if kind == "cohere" else b"data: [DONE]\n\n"
        yield kind, True, _source(kind, "sse", "text/event-stream", framed + end)
    lines = b"".join(orjson.dumps(line) + b"\n" for line in _OLLAMA)
    yield "ollama", True, _source("ollama", "ndjson", "application/x-ndjson", lines)
    yield "converse-stream", True, _binary("converse-stream", _CONVERSE)
    yield "invoke-stream", True, _binary("invoke-stream", list(_wrapped(_INVOKE)))


def _source(kind: str, framing: str, content_type: str, body: bytes) -> Source:
    return Source(
        id=f"made-{kind}-{framing}",
        file="",
        n=0,
        provider=kind,
        method="GET" if kind == "models" else "POST",
        host="127.0.0.1",
        path=f"/{kind}",
        status=200,
        streaming=framing != "json",
        framing=framing,
        content_type=content_type,
        request_content_type=_JSON,
        request=b"",
        response=body,
        response_bytes=len(body),
    )


def _binary(kind: str, events: list[tuple[str, Any]]) -> Source:
    body = b"".join(
        message({":event-type": name, ":content-type": _JSON, ":message-type": "event"}, payload)
        for name, payload in events
    )
    return _source(kind, "aws-eventstream", "application/vnd.amazon.eventstream", body)


def _wrapped(events: list[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    for event in events:
        yield "chunk", {"bytes": base64.b64encode(orjson.dumps(event)).decode()}


def _chunk(delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    head = {"id": "made1", "object": "chat.completion.chunk", "created": 1792400000}
    return {**head, "model": "mistral-small-latest", "choices": choices, **more}


def _text(text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choices = [{"index": 0, "text": text, "finish_reason": finish, "logprobs": None}]
    head = {"id": "made2", "object": "text_completion", "created": 1792400000}
    return {**head, "model": "gpt-3.5-turbo-instruct", "choices": choices, **more}


_OPENAI_USAGE = {"prompt_tokens": 21, "completion_tokens": 9, "total_tokens": 30}
_ANSWER = {"role": "assistant", "content": "".join(SAID)}
_CONTENT = {"role": "assistant", "content": [{"text": "".join(SAID)}]}
_BEDROCK_USAGE = {"inputTokens": 21, "outputTokens": 9, "totalTokens": 30}
_COHERE_USAGE = {
    "billed_units": {"input_tokens": 18, "output_tokens": 9},
    "tokens": {"input_tokens": 21, "output_tokens": 9},
}
_OLLAMA_HEAD = {"model": "llama3.2", "created_at": "2026-11-30T12:00:00.123456789Z"}
_OLLAMA_END = {
    "done": True,
    "done_reason": "stop",
    "total_duration": 812345678,
    "prompt_eval_count": 21,
    "eval_count": 9,
}
_ONE_PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJ"
    "RU5ErkJggg=="
)

_PLAIN: dict[str, Any] = {
    "completions": _text("".join(SAID), "stop", usage=_OPENAI_USAGE),
    "embeddings": {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.25, -0.5, 0.125, 1.0]}],
        "model": "text-embedding-3-small",
        "usage": {"prompt_tokens": 8, "total_tokens": 8},
    },
    "images": {
        "created": 1792400000,
        "data": [{"b64_json": _ONE_PIXEL}],
        "usage": {
            "input_tokens": 12,
            "input_tokens_details": {"image_tokens": 0, "text_tokens": 12},
            "output_tokens": 272,
            "total_tokens": 284,
        },
    },
    "models": {
        "object": "list",
        "data": [{"id": "gpt-4o-mini", "object": "model", "created": 1721172741, "owned_by": "x"}],
    },
    "mistral": {
        "id": "made1",
        "object": "chat.completion",
        "created": 1792400000,
        "model": "mistral-small-latest",
        "choices": [{"index": 0, "message": _ANSWER, "finish_reason": "stop"}],
        "usage": _OPENAI_USAGE,
    },
    "cohere": {
        "id": "made3",
        "finish_reason": "COMPLETE",
        "message": {
            "role": "assistant",
            "content": [{"type": "text", "text": "".join(SAID)}],
        },
        "usage": _COHERE_USAGE,
    },
    "ollama": {**_OLLAMA_HEAD, "message": _ANSWER, **_OLLAMA_END},
    "converse": {
        "output": {"message": _CONTENT},
        "stopReason": "end_turn",
        "usage": _BEDROCK_USAGE,
        "metrics": {"latencyMs": 412},
    },
    "invoke": {"output": {"message": _CONTENT}, "stopReason": "end_turn", "usage": _BEDROCK_USAGE},
}

_SSE: dict[str, list[Any]] = {
    "completions": [
        *(_text(said) for said in SAID),
        _text("", "stop", usage=_OPENAI_USAGE),
    ],
    "mistral": [
        _chunk({"role": "assistant", "content": ""}),
        *(_chunk({"content": said}) for said in SAID),
        _chunk({"content": ""}, "stop", usage=_OPENAI_USAGE),
    ],
    "cohere": [
        {"type": "message-start", "id": "made3", "delta": {"message": {"role": "assistant"}}},
        {
            "type": "content-start",
            "index": 0,
            "delta": {"message": {"content": {"type": "text", "text": ""}}},
        },
        *(
            {
                "type": "content-delta",
                "index": 0,
                "delta": {"message": {"content": {"text": said}}},
            }
            for said in SAID
        ),
        {"type": "content-end", "index": 0},
        {"type": "message-end", "delta": {"finish_reason": "COMPLETE", "usage": _COHERE_USAGE}},
    ],
}

_OLLAMA: list[Any] = [
    *(
        {**_OLLAMA_HEAD, "message": {"role": "assistant", "content": s}, "done": False}
        for s in SAID
    ),
    {**_OLLAMA_HEAD, "message": {"role": "assistant", "content": ""}, **_OLLAMA_END},
]

_CONVERSE: list[tuple[str, Any]] = [
    ("messageStart", {"role": "assistant"}),
    *(("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": said}}) for said in SAID),
    ("contentBlockStop", {"contentBlockIndex": 0}),
    ("messageStop", {"stopReason": "end_turn"}),
    ("metadata", {"usage": _BEDROCK_USAGE, "metrics": {"latencyMs": 412}}),
]

_INVOKE: list[Mapping[str, Any]] = [
    {"messageStart": {"role": "assistant"}},
    *({"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": said}}} for said in SAID),
    {"messageStop": {"stopReason": "end_turn"}},
    {"metadata": {"usage": _BEDROCK_USAGE, "metrics": {}}},
]
