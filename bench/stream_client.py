"""A client that costs next to nothing: it sends one request and looks for the end of the answer."""

import asyncio
import time
from typing import NamedTuple
from urllib.parse import urlsplit

_END = b"0\r\n\r\n"


class Took(NamedTuple):
    """One stream, as its reader saw it.

    Attributes:
        first_byte_ns: until the first byte of the body.
        whole_ns: until its end.
    """

    first_byte_ns: int
    whole_ns: int


class Streams(asyncio.Protocol):
    """One connection, over which streams come one after another."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[Took] | None = None
        self._began_ns = 0
        self._first_ns = 0
        self._tail = b""

    @classmethod
    async def to(cls, url: str) -> "Streams":
        """Connect to a server."""
        parts = urlsplit(url)
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(cls, parts.hostname or "", parts.port or 80)
        return made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    async def post(self, path: str, body: bytes) -> Took:
        """Ask for a stream and wait for its end.

        Raises:
            ConnectionError: the server closed the connection before.
        """
        assert self._transport is not None
        self._done = asyncio.get_running_loop().create_future()
        self._first_ns, self._tail = 0, b""
        head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        self._began_ns = time.perf_counter_ns()
        self._transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return await self._done

    def data_received(self, data: bytes) -> None:
        """Take the time of the first byte of the body and of its end."""
        if not self._first_ns:
            head, mark, data = (self._tail + data).partition(b"\r\n\r\n")
            if not data:
                self._tail = head + mark
                return
            self._first_ns, self._tail = time.perf_counter_ns(), b""
        self._tail = (self._tail + data)[-len(_END) :]
        if self._tail == _END and self._done is not None and not self._done.done():
            now_ns = time.perf_counter_ns()
            self._done.set_result(Took(self._first_ns - self._began_ns, now_ns - self._began_ns))

    def connection_lost(self, error: Exception | None) -> None:
        """Fail what waits."""
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError("the server closed the connection"))

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()
