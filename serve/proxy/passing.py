"""One exchange: a request on its way to the provider, and the answer on its way back.

The reader comes first: bytes go to it before they are looked at. Nothing is held but the piece at
hand, so a reader that is slow makes the provider slow, and no memory fills.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from serve.doors.problem import Problem
from serve.proxy.headers import for_client
from serve.proxy.recorder import Recorder
from serve.proxy.upstream import BROKE, Incoming, Upload, Upstream

logger = logging.getLogger(__name__)

Spawn = Callable[[Coroutine[Any, Any, None]], None]


class Passed(web.StreamResponse):
    """An answer of the provider's, with nothing of aiohttp's but a `Date` that is missing.

    A proxy adds one (RFC 9110, section 6.6.1).
    """

    def __init__(self, answer: aiohttp.ClientResponse, added: dict[str, str]) -> None:
        headers = for_client(decoded(answer.raw_headers))
        self._not_its_own = [name for name in _AIOHTTPS if name not in headers]
        # The head goes out with the first piece where that is here, by itself where it is not.
        self._send_headers_immediately = not _has_come(answer.content)
        headers.extend(added)
        super().__init__(status=answer.status, reason=answer.reason, headers=headers)

    async def _prepare_headers(self) -> None:
        await super()._prepare_headers()
        for name in self._not_its_own:
            self.headers.pop(name, None)


_AIOHTTPS = ("Server", "Content-Type")


def _has_come(content: aiohttp.StreamReader) -> bool:
    return content.is_eof() or bool(content._buffer)


class Passing:
    """Passes one exchange.

    Args:
        request: the client's.
        recorder: is told what comes back.
        added: headers for the client beside the provider's.
        drain_s: how long the provider is read on when the client has left.
        spawn: runs what goes on without the client.
    """

    def __init__(
        self,
        request: web.BaseRequest,
        recorder: Recorder,
        added: dict[str, str],
        drain_s: float,
        spawn: Spawn,
    ) -> None:
        self._request = request
        self._recorder = recorder
        self._added = added
        self._drain_s = drain_s
        self._spawn = spawn

    async def through(
        self, upstream: Upstream, target: str, headers: CIMultiDict[str], upload: Upload
    ) -> web.StreamResponse:
        """Ask the provider and pass its answer back.

        Raises:
            Problem: 502, the provider does not answer; 400 or 408, the client's body broke off or
                does not come.
        """
        try:
            answer = await upstream.ask(self._request.method, target, headers, upload)
        except asyncio.CancelledError:
            self._recorder.cancelled_later()
            raise
        except BROKE as error:
            self._recorder.broke_later(error)
            raise _no_answer(error, self._added) from None
        self._recorder.head(answer.status, answer.headers)
        return await self._back(answer)

    async def _back(self, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        response, incoming = Passed(answer, self._added), Incoming(answer)
        try:
            await self._head(response)
            await self._body(incoming, response)
            await response.write_eof()
        except asyncio.CancelledError:
            self._left(answer, incoming)
            raise
        except _Broke as broke:
            self._recorder.broke_later(broke.error)
            answer.close()
            if not self._request.writer.output_size:
                raise _no_answer(broke.error, self._added) from None
            _break_off(self._request)
        except ConnectionError:
            self._left(answer, incoming)
        else:
            self._recorder.done_later()
        return response

    async def _head(self, response: Passed) -> None:
        try:
            await response.prepare(self._request)
        except ValueError as error:
            # Control characters in a status line or header, which aiohttp reads and never writes.
            raise _Broke(error) from None

    async def _body(self, incoming: Incoming, response: web.StreamResponse) -> None:
        while True:
            try:
                piece = await incoming.next()
            except BROKE as error:
                raise _Broke(error) from None
            if not piece:
                return
            self._recorder.data(piece)
            await response.write(piece)

    def _left(self, answer: aiohttp.ClientResponse, incoming: Incoming) -> None:
        """Go on without the client, or stop the provider, as a client that speaks to it would."""
        if self._drain_s > 0:
            self._spawn(self._read_on(answer, incoming))
        else:
            answer.close()
            self._recorder.cancelled_later()

    async def _read_on(self, answer: aiohttp.ClientResponse, incoming: Incoming) -> None:
        """Read what the provider still says: usage comes last. An answer that ends is whole."""
        try:
            async with asyncio.timeout(self._drain_s):
                while piece := await incoming.next():
                    self._recorder.data(piece)
        except BROKE as error:
            logger.info("a provider was not read to its end: %s", type(error).__name__)
        finally:
            answer.close()
            self._recorder.cancelled_later()


class _Broke(Exception):
    """The provider's connection broke in the middle of an answer."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(type(error).__name__)
        self.error = error


def decoded(raw: tuple[tuple[bytes, bytes], ...]) -> list[tuple[str, str]]:
    """Return headers as text that is written as the same bytes, names in their own letters."""
    return [(name.decode("ascii", "replace"), _text(value)) for name, value in raw]


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _no_answer(error: BaseException, headers: dict[str, str]) -> Problem:
    if isinstance(error.__cause__, Problem):
        return error.__cause__  # of the client's body, not of the provider
    # The class alone: the text of some names the address, of others what was sent.
    detail = f"the provider does not answer ({type(error).__name__})"
    return Problem(502, "no_answer", detail, headers=headers)


def _break_off(request: web.BaseRequest) -> None:
    """End the client's connection without the end that HTTP wants, after what was passed.

    For HTTP/1.0 the end of the connection is the end of the body, so it is reset.
    """
    transport = request.transport
    if transport is None:
        return
    if request.version < aiohttp.HttpVersion11:
        transport.abort()
    else:
        transport.close()
