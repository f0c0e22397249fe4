"""Lines of recorded traffic, made for one test each."""

import json
from typing import Any

from turnlog.providers import Exchange, read_exchange

AT_US = 1_796_000_000_000_000
ROUTES = {
    "chat": ("api.openai.com", "/v1/chat/completions"),
    "responses": ("api.openai.com", "/v1/responses"),
    "anthropic": ("api.anthropic.com", "/v1/messages"),
    "gemini": (
        "generativelanguage.googleapis.com",
        "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse",
    ),
}


def line(form: str, response: Any, request: Any = None, **more: Any) -> dict[str, Any]:
    """Return a line; a response that is not text is written as JSON."""
    host, path = ROUTES.get(form, ("", ""))
    text = response if isinstance(response, str) else json.dumps(response)
    body = {"text": text} if request is None else {"text": json.dumps(request)}
    return {
        "id": "line-1",
        "file": "f",
        "n": 0,
        "provider": form,
        "method": "POST",
        "host": host,
        "path": path,
        "status": 200,
        "streaming": False,
        "framing": "",
        "request_body": None if request is None else body,
        "response_headers": {},
        "response_body": {"text": text},
        **more,
    }


def stream(form: str, *events: Any, end: str = "", **more: Any) -> dict[str, Any]:
    """Return a line whose response is an event stream of JSON values, then `end` as it is."""
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + end
    return line(form, text, **{"framing": "sse", "streaming": True, **more})


def read(exchange: dict[str, Any]) -> Exchange:
    return read_exchange(exchange, at_us=AT_US)


def delta(content: Any = None, index: int = 0, finish: Any = None, **more: Any) -> dict[str, Any]:
    """Return a chunk of a chat stream."""
    body = {"content": content} | more
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "model": "gpt-4o-mini",
        "choices": [{"index": index, "delta": body, "finish_reason": finish}],
    }


DONE = "data: [DONE]\n\n"
