"""`SyncRecording`: a recording whose bytes come in a thread without an event loop, or on another.

The run is written on the loop of a `SyncProducer`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Self

from turnlog.errors import UsageError
from turnlog.producer import SyncProducer
from turnlog.recording.recording import Recording
from turnlog.recording.seen import Seen


class SyncRecording:
    """Writes the run of one exchange over a `SyncProducer`. See `Recording` for the methods.

    Attributes:
        run: the run's id.
        head: `Recording.head` itself.
        data: `Recording.data` itself, which waits for nothing and nobody.
    """

    def __init__(self, producer: SyncProducer, recording: Recording) -> None:
        self._producer = producer
        self._recording = recording
        self.run = recording.run
        self.head = recording.head
        self.data = recording.data

    @classmethod
    def begin(cls, producer: SyncProducer, seen: Seen) -> Self:
        """Create the run and wait until it is durable; see `Recording.begin`."""
        return cls(producer, producer.wait(_beginning(producer, seen)))

    @classmethod
    async def begin_beside(cls, producer: SyncProducer, seen: Seen) -> Self:
        """Do as `begin` without holding the event loop of the caller, which is not the producer's.

        Raises:
            Unavailable: as `begin`, like the others.
        """
        begun = producer.begin(_beginning(producer, seen))
        return cls(producer, await asyncio.wrap_future(begun))

    def done(self) -> None:
        """End the run, and wait until that is durable; see `Recording.done`."""
        self._wait(self._recording.done)

    def cancelled(self) -> None:
        """End the run; see `Recording.cancelled`."""
        self._wait(self._recording.cancelled)

    def broke(self, error: BaseException) -> None:
        """End the run; see `Recording.broke`."""
        self._wait(lambda: self._recording.broke(error))

    def done_later(self) -> None:
        """Do as `done`, without waiting; the producer's `close` waits for it."""
        self._leave(self._recording.done)

    def cancelled_later(self) -> None:
        """Do as `cancelled`, without waiting."""
        self._leave(self._recording.cancelled)

    def broke_later(self, error: BaseException) -> None:
        """Do as `broke`, without waiting."""
        self._leave(lambda: self._recording.broke(error))

    # A producer that was closed meanwhile has ended the run as interrupted.

    def _wait(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with suppress(UsageError):
            self._producer.wait(work)

    def _leave(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with suppress(UsageError):
            self._producer.later(work)


def _beginning(producer: SyncProducer, seen: Seen) -> Callable[[], Coroutine[Any, Any, Recording]]:
    async def begin() -> Recording:
        recording: Recording

        def wake() -> None:
            with suppress(UsageError):
                producer.soon(recording.read_soon)

        recording = await Recording.begin(producer.on_loop, seen, wake)
        return recording

    return begin
