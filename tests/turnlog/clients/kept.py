"""A provider in a thread of its own, and producers whose records stay in memory."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from tests.provider import Provider, Recordings
from tests.turnlog.producer.parts import (
    KeepingTransport,
    Opened,
    content_of,
    make_grant,
    producer_in_memory,
)
from turnlog import SyncProducer
from turnlog.keys import Grant
from turnlog.producer import Producer

ENDS = ("run.completed", "run.failed", "run.cancelled", "run.interrupted")


@contextmanager
def provider_thread(recordings: Recordings) -> Iterator[Provider]:
    """Serve a provider on a loop of its own, for clients that hold theirs, or have none."""
    loop, ready, stop, served = asyncio.new_event_loop(), threading.Event(), asyncio.Event(), []

    async def serve() -> None:
        async with Provider.serving(recordings) as provider:
            served.append(provider)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(30)
    try:
        yield served[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


class Log:
    """What was written, opened."""

    def __init__(self, transport: KeepingTransport, grant: Grant) -> None:
        self.transport = transport
        self.grant = grant

    @classmethod
    def of(cls, opened: Opened) -> "Log":
        return cls(opened.transport, opened.grant)

    def created(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Body and content of each `run.created`, in order."""
        return self._found(("run.created",), "q")

    def ended(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Body and content of each terminal event, in order."""
        return self._found(ENDS, "o")

    def statuses(self) -> list[str]:
        return [body["status"] for body, _ in self.ended()]

    def _found(
        self, types: tuple[str, ...], kind: str
    ) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        return [
            (k.body, content_of(self.grant, k.type, k.body, kind) if k.body["frame"] else {})
            for k in self.transport.kept
            if k.type in types
        ]


def sync_producer(monkeypatch: pytest.MonkeyPatch, *orgs: str) -> tuple[SyncProducer, Log]:
    """A producer for threads whose records stay in memory; its closer is the test."""
    transport, grant = KeepingTransport(), make_grant(*orgs)

    @asynccontextmanager
    async def opened(*_: Any, **__: Any) -> AsyncIterator[Producer]:
        producer = Producer.over(grant, transport)
        try:
            yield producer
        finally:
            await producer.close()

    monkeypatch.setattr(Producer, "open", opened)
    return SyncProducer.open(), Log(transport, grant)


__all__ = ["Log", "producer_in_memory", "provider_thread", "sync_producer"]
