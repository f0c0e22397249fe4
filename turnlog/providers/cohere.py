"""Cohere Chat v1 and v2, plain and streamed.

What is billed are the `billed_units`, which leave out the tokens of Cohere's own prompt around a
request; `tokens` counts all that the model saw. The former are booked, both are kept.
https://docs.cohere.com/reference/chat
"""

from collections.abc import Mapping, Sequence
from typing import Any

from turnlog.providers.exchange import Chunk
from turnlog.providers.framing import DONE, Piece
from turnlog.providers.reading import Reading, as_dict, as_text, dicts

_STREAM = frozenset(
    (
        "message-start",
        "content-start",
        "content-delta",
        "content-end",
        "tool-plan-delta",
        "tool-call-start",
        "tool-call-delta",
        "tool-call-end",
        "citation-start",
        "citation-end",
        "message-end",
    )
)
_STREAM_V1 = frozenset(
    (
        "stream-start",
        "text-generation",
        "tool-calls-chunk",
        "tool-calls-generation",
        "search-queries-generation",
        "search-results",
        "citation-generation",
        "stream-end",
    )
)


def looks_like(value: Mapping[str, Any]) -> bool:
    """Say whether a JSON object of a response is of this form."""
    if as_text(value.get("type")) in _STREAM or as_text(value.get("event_type")) in _STREAM_V1:
        return True
    return any("billed_units" in as_dict(value.get(name)) for name in ("usage", "meta"))


def read(pieces: Sequence[Piece], reading: Reading) -> None:
    """Read the events of a stream, or the one object of a plain answer."""
    for piece in pieces:
        body = piece.fields
        if piece.text == DONE:
            reading.ended = True
        elif (kind := as_text(body.get("event_type"))) in _STREAM_V1:
            _event_v1(kind, piece, reading)
        elif (kind := as_text(body.get("type"))) in _STREAM:
            _event(kind, piece, reading)
        else:
            _whole(body, (), piece, reading)


def _event(kind: str, piece: Piece, reading: Reading) -> None:
    body = piece.fields
    delta = as_dict(body.get("delta"))
    message = as_dict(delta.get("message"))
    if kind == "message-start":
        reading.name(body.get("id"), None)
    elif kind == "message-end":
        _end(delta, ("delta",), piece, reading)
        reading.ended = True
    else:
        _said(as_dict(message.get("content")), reading)
        reading.say(0, "reasoning", message.get("tool_plan"))
        if isinstance(message.get("tool_calls"), dict):
            _call(message["tool_calls"], body.get("index"), reading)


def _event_v1(kind: str, piece: Piece, reading: Reading) -> None:
    body = piece.fields
    reading.name(body.get("generation_id"), None)
    if kind == "text-generation":
        reading.say(0, "text", body.get("text"))
    elif kind == "tool-calls-generation":
        _calls_v1(body, reading)
    elif kind == "stream-end":
        reading.finish(0, body.get("finish_reason"))
        _counted(as_dict(body.get("response")), ("response",), piece, reading)
        reading.ended = True


def _whole(body: Mapping[str, Any], path: tuple[str, ...], piece: Piece, reading: Reading) -> None:
    message = as_dict(body.get("message"))
    reading.name(body.get("id") or body.get("generation_id") or body.get("response_id"), None)
    reading.fail(body.get("error"))
    reading.say(0, "reasoning", message.get("tool_plan"))
    for part in dicts(message.get("content")):
        _said(part, reading)
    reading.say(0, "text", body.get("text"))
    for place, call in enumerate(dicts(message.get("tool_calls"))):
        _call(call, place, reading)
    _calls_v1(body, reading)
    _end(body, path, piece, reading)


def _end(body: Mapping[str, Any], path: tuple[str, ...], piece: Piece, reading: Reading) -> None:
    reading.fail(body.get("error"))
    if as_text(body.get("finish_reason")) in ("ERROR", "ERROR_TOXIC"):
        reading.fail("the answer ended with an error")
    reading.finish(0, body.get("finish_reason"))
    _counted(body, path, piece, reading)


def _counted(
    body: Mapping[str, Any], path: tuple[str, ...], piece: Piece, reading: Reading
) -> None:
    """Take the usage, which v2 calls `usage` and v1 `meta`."""
    for name in ("usage", "meta"):
        if isinstance(as_dict(body.get(name)).get("billed_units"), dict):
            reading.use(piece, *path, name)
            reading.usage_is_final = True


def _said(part: Mapping[str, Any], reading: Reading) -> None:
    reading.say(0, "text", part.get("text"))
    reading.say(0, "reasoning", part.get("thinking"))


def _call(call: Mapping[str, Any], index: Any, reading: Reading) -> None:
    call_id, function = as_text(call.get("id")), as_dict(call.get("function"))
    at = reading.call_index(0, index, call_id)
    arguments, name = as_text(function.get("arguments")), as_text(function.get("name"))
    reading.chunks.append(Chunk(0, "tool_call", arguments, at, call_id, name))


def _calls_v1(body: Mapping[str, Any], reading: Reading) -> None:
    for place, call in enumerate(dicts(body.get("tool_calls"))):
        at = reading.call_index(0, place, "")
        arguments, name = as_text(call.get("parameters")), as_text(call.get("name"))
        reading.chunks.append(Chunk(0, "tool_call", arguments, at, "", name))
