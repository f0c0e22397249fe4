"""The way to the provider: one pool of connections, to one address."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.helpers import _EXC_SENTINEL
from multidict import CIMultiDict
from yarl import URL

from serve.proxy.settings import Settings

CONNECT_S = 30.0
# Shorter than what providers close idle connections after: a POST that meets one that is just
# being closed fails, and may not be sent again by itself.
KEEPALIVE_S = 15.0
_SLICE_BYTES = 64 << 10
BROKE = (aiohttp.ClientError, OSError, TimeoutError)
"""What a connection to the provider fails with."""

Upload = bytes | AsyncIterator[bytes] | None


class Upstream:
    """Sends requests to the provider as they came."""

    def __init__(self, settings: Settings) -> None:
        self._base = settings.upstream
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
        loop = asyncio.get_running_loop()
        connector._factory = partial(_Answers, loop=loop)  # type: ignore[assignment]
        # No environment: `trust_env` would also put a netrc's passwords into requests.
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    async def ask(
        self, method: str, target: str, headers: CIMultiDict[str], upload: Upload
    ) -> aiohttp.ClientResponse:
        """Send a request; return its answer when the head of it has come.

        Args:
            method: as the client sent it.
            target: path and query, as the client encoded them.
            headers: see `serve.proxy.headers.for_upstream`.
            upload: the body, whole or in pieces; None where the request has none.

        Raises:
            aiohttp.ClientError: the provider is not there, or what it says is no HTTP.
            OSError: as above.
            TimeoutError: it takes no connection.
        """
        if isinstance(upload, bytes) and len(upload) > _SLICE_BYTES:
            headers["Content-Length"] = str(len(upload))
            upload = _slices(upload)
        url = URL(self._base + target, encoded=True)
        return await self._session.request(
            method, url, headers=headers, data=upload, allow_redirects=False
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


class _Answers(ResponseHandler):
    """A connection; who reads a body learns that its framing is broken: aiohttp lets him wait."""

    def set_exception(self, exc: BaseException, exc_cause: BaseException = _EXC_SENTINEL) -> None:
        payload = self._payload
        super().set_exception(exc, exc_cause)
        if payload is not None and not payload.is_eof() and payload.exception() is None:
            payload.set_exception(aiohttp.ClientPayloadError("the body broke off"))


async def _slices(body: bytes) -> AsyncIterator[bytes]:
    # aiohttp would write the whole of it at once.
    for at in range(0, len(body), _SLICE_BYTES):
        yield body[at : at + _SLICE_BYTES]


class Incoming:
    """The body of an answer, in the pieces that came."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._content = answer.content
        self._error: BaseException | None = None

    async def next(self) -> bytes:
        """Return what came, nothing at the end.

        Raises:
            aiohttp.ClientError: the connection broke; all that came before it was returned.
            OSError: as above.
            TimeoutError: as above.
        """
        if self._error is not None:
            raise self._error
        try:
            return await self._content.readany()
        except BROKE as error:
            # aiohttp raises although bytes are there that nobody has read.
            rest = self._content._read_nowait(-1)
            if not rest:
                raise
            self._error = error
            return rest
