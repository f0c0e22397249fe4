"""The local provider's server: one answer a request, going as its scenario says."""

import asyncio
import socket
import struct
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
from aiohttp import web

from tests.provider import kinds
from tests.provider.asked import Asked
from tests.provider.pieces import encoder, grown, pieces
from tests.provider.recordings import Recordings
from tests.provider.scenario import HEADER, Scenario, prefix, split
from turnlog.providers import Source

KEPT = 20_000
_LOOK_S = 0.01
# On closing, the kernel forgets what it has not sent and answers the client with a reset.
_RESET = struct.pack("ii", 1, 0)


class Provider:
    """Answers like a provider; made by `serving`.

    Attributes:
        asked: the last requests, in the order they came.
        port: where it listens on 127.0.0.1.
    """

    def __init__(self, recordings: Recordings) -> None:
        self.recordings = recordings
        self.asked: deque[Asked] = deque(maxlen=KEPT)
        self.port = 0
        self._failed: Counter[str] = Counter()

    @classmethod
    @asynccontextmanager
    async def serving(
        cls, recordings: Recordings | None = None, port: int = 0
    ) -> AsyncIterator["Provider"]:
        """Serve on 127.0.0.1 until the block is left.

        Args:
            recordings: what it answers with; the project's samples when left out.
            port: 0: one that is free.
        """
        provider = cls(recordings or Recordings.read())
        server = web.Server(provider._answer, access_log=None)
        runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        try:
            await site.start()
            provider.port = runner.addresses[0][1]
            yield provider
        finally:
            await runner.cleanup()

    def url(self, scenario: str = "") -> str:
        """Return the base URL, without a slash at its end, that asks for a scenario."""
        return f"http://127.0.0.1:{self.port}{prefix(scenario)}"

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        text, path = split(request.raw_path)
        if path == "/__asked":
            return _json(200, orjson.dumps([asked.as_dict() for asked in self.asked]))
        asked = Asked(request.method, path, list(request.headers.items()))
        asked.scenario = text or request.headers.get(HEADER, "")
        self.asked.append(asked)
        asked.body = await request.content.read()
        try:
            scenario = Scenario.read(asked.scenario)
        except ValueError as error:
            return _json(400, orjson.dumps({"error": {"message": str(error)}}))
        if scenario.delay_ms:
            await asyncio.sleep(scenario.delay_ms / 1000)
        if self._fails(scenario, asked):
            return _refused(scenario, asked)
        return await self._recorded(request, asked, scenario)

    def _fails(self, scenario: Scenario, asked: Asked) -> bool:
        if not scenario.status:
            return False
        self._failed[asked.scenario] += 1
        return not scenario.times or self._failed[asked.scenario] <= scenario.times

    async def _recorded(
        self, request: web.BaseRequest, asked: Asked, scenario: Scenario
    ) -> web.StreamResponse:
        if scenario.exchange:
            source = self.recordings.by_id.get(scenario.exchange)
        else:
            source = self.recordings.find(asked.path, asked.body)
        if source is None:
            return _json(404, kinds.refusal(kinds.kind_of(asked.path), 404))
        answer = _Answer(request, asked, scenario, source)
        await answer.send()
        return answer.response


class _Answer:
    """One recorded answer on its way."""

    def __init__(
        self, request: web.BaseRequest, asked: Asked, scenario: Scenario, source: Source
    ) -> None:
        self._request = request
        self._asked = asked
        self._scenario = scenario
        self._source = source
        self._breaks_at, self._breaks = scenario.ends
        self.response = web.StreamResponse(status=source.status)

    async def send(self) -> None:
        """Send it; a client that goes away is noted and ends it."""
        try:
            self._asked.ended = await self._send()
        except ConnectionResetError:
            self._asked.ended = "gone"

    async def _send(self) -> str:
        encoded = self._encoded()
        self._head(encoded)
        await self.response.prepare(self._request)
        if self._request.method == "HEAD":
            return "whole"
        for number, piece in enumerate(encoded):
            if number and self._scenario.pace_ms:
                await asyncio.sleep(self._scenario.pace_ms / 1000)
            if self._breaks and self._asked.sent + len(piece) > self._breaks_at:
                await self._write(piece[: self._breaks_at - self._asked.sent])
                return await self._break()
            await self._write(piece)
        if self._breaks:
            return await self._break()
        await self.response.write_eof()
        return "whole"

    def _encoded(self) -> list[bytes]:
        scenario, source = self._scenario, self._source
        cut = grown(pieces(source.response, source.framing, scenario.piece), scenario.grow)
        if scenario.error_after >= 0:
            piece = kinds.error_piece(kinds.kind_of(self._asked.path))
            cut = [*cut[: scenario.error_after], piece]
        encode = encoder(scenario.encoding)
        return [encode(piece, number == len(cut) - 1) for number, piece in enumerate(cut)]

    def _head(self, encoded: list[bytes]) -> None:
        headers = self.response.headers
        headers["Content-Type"] = self._source.content_type or _TYPES[self._source.framing]
        headers["x-request-id"] = f"req-{self._source.id}"
        headers.extend([("Set-Cookie", "first=1; Path=/"), ("Set-Cookie", "second=2; Path=/")])
        if self._scenario.encoding:
            headers["Content-Encoding"] = self._scenario.encoding
        if not self._source.streaming:
            self.response.content_length = sum(map(len, encoded))

    async def _write(self, piece: bytes) -> None:
        # A transport that is gone takes bytes for ever, in silence.
        if self._request.transport is None:
            raise ConnectionResetError
        if piece:
            await self.response.write(piece)
            self._asked.sent += len(piece)

    async def _break(self) -> str:
        transport = self._request.transport
        while transport is not None and transport.get_write_buffer_size():
            await asyncio.sleep(_LOOK_S)
        if self._breaks == "stall":
            while self._request.transport is not None:
                await asyncio.sleep(_LOOK_S)
            return "stall"
        if transport is not None:
            if self._breaks == "cut":
                _linger_not(transport)
            transport.abort()
        return self._breaks


_TYPES = {
    "sse": "text/event-stream",
    "ndjson": "application/x-ndjson",
    "aws-eventstream": "application/vnd.amazon.eventstream",
    "json": "application/json",
    "": "application/octet-stream",
}


def _linger_not(transport: asyncio.Transport) -> None:
    held = transport.get_extra_info("socket")
    held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def _json(status: int, body: bytes) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json")


def _refused(scenario: Scenario, asked: Asked) -> web.Response:
    response = _json(scenario.status, kinds.refusal(kinds.kind_of(asked.path), scenario.status))
    if scenario.retry_after:
        response.headers["Retry-After"] = str(scenario.retry_after)
    asked.ended = "whole"
    return response
