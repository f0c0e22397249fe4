"""Transports of httpx that write down what goes by.

httpx hands each request, redirects and all, to a transport, and takes an answer whose body is
still to come. What it sees of ours is the other transport's answer with a body that tells us of
each piece before it hands it on.
"""

from collections.abc import AsyncIterator, Iterator
from functools import cache
from types import ModuleType, TracebackType
from typing import Any, Self

from turnlog.clients.request import sent
from turnlog.clients.way import AsyncWay, OnThread, Recorder
from turnlog.recording import is_model_call


class _Watch:
    """Leaving the block by an exception ends the recording: what broke, or who went away."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            self._recorder.broke_later(error)
        elif error is not None:
            # A cancelled task, a generator that is closed, Ctrl-C.
            self._recorder.cancelled_later()


class SyncTransport:
    """A transport around another of a client that is not async."""

    def __init__(self, inner: Any, module: ModuleType, way: OnThread) -> None:
        self._inner = inner
        self._stream = _stream_class(module, SyncBody, "SyncByteStream")
        self._way = way

    def handle_request(self, request: Any) -> Any:
        """Send a request; see httpx."""
        recorder = None
        if is_model_call(request.method, request.url.path):
            recorder = self._way.begin(sent(request))
        if recorder is None:
            return self._inner.handle_request(request)
        with _Watch(recorder):
            response = self._inner.handle_request(request)
        return _recorded(response, recorder, self._stream)

    def close(self) -> None:
        """Close the other."""
        self._inner.close()

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class AsyncTransport:
    """A transport around another of an async client."""

    def __init__(self, inner: Any, module: ModuleType, way: AsyncWay) -> None:
        self._inner = inner
        self._stream = _stream_class(module, AsyncBody, "AsyncByteStream")
        self._way = way

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request; see httpx."""
        recorder = None
        if is_model_call(request.method, request.url.path):
            recorder = await self._way.begin(sent(request))
        if recorder is None:
            return await self._inner.handle_async_request(request)
        with _Watch(recorder):
            response = await self._inner.handle_async_request(request)
        return _recorded(response, recorder, self._stream)

    async def aclose(self) -> None:
        """Close the other."""
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._inner.__aexit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _recorded(response: Any, recorder: Recorder, stream: Any) -> Any:
    """Return an answer whose body goes past the recorder."""
    recorder.head(response.status_code, response.headers)
    whole = getattr(response, "_content", None)
    if isinstance(whole, bytes):  # as a transport for tests makes it: nobody will read its stream
        recorder.data(whole)
        recorder.done_later()
    else:
        response.stream = stream(response.stream, recorder)
    return response


@cache
def _stream_class(module: ModuleType, kind: type, base: str) -> type:
    """Return a class of bodies that httpx takes for one of its own."""
    return type(kind.__name__, (kind, getattr(module, base)), {})


class SyncBody:
    """A body on its way to a client that is not async."""

    def __init__(self, inner: Any, recorder: Recorder) -> None:
        self._inner = inner
        self._recorder = recorder

    def __iter__(self) -> Iterator[bytes]:
        tell = self._recorder.data
        with _Watch(self._recorder):
            for data in self._inner:
                tell(data)
                yield data
        self._recorder.done_later()

    def close(self) -> None:
        """Close it: where it has not ended, its reader stopped early."""
        self._recorder.cancelled_later()
        self._inner.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class AsyncBody:
    """A body on its way to an async client."""

    def __init__(self, inner: Any, recorder: Recorder) -> None:
        self._inner = inner
        self._recorder = recorder

    async def __aiter__(self) -> AsyncIterator[bytes]:
        tell = self._recorder.data
        with _Watch(self._recorder):
            async for data in self._inner:
                tell(data)
                yield data
        self._recorder.done_later()

    async def aclose(self) -> None:
        """Close it: where it has not ended, its reader stopped early."""
        self._recorder.cancelled_later()
        await self._inner.aclose()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
