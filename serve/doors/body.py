"""Reading a request's body within bounds of size and time, whatever the client sends.

The bound is on the inflated size, and nothing above it is ever allocated: a compressed body is
inflated a piece at a time, and a piece has a bound too.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Protocol

import zstandard
from aiohttp import ClientPayloadError, web

from serve.doors.problem import Problem
from serve.doors.strict_json import parse

BODY_S = 30.0
"""For a whole body: 1 MiB in that time is 35 KB/s."""

PIECE_BYTES = 1 << 16
# The least that a zstd block of 128 KiB takes is 4 bytes, so that a slice becomes 2 MiB at most.
_ZSTD_SLICE_BYTES = 64
# What RFC 8878 asks every decoder to take, and what levels up to 19 use.
_ZSTD_WINDOW_BYTES = 8 << 20
MAX_MEMBERS = 1_000
"""Members of gzip or frames of zstd in one body: an empty one takes 20 bytes and costs 10 µs."""

ENCODINGS = ("gzip", "zstd", "deflate")

LIMIT: web.RequestKey[int] = web.RequestKey("max_inflated_bytes", int)
"""What the route of a request takes; set before its handler is called."""


class Inflater(Protocol):
    """Undoes a content encoding."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Give what some more bytes inflate to, in pieces of at most 2 MiB.

        Raises:
            Problem: 400, they are not in the encoding, or in over 1,000 members of it.
        """

    def end(self) -> None:
        """Take note that the body has ended.

        Raises:
            Problem: 400, it was cut short.
        """


async def read_body(request: web.Request) -> bytes:
    """Return the whole inflated body.

    Raises:
        Problem: 413 over the route's limit, 415 in an encoding that is not known, 408 when it does
            not come in 30 s, 400 when it does not inflate or breaks off.
    """
    limit = request[LIMIT]
    if (request.content_length or 0) > limit:
        raise _too_large(limit)
    held = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in pieces(request):
                if len(held) + len(piece) > limit:
                    raise _too_large(limit)
                held += piece
    except TimeoutError:
        raise _late(BODY_S) from None
    return bytes(held)


async def pieces(request: web.Request, idle_s: float = BODY_S) -> AsyncIterator[bytes]:
    """Give the inflated body as it comes, for handlers that take it piece by piece.

    There is no bound on the whole: the caller has one.

    Args:
        request: whose body.
        idle_s: how long the client may send nothing.

    Raises:
        Problem: 415, 408, 400 as in `read_body`.
    """
    inflater = _inflater(request)
    while True:
        data = await _more(request, idle_s)
        if not data:
            break
        for piece in inflater.feed(data):
            yield piece
    inflater.end()


async def read_json(request: web.Request) -> Any:
    """Return the body as JSON, strictly read.

    Raises:
        Problem: 400 where it is not; otherwise as `read_body`.
    """
    return parse(await read_body(request))


async def _more(request: web.Request, idle_s: float) -> bytes:
    """Return the next bytes on the wire, none at the end."""
    try:
        async with asyncio.timeout(idle_s):
            return await request.content.readany()
    except TimeoutError:
        raise _late(idle_s) from None
    except (ClientPayloadError, web.RequestPayloadError, ConnectionError):
        raise Problem(400, "body_broken", "the body broke off or is not framed as HTTP") from None


def _inflater(request: web.Request) -> Inflater:
    named = [
        name.strip().lower()
        for line in request.headers.getall("Content-Encoding", ())
        for name in line.split(",")
    ]
    encoding = named[0] if named else "identity"
    if len(named) > 1 or encoding not in _INFLATERS:
        raise Problem(
            415,
            "encoding",
            f"a body is sent as it is or in one of {', '.join(ENCODINGS)}",
            "Content-Encoding",
            {"Accept-Encoding": ", ".join(ENCODINGS)},
        )
    return _INFLATERS[encoding]()


class _Identity:
    def feed(self, data: bytes) -> Iterator[bytes]:
        yield data

    def end(self) -> None:
        pass


class _Members:
    """Counts the members of a body."""

    def __init__(self) -> None:
        self._left = MAX_MEMBERS

    def count(self) -> None:
        """Take note that another one begins.

        Raises:
            Problem: 400, there are too many.
        """
        self._left -= 1
        if self._left <= 0:
            detail = f"the body is in over {MAX_MEMBERS} members: compress it as a whole"
            raise Problem(400, "encoding", detail, _ENCODING)


class _Zlib:
    """gzip (several members too) and deflate in its zlib form."""

    def __init__(self, window_bits: int) -> None:
        self._window_bits = window_bits
        self._inflate = zlib.decompressobj(window_bits)
        self._members = _Members()

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._inflate.eof:
                self._members.count()
                self._inflate = zlib.decompressobj(self._window_bits)
            try:
                piece = self._inflate.decompress(data, PIECE_BYTES)
            except zlib.error:
                raise _not_inflated() from None
            data = self._inflate.unconsumed_tail or self._inflate.unused_data
            if piece:
                yield piece

    def end(self) -> None:
        if not self._inflate.eof:
            raise _not_inflated()


class _Zstd:
    """zstd frames, one after another."""

    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        self._inflate = self._decompressor.decompressobj()
        self._members = _Members()

    def feed(self, data: bytes) -> Iterator[bytes]:
        for at in range(0, len(data), _ZSTD_SLICE_BYTES):
            rest = data[at : at + _ZSTD_SLICE_BYTES]
            while rest:
                if self._inflate.eof:
                    self._members.count()
                    self._inflate = self._decompressor.decompressobj()
                try:
                    piece = self._inflate.decompress(rest)
                except zstandard.ZstdError:
                    raise _not_inflated() from None
                rest = self._inflate.unused_data
                if piece:
                    yield piece

    def end(self) -> None:
        if not self._inflate.eof:
            raise _not_inflated()


_INFLATERS: dict[str, Callable[[], Inflater]] = {
    "identity": _Identity,
    "gzip": lambda: _Zlib(31),
    "deflate": lambda: _Zlib(15),
    "zstd": _Zstd,
}


def _too_large(limit: int) -> Problem:
    return Problem(413, "too_large", f"the body is over {limit} bytes (after decompression)")


def _late(seconds: float) -> Problem:
    return Problem(408, "timeout", f"the body did not come in {seconds:.0f} s", headers=_CLOSE)


def _not_inflated() -> Problem:
    return Problem(400, "encoding", "the body is not what Content-Encoding says", _ENCODING)


_CLOSE = {"Connection": "close"}
_ENCODING = "Content-Encoding"
