"""How a response body is cut into the JSON values that it carries.

The label that a recording gives it is a hint: the bytes decide, because recordings call streams
JSON and servers answer a request for a stream with one JSON object.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from turnlog.providers import eventstream, sse
from turnlog.providers.json_text import NotJson, loads
from turnlog.providers.source import Source

DONE = "[DONE]"
SSE_STARTS = (b"data:", b"event:", b"id:", b"retry:", b":")
_NO_CONTENT = frozenset((204, 205, 304))


class Piece(NamedTuple):
    """One value of a response.

    Attributes:
        text: its JSON text, numbers as they were written.
        value: the same, parsed; None for plain text.
        event: the name that the framing gave it; empty where there is none.
    """

    text: str | bytes
    value: Any
    event: str = ""

    @property
    def fields(self) -> dict[str, Any]:
        """The value if it is an object, else an empty one."""
        return self.value if isinstance(self.value, dict) else {}


class Framed(NamedTuple):
    """A response body, cut.

    Attributes:
        pieces: its values in order.
        stream: whether they came one after the other.
        whole: false where the body of a plain answer was cut off.
        plain: data lines that are not JSON, the end marker aside.
    """

    pieces: list[Piece]
    stream: bool
    whole: bool
    plain: int


def frame(source: Source) -> Framed:
    """Cut the response of a line."""
    body = source.response
    if "aws-eventstream" in source.framing or "vnd.amazon.eventstream" in source.content_type:
        return _binary(body)
    if (value := _parsed(body)) is not _NOT_JSON:
        return _json(body, value, source)
    if body.removeprefix(sse.BOM).lstrip(b"\r\n").startswith(SSE_STARTS) or _is_sse(source):
        return _sse(body)
    if source.streaming and body.lstrip().startswith(b"["):
        return Framed(list(_elements(body)), stream=True, whole=True, plain=0)
    if len(values := _lines(body)) > 1 or (values and source.framing == "ndjson"):
        return Framed(values, stream=True, whole=True, plain=0)
    return _opaque(source)


_NOT_JSON = object()


def _parsed(text: str | bytes) -> Any:
    try:
        return loads(text)
    except NotJson:
        return _NOT_JSON


def _is_sse(source: Source) -> bool:
    return source.framing == "sse" or source.content_type.startswith("text/event-stream")


def _json(body: bytes, value: Any, source: Source) -> Framed:
    if source.streaming and isinstance(value, list):
        # Gemini streams one JSON array where `alt=sse` was not asked for.
        return Framed(list(_elements(body)), stream=True, whole=True, plain=0)
    stream = source.framing == "ndjson"
    return Framed([Piece(body, value)], stream, whole=True, plain=0)


def _sse(body: bytes) -> Framed:
    pieces, plain = [], 0
    for event in sse.events(body):
        value = _parsed(event.data)
        if value is not _NOT_JSON:
            pieces.append(Piece(event.data, value, event.event))
        elif event.data.strip() == DONE:
            pieces.append(Piece(DONE, None, event.event))
        else:
            plain += event.whole
    return Framed(pieces, stream=True, whole=True, plain=plain)


def _elements(body: bytes) -> Iterator[Piece]:
    """Yield the whole elements of a JSON array that may be cut off."""
    text = body.decode("utf-8", "replace")
    decoder, at = json.JSONDecoder(), text.find("[") + 1
    while True:
        at = _skip(text, at)
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return
        yield Piece(text[at:end], value)
        at = end


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n,":
        at += 1
    return at


def _lines(body: bytes) -> list[Piece]:
    """Return the values of a body of one JSON object a line; a cut last line is left out."""
    if not body.lstrip().startswith(b"{"):
        return []
    parsed = ((line, _parsed(line)) for line in body.splitlines() if line.strip())
    return [Piece(line, value) for line, value in parsed if isinstance(value, dict)]


def _binary(body: bytes) -> Framed:
    pieces = []
    for message in eventstream.messages(body):
        value = _parsed(message.payload)
        name = "exception" if message.exception else message.event
        pieces.append(Piece(message.payload, None if value is _NOT_JSON else value, name))
    return Framed(pieces, stream=True, whole=True, plain=0)


def _opaque(source: Source) -> Framed:
    """Judge a body that is nothing known: whole unless it should have been JSON or is too short."""
    stream = source.streaming or source.framing in ("sse", "ndjson")
    cut = source.response_bytes is not None and len(source.response) < source.response_bytes
    said_json = source.framing == "json" or "json" in source.content_type
    empty = not source.response and source.status not in _NO_CONTENT and source.method != "HEAD"
    whole = not (cut or (said_json and source.status not in _NO_CONTENT) or empty)
    return Framed([], stream, whole, plain=0)
