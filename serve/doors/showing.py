"""Pieces of output as a client says that its reader was shown them: a batch, or a stream."""

import codecs
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

from aiohttp import web

from serve.appending.values import whole
from serve.doors.body import pieces, read_body
from serve.doors.halves import parse_events
from serve.doors.held import Held
from serve.doors.problem import Problem
from turnlog.errors import UsageError
from turnlog.producer.output import KINDS

NDJSON, TEXT = "application/x-ndjson", "text/plain"
MAX_LINE_BYTES = 1 << 20
MAX_PIECES = 10_000

STREAM_IDLE_S = 120.0
"""A stream on which nothing comes for so long is given up; a model may think, silently."""

_NUMBERS = ("choice", "call")
_TEXTS = ("text", "id", "name")


async def show(request: web.Request, held: Held) -> int:
    """Note the pieces of a request; return how many there were.

    Raises:
        Problem: 400, a piece is none: those before it are noted; 409, the run has ended meanwhile
            or pieces are missing; 413, 408 and 415 as bodies have them.
    """
    if request.content_type == NDJSON:
        return await _stream(held, _lines(request))
    if request.content_type == TEXT:
        return await _stream(held, _texts(request))
    return _batch(held, parse_events(await read_body(request)))


async def _stream(held: Held, shown: AsyncIterator[Any]) -> int:
    count = 0
    with held.streaming():
        async for piece in shown:
            _note(held, piece, f"line {count + 1}")
            count += 1
    return count


async def _lines(request: web.Request) -> AsyncIterator[Any]:
    rest = b""
    async for data in pieces(request, STREAM_IDLE_S):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.strip():
                yield parse_events(line)
        if len(rest) > MAX_LINE_BYTES:
            raise Problem(413, "too_large", f"a line has at most {MAX_LINE_BYTES} bytes")
    if rest.strip():
        yield parse_events(rest)


async def _texts(request: web.Request) -> AsyncIterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        async for data in pieces(request, STREAM_IDLE_S):
            if text := decoder.decode(data):
                yield text
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise Problem(400, "invalid", "the text is not UTF-8") from None


def _batch(held: Held, body: Any) -> int:
    """Note a batch; one that says which piece is its first may be sent twice."""
    first = held.noted
    if isinstance(body, Mapping):
        if not body.keys() <= {"chunks", "first"}:
            raise Problem(400, "invalid", "the fields are chunks and first", "chunks")
        first, body = body.get("first", first), body.get("chunks")
    if not isinstance(body, list) or len(body) > MAX_PIECES:
        raise Problem(400, "invalid", f"must be a list of at most {MAX_PIECES}", "chunks")
    first = _number(first, "the number of a piece", "first")
    if first > held.noted:
        detail = f"pieces from {held.noted} on are missing"
        raise Problem(409, "missing_chunks", detail, "first")
    fresh = [_piece(item, f"chunks[{n}]") for n, item in enumerate(body)]
    for piece in fresh[held.noted - first :]:
        _show(held, piece)
    return len(body)


def _note(held: Held, item: Any, place: str) -> None:
    _show(held, _piece(item, place))


def _show(held: Held, piece: dict[str, Any]) -> None:
    if not held.run.is_open or held.lock.locked():
        raise Problem(409, "ended", "the run has ended, or is ending")
    held.room_for(piece["text"])
    held.run.chunk(**piece)
    held.noted += 1


def _piece(item: Any, place: str) -> dict[str, Any]:
    """Return the arguments of `Run.chunk`."""
    if isinstance(item, str):
        return {"text": item}
    if not isinstance(item, Mapping) or not item.keys() <= {"kind", *_NUMBERS, *_TEXTS}:
        raise Problem(
            400, "invalid", "a piece is text, or {text, kind, choice, call, id, name}", place
        )
    piece = {"text": "", **{name: value for name, value in item.items() if value is not None}}
    if piece.get("kind", "text") not in KINDS:
        raise Problem(400, "invalid", f"kind is one of {', '.join(KINDS)}", place)
    for name in _TEXTS:
        if not isinstance(piece.get(name, ""), str):
            raise Problem(400, "invalid", f"{name} must be text", place)
    for name in _NUMBERS:
        piece[name] = _number(piece.get(name, 0), name, place)
    return piece


def _number(value: Any, name: str, place: str) -> int:
    with suppress(UsageError):
        number = whole(value)
        if 0 <= number < 1 << 31:
            return number
    raise Problem(400, "invalid", f"{name} must be a whole number from 0", place)
