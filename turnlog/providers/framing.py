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
    if is_binary(source):
        return _binary(body)
    if (value := parsed(body)) is not NOT_JSON:
        return _json(body, value, source)
    if body.removeprefix(sse.BOM).lstrip(b"\r\n").startswith(SSE_STARTS) or is_sse(source):
        return _sse(body)
    if source.streaming and body.lstrip().startswith(b"["):
        return Framed(list(_elements(body)), stream=True, whole=True, plain=0)
    if len(values := _lines(body)) > 1 or (values and source.framing == "ndjson"):
        return Framed(values, stream=True, whole=True, plain=0)
    return _opaque(source)


NOT_JSON = object()


def parsed(text: str | bytes) -> Any:
    """Return a JSON value, `NOT_JSON` for what is none."""
    try:
        return loads(text)
    except NotJson:
        return NOT_JSON


def is_binary(source: Source) -> bool:
    """Say whether a response is called an event stream of Amazon's."""
    return "aws-eventstream" in source.framing or "vnd.amazon.eventstream" in source.content_type


def is_sse(source: Source) -> bool:
    """Say whether a response is called server-sent events."""
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
        piece = sse_piece(event)
        if piece is not None:
            pieces.append(piece)
        else:
            plain += event.whole
    return Framed(pieces, stream=True, whole=True, plain=plain)


def sse_piece(event: sse.ServerSentEvent) -> Piece | None:
    """Return the value that an event carries, None where its data is plain text."""
    if event.data == DONE:
        return Piece(DONE, None, event.event)
    value = parsed(event.data)
    if value is not NOT_JSON:
        return Piece(event.data, value, event.event)
    return Piece(DONE, None, event.event) if event.data.strip() == DONE else None


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
    pieces = (line_piece(line) for line in body.splitlines() if line.strip())
    return [piece for piece in pieces if piece is not None]


def line_piece(line: bytes) -> Piece | None:
    """Return the JSON object that a line is, None where it is none."""
    value = parsed(line)
    return Piece(line, value) if isinstance(value, dict) else None


def _binary(body: bytes) -> Framed:
    pieces = [message_piece(message) for message in eventstream.messages(body)]
    return Framed(pieces, stream=True, whole=True, plain=0)


def message_piece(message: eventstream.Message) -> Piece:
    """Return the value that a binary message carries; the event `exception` marks an error."""
    value = parsed(message.payload)
    name = "exception" if message.exception else message.event
    return Piece(message.payload, None if value is NOT_JSON else value, name)


def _opaque(source: Source) -> Framed:
    """Judge a body that is nothing known: whole unless it should have been JSON or is too short."""
    stream = source.streaming or source.framing in ("sse", "ndjson")
    cut = source.response_bytes is not None and len(source.response) < source.response_bytes
    said_json = source.framing == "json" or "json" in source.content_type
    empty = not source.response and source.status not in _NO_CONTENT and source.method != "HEAD"
    whole = not (cut or (said_json and source.status not in _NO_CONTENT) or empty)
    return Framed([], stream, whole, plain=0)
