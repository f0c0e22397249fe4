"""aiohttp's HTTP protocol with what it lacks at an open port: the door's and the proxy's.

A request's head has a bound on its time, and what is no HTTP gets an answer that says neither which
versions run here nor what was sent.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web
from aiohttp.http import RawRequestMessage
from aiohttp.web_protocol import RequestHandler

from serve.doors.problem import Problem
from serve.doors.refusals import MEDIA_TYPE, answer
from turnlog.errors import UsageError
from turnlog.places import where

logger = logging.getLogger(__name__)

HEAD_S = 10.0
"""For the head of a request, from its first byte."""

IDLE_S = 75.0
"""For an idle connection."""

LINGER_S = 2.0
"""So long what a refused client goes on sending is read, or it would not see the answer."""

FIELD_BYTES = 17 << 10

_LATE = Problem(408, "timeout", f"the head of the request did not come in {HEAD_S:.0f} s")


class Protocol(RequestHandler):
    """One connection."""

    _head_timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        """Take bytes; those that begin a request start its clock."""
        heads = self._request_count
        super().data_received(data)
        if self._request_count != heads:
            self._stop_clock()
            self._break_body()
        elif self._head_timer is None and self._is_idle():
            self._head_timer = self._loop.call_later(HEAD_S, self._head_is_late)

    def _break_body(self) -> None:
        """Tell who reads a body that its framing is broken; aiohttp lets him wait for its rest."""
        request = self._current_request
        if request is None or request.content.is_eof() or not self._messages:
            return
        if not isinstance(self._messages[-1][0], RawRequestMessage):
            self._messages.pop()
            request.content.set_exception(web.RequestPayloadError("the body is not framed as HTTP"))

    def _is_idle(self) -> bool:
        """Tell whether no request is being read or answered: what comes now is a head."""
        return self._waiter is not None and not self._waiter.done()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Let go of the connection."""
        self._stop_clock()
        super().connection_lost(exc)

    def _stop_clock(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self.transport is not None:
            self.transport.write(_raw(_LATE))
            self.force_close()

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log what aiohttp itself met; a body that broke off is the client's, and was answered."""
        error = kw.get("exc_info")
        if not isinstance(error, web.RequestPayloadError):
            logger.error("a request failed: %s", where(error))

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no HTTP (400) and what nobody foresaw (500, logged without its message).

        Raises:
            ConnectionError: a part of an answer was sent already.
        """
        if status >= 500:
            logger.error("a request failed: %s", where(exc))
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer was sent already")
        code, detail = _SAID.get(status, _SAID[500])
        response = answer(Problem(status, code, detail, headers={"Server": "turnlog"}))
        response.force_close()
        return response


_SAID = {
    400: ("bad_request", "the request is not HTTP as this server takes it"),
    500: ("internal", "the server failed; its log says where"),
}


def _raw(problem: Problem) -> bytes:
    body = orjson.dumps(problem.body())
    head = (
        f"HTTP/1.1 {problem.status} Request Timeout\r\nContent-Type: {MEDIA_TYPE}\r\n"
        f"Content-Length: {len(body)}\r\nServer: turnlog\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


SETTINGS: Mapping[str, Any] = {
    "access_log": None,
    # Bodies are inflated by `serve.doors.body`, within bounds, or pass as they are.
    "auto_decompress": False,
    "keepalive_timeout": IDLE_S,
    "lingering_time": LINGER_S,
    # A token of an identity provider takes more than the 8 KiB that a line has elsewhere.
    "max_field_size": FIELD_BYTES,
}
"""Of a runner and of each of its connections."""


async def listen(runner: web.BaseRunner, host: str, port: int) -> asyncio.Server:
    """Take connections for a runner that is set up; port 0: any that is free.

    Raises:
        UsageError: the address cannot be listened on.
    """
    loop, manager = asyncio.get_running_loop(), runner.server
    assert manager is not None  # it is set up
    try:
        return await loop.create_server(
            lambda: Protocol(manager, loop=loop, **SETTINGS), host, port, backlog=1024
        )
    except OSError as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
