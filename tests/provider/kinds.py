"""Which API a path belongs to, and the errors that each API answers with."""

import re
import zlib
from typing import Any

import orjson

_KINDS = (
    (r":streamgeneratecontent$", "gemini-stream"),
    (r":generatecontent$", "gemini"),
    (r"/converse-stream$", "converse-stream"),
    (r"/converse$", "converse"),
    (r"/invoke-with-response-stream$", "invoke-stream"),
    (r"/invoke$", "invoke"),
    (r"^/mistral/.*chat/completions$", "mistral"),
    (r"/chat/completions$", "chat"),
    (r"/completions$", "completions"),
    (r"/responses$", "responses"),
    (r"/messages$", "messages"),
    (r"/embeddings$", "embeddings"),
    (r"/images/generations$", "images"),
    (r"/v2/chat$", "cohere"),
    (r"^/api/chat$", "ollama"),
    (r"/models$", "models"),
)
_ROUTES = tuple((re.compile(pattern), kind) for pattern, kind in _KINDS)

_OPENAI_TYPES = {429: "rate_limit_exceeded", 401: "invalid_request_error"}
_ANTHROPIC_TYPES = {429: "rate_limit_error", 529: "overloaded_error", 401: "authentication_error"}


def kind_of(path: str) -> str:
    """Return the kind of a request, empty where no API here has the path."""
    route = path.partition("?")[0].lower().rstrip("/")
    return next((kind for pattern, kind in _ROUTES if pattern.search(route)), "")


def refusal(kind: str, status: int) -> bytes:
    """Return the body of an error answer."""
    said = f"made to fail with {status}"
    if kind == "messages":
        error = {"type": _ANTHROPIC_TYPES.get(status, "api_error"), "message": said}
        return orjson.dumps({"type": "error", "error": error, "request_id": "req_made"})
    if kind.startswith("gemini"):
        return orjson.dumps({"error": {"code": status, "message": said, "status": "UNAVAILABLE"}})
    if kind.startswith(("converse", "invoke")):
        return orjson.dumps({"message": said})
    if kind == "ollama":
        return orjson.dumps({"error": said})
    error = {"message": said, "type": _OPENAI_TYPES.get(status, "server_error")}
    return orjson.dumps({"error": {**error, "param": None, "code": None}})


def error_piece(kind: str) -> bytes:
    """Return the piece with which a stream says, under status 200, that it failed."""
    said = "made to fail in mid-stream"
    if kind == "messages":
        error = {"type": "error", "error": {"type": "overloaded_error", "message": said}}
        return b"event: error\ndata: " + orjson.dumps(error) + b"\n\n"
    if kind == "responses":
        failed = {"type": "error", "code": "server_error", "message": said, "param": None}
        return b"event: error\ndata: " + orjson.dumps(failed) + b"\n\n"
    if kind == "ollama":
        return orjson.dumps({"error": said}) + b"\n"
    if kind.endswith("-stream") and not kind.startswith("gemini"):
        headers = {":message-type": "exception", ":exception-type": "modelStreamErrorException"}
        return message(headers, {"message": said})
    return b"data: " + orjson.dumps({"error": {"message": said, "code": 500}}) + b"\n\n"


def message(headers: dict[str, str], payload: Any) -> bytes:
    """Return one message of an Amazon event stream; docs/providers.md names the framing."""
    packed = b"".join(_header(name, value) for name, value in headers.items())
    body = orjson.dumps(payload)
    prelude = (16 + len(packed) + len(body)).to_bytes(4) + len(packed).to_bytes(4)
    head = prelude + zlib.crc32(prelude).to_bytes(4) + packed + body
    return head + zlib.crc32(head).to_bytes(4)


def _header(name: str, value: str) -> bytes:
    key, text = name.encode(), value.encode()
    return bytes([len(key)]) + key + b"\x07" + len(text).to_bytes(2) + text
