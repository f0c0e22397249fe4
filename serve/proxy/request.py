"""The body of a call: held, so that the run exists before the provider sees anything of it."""

from collections.abc import AsyncIterator
from typing import NamedTuple

from aiohttp import web

from serve.proxy.upstream import Upload
from turnlog.recording.body import MAX_BODY_BYTES, Body


class Held(NamedTuple):
    """A request's body.

    Attributes:
        upload: as it came, for the provider.
        body: for the record, its content coding undone; empty where it is too large for one.
    """

    upload: Upload
    body: bytes


async def hold(request: web.Request, limit: int = MAX_BODY_BYTES) -> Held:
    """Read a body up to a limit; a longer one is passed piece by piece and not kept.

    Args:
        request: whose body.
        limit: bytes.
    """
    if not request.body_exists:
        return Held(None, b"")
    pieces, size = [], 0
    while piece := await request.content.readany():
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            return Held(_rest(pieces, request), b"")
    whole = b"".join(pieces)
    return Held(whole, _plain(whole, request.headers.get("Content-Encoding", "")))


async def _rest(pieces: list[bytes], request: web.Request) -> AsyncIterator[bytes]:
    while pieces:
        yield pieces.pop(0)
    async for piece in request.content.iter_any():
        yield piece


def _plain(whole: bytes, encoding: str) -> bytes:
    if not encoding:
        return whole
    body = Body(encoding)
    body.take(whole)
    return body.content() if body.whole else b""
