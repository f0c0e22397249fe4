"""`SyncProducer`: the producer for threads and frameworks without an event loop.

It keeps a `Producer` on an event loop of its own, in a thread of its own. Accepted calls go there
and wait; `SyncRun.chunk` appends to a list and goes nowhere.
"""

import asyncio
import atexit
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from turnlog.config import Config
from turnlog.errors import TurnlogError, Unavailable, UsageError
from turnlog.keeper_client import Credential
from turnlog.keys import Grant, Locator, Subject
from turnlog.producer import forks
from turnlog.producer.client import CLOSE_TIMEOUT_S, Producer
from turnlog.producer.fields import Content, RunFields
from turnlog.producer.run import Run
from turnlog.producer.transport import Position, State
from turnlog.producer.turns import Turn, TurnFields
from turnlog.producer.writer import Body

logger = logging.getLogger(__name__)

T = TypeVar("T")
_LAST_CALLS_S = 2.0


class SyncProducer:
    """Writes runs and turns for the orgs of one credential, from any number of threads.

    The calls are those of `Producer` without `await`, and raise the same. It is open once it is
    made; `close`, leaving a `with` block, or else the end of the interpreter flushes it.

    Example:
        ```python
        with SyncProducer.open() as producer:
            with producer.run(org="local", provider="openai", request=request) as run:
                for piece in stream:
                    run.chunk(piece)
                run.complete(response=body, usage=usage)
        ```
    """

    def __init__(
        self,
        config: Config | None = None,
        credential: Credential | Path | str | None = None,
        *,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
    ) -> None:
        self._refusal = ""
        self._closing = threading.Lock()
        self._gate = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="turnlog-producer", daemon=True
        )
        self._thread.start()
        self._manager = Producer.open(config, credential, close_timeout_s=close_timeout_s)
        try:
            self._producer: Producer = self._wait(self._manager.__aenter__())
        except TurnlogError:
            self._stop()
            raise
        forks.watch(self)
        atexit.register(self._at_exit)

    @classmethod
    def open(
        cls,
        config: Config | None = None,
        credential: Credential | Path | str | None = None,
        *,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
    ) -> "SyncProducer":
        """Open a producer; see `Producer.open` for the arguments and what is raised."""
        return cls(config, credential, close_timeout_s=close_timeout_s)

    def __enter__(self) -> Self:
        """Return it: it is open already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    @property
    def producer_id(self) -> str:
        """Id of this producer, new for each; `producer_seq` counts under it."""
        return self._producer.producer_id

    @property
    def state(self) -> State:
        """How it is doing: which rung of the ladder, what waits, what found no room."""
        return self._producer.state

    @property
    def grant(self) -> Grant:
        """Keys and scope that the keeper granted."""
        return self._producer.grant

    @property
    def on_loop(self) -> Producer:
        """The producer itself, for work that `wait`, `begin` and `soon` bring to its loop."""
        return self._producer

    def run(self, **fields: Unpack[RunFields]) -> "SyncRun":
        """Return a run that `with` begins; see `Producer.run`."""
        return SyncRun(self, self.call(lambda: self._producer.run(**fields)))

    def turn(self, **fields: Unpack[TurnFields]) -> Turn:
        """Append a turn with a text of its own and wait until it is accepted."""
        return self.wait(lambda: self._producer.turn(**fields))

    def append(
        self,
        type: str,
        body: Body,
        content: Mapping[str, Any] | None = None,
        subject: Subject | None = None,
        locator: Locator | None = None,
    ) -> Position:
        """Hand over any event and wait until it is accepted; see `Producer.append`."""

        async def append() -> Position:
            return await self._producer.append(type, body, content, subject, locator)

        return self.wait(append)

    def later(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do what nobody waits for, except `close`; see `Producer.later`.

        Raises:
            UsageError: the producer is closed, or this is a forked child.
        """
        self.soon(lambda: self._producer.later(work()))

    def soon(self, work: Callable[[], object]) -> None:
        """Have the loop's thread do something, and wait for nothing.

        Raises:
            UsageError: the producer is closed, or this is a forked child.
        """
        with self._gate:
            if self._refusal:
                raise UsageError(self._refusal)
            self._loop.call_soon_threadsafe(work)

    def close(self) -> None:
        """Flush what was accepted, or leave it on the disk. Closing twice is fine.

        In a forked child of the process that opened it there is nothing to close.

        Raises:
            Unavailable: something is neither in Kafka nor on the disk.
        """
        if self._refusal == forks.REFUSED:
            return
        with self._closing:
            if self._refusal:
                return
            with self._gate:
                self._refusal = "the producer is closed"
            atexit.unregister(self._at_exit)
            try:
                self._wait(self._finish())
            finally:
                self._stop()

    async def _finish(self) -> None:
        try:
            await self._manager.__aexit__(None, None, None)
        finally:
            await self._let_go()

    async def _let_go(self) -> None:
        """Wait for calls of other threads, which now come to an end; none may wait for ever."""
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        if calls:
            _, late = await asyncio.wait(calls, timeout=_LAST_CALLS_S)
            for call in late:
                call.cancel()

    def abandon(self) -> None:
        """Take nothing any more: this is a forked child, and the producer is its parent's."""
        self._refusal = forks.REFUSED
        self._gate = threading.Lock()  # another thread may have held it in the parent

    def _at_exit(self) -> None:
        try:
            self.close()
        except TurnlogError as error:
            logger.error("at the end of the interpreter: %s", error)

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # From other threads to the loop's.

    def call(self, work: Callable[[], T]) -> T:
        """Do something on the loop's thread and return what it returns."""

        async def called() -> T:
            return work()

        return self.wait(called)

    def wait(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the loop's thread and wait for it.

        Raises:
            UsageError: the producer is closed, or this is a forked child.
        """
        return self._outcome(self.begin(work))

    def begin(self, work: Callable[[], Coroutine[Any, Any, T]]) -> "Future[T]":
        """Run a coroutine on the loop's thread; return what waits for it, from any thread.

        Raises:
            UsageError: the producer is closed, or this is a forked child.
        """
        with self._gate:  # what is handed over comes before the end of the loop
            if self._refusal:
                raise UsageError(self._refusal)
            return asyncio.run_coroutine_threadsafe(work(), self._loop)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._outcome(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _outcome(self, outcome: "Future[T]") -> T:
        try:
            return outcome.result()
        except CancelledError:
            raise Unavailable("the producer was closed meanwhile") from None
        finally:
            # Where the caller was interrupted (Ctrl-C), nobody waits for it any more.
            outcome.cancel()


class SyncRun:
    """A run in progress; `SyncProducer.run` makes it, `with` begins and ends it, as `Run` does.

    Attributes:
        run: the run's id.
        conversation: the conversation's id, empty where there is none.
        turn: id of the answer's turn, empty outside a conversation.
        chunk: notes a piece of output that a reader was shown: `Run.chunk` itself, which waits for
            nothing and nobody. What is noted while another thread ends the run may come too late.
    """

    def __init__(self, producer: SyncProducer, run: Run) -> None:
        self._producer = producer
        self._run = run
        self.run = run.run
        self.conversation = run.conversation
        self.turn = run.turn
        self.chunk = run.chunk

    def __repr__(self) -> str:
        return f"SyncRun({self.run})"

    @property
    def key_locator(self) -> Locator:
        """Where the run's keys sit."""
        return self._run.key_locator

    def __enter__(self) -> Self:
        """Begin the run; see `Run`.

        Raises:
            Unavailable: it was not accepted; then the model must not be called.
            TooLarge: the request does not fit a frame; nothing was written.
            UsageError: the run was begun before.
        """
        self._producer.wait(self._run.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the run if nothing ended it; see `Run`."""
        if self._run.is_open:
            self._producer.wait(lambda: self._run.__aexit__(kind, error, trace))

    def complete(
        self,
        response: Content | None = None,
        usage: Mapping[str, Any] | None = None,
        *,
        finish_reason: str = "",
        model: str = "",
        http_status: int = 0,
    ) -> Position:
        """End the run: the answer is whole. See `Run.complete`."""
        return self._producer.wait(
            lambda: self._run.complete(
                response,
                usage,
                finish_reason=finish_reason,
                model=model,
                http_status=http_status,
            )
        )

    def fail(
        self,
        error: str | BaseException = "",
        *,
        error_code: str = "",
        http_status: int = 0,
        response: Content | None = None,
        usage: Mapping[str, Any] | None = None,
        model: str = "",
    ) -> Position:
        """End the run: there is an error. See `Run.fail`."""
        return self._producer.wait(
            lambda: self._run.fail(
                error,
                error_code=error_code,
                http_status=http_status,
                response=response,
                usage=usage,
                model=model,
            )
        )

    def cancel(
        self, *, response: Content | None = None, usage: Mapping[str, Any] | None = None
    ) -> Position:
        """End the run: somebody stopped it. See `Run.cancel`."""
        return self._producer.wait(lambda: self._run.cancel(response=response, usage=usage))

    def interrupt(
        self, *, response: Content | None = None, usage: Mapping[str, Any] | None = None
    ) -> Position:
        """End the run: its stream broke off. See `Run.interrupt`."""
        return self._producer.wait(lambda: self._run.interrupt(response=response, usage=usage))
