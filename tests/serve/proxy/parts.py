"""A proxy between a client and the local provider, with a log in memory."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from serve.proxy import Proxy, Settings
from tests.provider import Provider, Recordings
from tests.turnlog.producer.parts import ORG, Opened, content_of, producer_in_memory

CHAT = b'{"model":"gpt-4o-mini","stream":true,"messages":[{"role":"user","content":"?"}]}'
CHAT_PATH = "/v1/chat/completions"
PATIENCE_S = 30.0


@dataclass(slots=True)
class Kept:
    """A run as the log has it: fields and content of its beginning and end, and its usage."""

    created: dict[str, Any]
    asked: dict[str, Any]
    end: str
    ended: dict[str, Any]
    said: dict[str, Any]
    usage: dict[str, Any]


@dataclass(slots=True)
class Way:
    """Client, proxy, provider and log of one test."""

    provider: Provider
    proxy: Proxy
    log: Opened
    http: aiohttp.ClientSession

    def url(self, path: str = CHAT_PATH, scenario: str = "") -> str:
        """Return where a client asks for a path; the scenario lies in the path."""
        prefix = f"/~{scenario}" if scenario else ""
        return f"http://127.0.0.1:{self.proxy.port}{prefix}{path}"

    def runs(self) -> dict[str, Kept]:
        """Return the runs that have ended."""
        found: dict[str, dict[str, Any]] = {}
        for type_, body in ((kept.type, kept.body) for kept in self.log.transport.kept):
            held = found.setdefault(body["run"], {})
            if type_ == "run.created":
                held |= {"created": body, "asked": self._content(type_, body, "q")}
            elif type_.startswith("run.") and "status" in body:
                held |= {"end": type_, "ended": body, "said": self._content(type_, body, "o")}
            elif type_ == "usage.recorded":
                held["usage"] = body
        return {run: Kept(**held) for run, held in found.items() if len(held) == 6}

    def _content(self, type_: str, body: dict[str, Any], kind: str) -> dict[str, Any]:
        return content_of(self.log.grant, type_, body, kind) if body["frame"] else {}

    async def one(self) -> Kept:
        """Wait until one run has ended, and return it."""
        await until(self.runs)
        (kept,) = self.runs().values()
        return kept


async def until(condition: Callable[[], Any]) -> None:
    """Wait for something that will be."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def between(
    recordings: Recordings | None = None, upstream: str = "", **settings: Any
) -> AsyncIterator[Way]:
    """Run a proxy before a local provider.

    Args:
        recordings: what the provider answers with.
        upstream: address of another one.
        **settings: of the proxy.
    """
    settings = {"org": ORG, "provider": "openai", "grace_s": 5.0, **settings}
    async with (
        Provider.serving(recordings) as provider,
        producer_in_memory() as log,
        aiohttp.ClientSession(auto_decompress=False) as http,
    ):

        @asynccontextmanager
        async def opening() -> AsyncIterator[Any]:
            yield log.producer

        chosen = Settings(upstream=upstream or provider.url(), **settings)
        async with Proxy.serving(chosen, opening) as proxy:
            yield Way(provider, proxy, log, http)


async def read(answer: aiohttp.ClientResponse) -> tuple[bytes, bool]:
    """Return what came of a body, and whether it broke off."""
    got = bytearray()
    try:
        while piece := await answer.content.readany():
            got += piece
    except (aiohttp.ClientError, ConnectionResetError):
        return bytes(got), True
    return bytes(got), False


async def raw(port: int, sent: bytes, until_end: bytes = b"0\r\n\r\n") -> bytes:
    """Send bytes and return what comes back up to an end, or up to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        return await reader.readuntil(until_end)
    except asyncio.IncompleteReadError as error:
        return error.partial
    finally:
        writer.close()
        await writer.wait_closed()
