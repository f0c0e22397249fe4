"""The body of a call: held, so that the run exists before the provider sees anything of it."""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

from aiohttp import HttpVersion11, web

from serve.doors.body import BODY_S
from serve.doors.problem import Problem
from serve.proxy.upstream import Upload
from turnlog.recording.body import MAX_BODY_BYTES, Body

IDLE_S = BODY_S
"""So long a client may send nothing of a body that it has begun."""


class Held(NamedTuple):
    """A request's body.

    Attributes:
        upload: as it came, for the provider.
        body: for the record, its content coding undone; empty where it is too large for one.
    """

    upload: Upload
    body: bytes


async def tell_to_go_on(request: web.BaseRequest) -> None:
    """Answer a client that waits for word before it sends its body.

    Raises:
        Problem: 417, it expects something else.
    """
    expected = request.headers.get("Expect")
    if expected is None or request.version < HttpVersion11:
        return
    if expected.lower() != "100-continue":
        raise Problem(417, "expectation", "this server expects nothing but 100-continue")
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    # Of the answer itself nothing is out yet.
    request.writer.output_size = 0


async def hold(request: web.BaseRequest, limit: int = MAX_BODY_BYTES) -> Held:
    """Read a body up to a limit; a longer one is passed piece by piece and not kept.

    Args:
        request: whose body.
        limit: bytes.

    Raises:
        Problem: 400, the body broke off; 408, nothing of it came for 30 s.
    """
    if not request.body_exists:
        return Held(None, b"")
    begun, size = [], 0
    async for piece in pieces(request):
        begun.append(piece)
        size += len(piece)
        if size > limit:
            return Held(_rest(begun, request), b"")
    whole = b"".join(begun)
    return Held(whole, _plain(whole, request.headers.get("Content-Encoding", "")))


async def pieces(request: web.BaseRequest) -> AsyncIterator[bytes]:
    """Give a body as it comes.

    Raises:
        Problem: as `hold`.
    """
    while piece := await _next(request):
        yield piece


async def _next(request: web.BaseRequest) -> bytes:
    try:
        async with asyncio.timeout(IDLE_S):
            return await request.content.readany()
    except TimeoutError:
        detail = f"nothing of the body came for {IDLE_S:.0f} s"
        raise Problem(408, "timeout", detail, headers={"Connection": "close"}) from None
    except (web.RequestPayloadError, ConnectionError):
        raise Problem(400, "body_broken", "the body of the request broke off") from None


async def _rest(begun: list[bytes], request: web.BaseRequest) -> AsyncIterator[bytes]:
    while begun:
        yield begun.pop(0)
    async for piece in pieces(request):
        yield piece


def _plain(whole: bytes, encoding: str) -> bytes:
    if not encoding:
        return whole
    body = Body(encoding)
    body.take(whole)
    return body.content() if body.whole else b""
