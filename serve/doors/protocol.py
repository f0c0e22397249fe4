"""aiohttp's HTTP protocol with what it lacks at an open port.

A request's head has a bound on its time, and what is no HTTP gets an answer that says neither which
versions run here nor what was sent.
"""

import asyncio
import logging
import traceback
from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from serve.doors.problem import Problem
from serve.doors.refusals import MEDIA_TYPE, answer
from turnlog.errors import UsageError

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
        elif self._head_timer is None and self._is_idle():
            self._head_timer = self._loop.call_later(HEAD_S, self._head_is_late)

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


def where(error: BaseException | None) -> str:
    """Return an error's type and place; its message might hold content."""
    if error is None:
        return "no error"
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(frames))
    return f"{type(error).__name__} at {places}"


def _raw(problem: Problem) -> bytes:
    body = orjson.dumps(problem.body())
    head = (
        f"HTTP/1.1 {problem.status} Request Timeout\r\nContent-Type: {MEDIA_TYPE}\r\n"
        f"Content-Length: {len(body)}\r\nServer: turnlog\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


SETTINGS: Mapping[str, Any] = {
    "access_log": None,
    # Bodies are inflated by `serve.doors.body`, within bounds.
    "auto_decompress": False,
    "keepalive_timeout": IDLE_S,
    "lingering_time": LINGER_S,
    # A token of an identity provider takes more than the 8 KiB that a line has elsewhere.
    "max_field_size": FIELD_BYTES,
}
"""Of a runner and of each of its connections."""


async def listen(runner: web.AppRunner, host: str, port: int) -> asyncio.Server:
    """Take connections for an application that is set up; port 0: any that is free.

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
