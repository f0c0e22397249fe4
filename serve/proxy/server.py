"""The proxy itself: what comes in is recorded, passed, or refused."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from typing import Any

import orjson
from aiohttp import web

from serve.doors.problem import Problem
from serve.doors.protocol import SETTINGS, listen
from serve.doors.refusals import answer
from serve.proxy.calls import is_call, target_of
from serve.proxy.headers import RUN, Marks, for_upstream, marks_of, narrow_codings
from serve.proxy.passing import Passing, decoded
from serve.proxy.recorder import Nobody, Recorder
from serve.proxy.request import Held, hold, pieces, tell_to_go_on
from serve.proxy.settings import Settings
from serve.proxy.upstream import Upload, Upstream
from turnlog.config import Config
from turnlog.errors import TurnlogError, Unavailable, UsageError
from turnlog.keeper_client import credential_of
from turnlog.producer import Producer
from turnlog.recording import COUNTS, Recording, Seen

logger = logging.getLogger(__name__)

OWN = "/__turnlog/"
"""Paths that are the proxy's own; no provider has such."""

UNRECORDED = "x-turnlog-unrecorded"
REOPEN_S = 5.0
CLOSE_S = 10.0


Opening = Callable[[], AbstractAsyncContextManager[Producer]]


def producer_of(config: Config, org: str) -> Opening:
    """Return what opens the producer of an org, by the credential that lies here."""
    return lambda: Producer.open(config, credential_of(config, org), close_timeout_s=CLOSE_S)


class Proxy:
    """Passes requests to one provider and records the calls among them; made by `serving`.

    Attributes:
        settings: how it runs.
        port: where it listens.
    """

    def __init__(self, settings: Settings, opening: Opening) -> None:
        self.settings = settings
        self.port = 0
        self._opening = opening
        self._producer: Producer | None = None
        self._opened = AsyncExitStack()
        self._upstream = Upstream(settings)
        self._beside: set[asyncio.Task[None]] = set()
        self._open = 0

    @classmethod
    @asynccontextmanager
    async def serving(
        cls, settings: Settings, opening: Opening, host: str = "127.0.0.1", port: int = 0
    ) -> AsyncIterator["Proxy"]:
        """Serve until the block is left; then open calls may go on for `grace_s`.

        Args:
            settings: how it runs.
            opening: opens the producer; tried again where Kafka or the keeper is not there yet.
            host: address to listen at.
            port: 0: one that is free.

        Raises:
            UsageError: the org's credential cannot be used, or the address cannot be listened at.
            Unavailable: calls that cannot be recorded are refused, and Kafka or the key keeper does
                not answer.
        """
        proxy = cls(settings, opening)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(proxy._upstream.close)
            # A stack of its own: a producer that is opened late is still closed after the calls.
            await stack.enter_async_context(proxy._opened)
            await proxy._begin(stack)
            stack.push_async_callback(proxy._rest)
            await proxy._listen(stack, host, port)
            yield proxy

    async def _begin(self, stack: AsyncExitStack) -> None:
        """Open the producer; where that fails, calls pass unrecorded until it can be opened."""
        try:
            await self._open_producer()
        except Unavailable as error:
            if self.settings.on_unavailable == "refuse":
                raise
            logger.warning("nothing can be recorded yet: %s", error)
            again = asyncio.create_task(self._open_later(), name="turnlog-proxy-open")
            stack.callback(again.cancel)

    async def _open_producer(self) -> None:
        self._producer = await self._opened.enter_async_context(self._opening())

    async def _open_later(self) -> None:
        while self._producer is None:
            await asyncio.sleep(REOPEN_S)
            with suppress(Unavailable):
                await self._open_producer()

    async def _listen(self, stack: AsyncExitStack, host: str, port: int) -> None:
        server = web.Server(
            self._handle,
            # A client that leaves while the provider is silent is noticed by nothing else.
            handler_cancellation=True,
            **SETTINGS,
        )
        runner = web.ServerRunner(
            server, handle_signals=False, shutdown_timeout=self.settings.grace_s
        )
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        listener = await listen(runner, host, port)
        stack.callback(listener.close)
        self.port = listener.sockets[0].getsockname()[1]

    async def _rest(self) -> None:
        """Wait for what goes on without clients."""
        if not self._beside:
            return
        _, late = await asyncio.wait(self._beside, timeout=self.settings.grace_s)
        for task in late:
            task.cancel()
        # Each says on its way out how its run ended, before the producer closes.
        await asyncio.gather(*late, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="turnlog-proxy-beside")
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self._open += 1
        try:
            response = await self._answered(request)
        except Problem as problem:
            response = answer(problem)
        finally:
            self._open -= 1
        if not response.prepared:
            # aiohttp's own says which versions run here.
            response.headers["Server"] = "turnlog"
        return response

    async def _answered(self, request: web.BaseRequest) -> web.StreamResponse:
        target = target_of(request.raw_path)
        if target.startswith(OWN):
            return self._own(target)
        if request.headers.get("Upgrade", "").lower() == "websocket":
            raise Problem(501, "no_websocket", "this proxy passes no websockets")
        await tell_to_go_on(request)
        marks = marks_of(request.headers)
        if is_call(request.method, target):
            return await self._call(request, target, marks)
        upload: Upload = pieces(request) if request.body_exists else None
        return await self._pass(request, target, upload, Nobody(), {})

    async def _call(
        self, request: web.BaseRequest, target: str, marks: Marks
    ) -> web.StreamResponse:
        held = await hold(request)
        recorder, added = await self._recorder(request, target, marks, held)
        return await self._pass(request, target, held.upload, recorder, added)

    async def _recorder(
        self, request: web.BaseRequest, target: str, marks: Marks, held: Held
    ) -> tuple[Recorder, dict[str, str]]:
        """Begin the run; where that cannot be, the settings decide."""
        try:
            recording = await self._recording(request, target, marks, held.body)
        except UsageError as error:
            raise Problem(400, "invalid", str(error)) from None
        except TurnlogError as error:
            if self.settings.on_unavailable == "refuse":
                raise _refused() from None
            COUNTS.unrecorded_call(error)
            return Nobody(), {UNRECORDED: "unavailable"}
        return recording, {RUN: recording.run}

    async def _recording(
        self, request: web.BaseRequest, target: str, marks: Marks, body: bytes
    ) -> Recording:
        if self._producer is None:
            raise Unavailable("the log was not reached yet")
        settings = self.settings
        seen = Seen.of(
            org=settings.org,
            provider=settings.provider_name,
            method=request.method,
            host=settings.authority,
            path=settings.base_path + target,
            request=body,
            content_type=request.headers.get("Content-Type", ""),
            project=marks.project or settings.project,
            user=marks.user,
            conversation=marks.conversation,
            run_group=marks.run_group,
            idempotency_key=marks.idempotency_key,
            traceparent=request.headers.get("traceparent", ""),
        )
        return await Recording.begin(self._producer, seen)

    async def _pass(
        self,
        request: web.BaseRequest,
        target: str,
        upload: Upload,
        recorder: Recorder,
        added: dict[str, str],
    ) -> web.StreamResponse:
        headers = for_upstream(decoded(request.raw_headers), self.settings.authority)
        if added:
            narrow_codings(headers)
        passing = Passing(request, recorder, added, self.settings.drain_s, self._spawn)
        return await passing.through(self._upstream, target, headers, upload)

    def _own(self, target: str) -> web.Response:
        if target.partition("?")[0] != f"{OWN}healthz":
            raise Problem(404, "not_found", f"the proxy's own paths are {OWN}healthz")
        said = {
            "ok": self._producer is not None,
            "open": self._open - 1,
            "begun": COUNTS.begun,
            "unrecorded": COUNTS.unrecorded,
            "unended": COUNTS.unended,
            "cut": COUNTS.cut,
            "log": "" if self._producer is None else self._producer.state.rung,
        }
        return web.Response(body=orjson.dumps(said), content_type="application/json")


def _refused() -> Problem:
    detail = "the call cannot be recorded now, and this proxy passes none that is not"
    return Problem(503, "unavailable", detail, headers={"Retry-After": "5"})
