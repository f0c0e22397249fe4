"""The runs of LiteLLM's calls: begun once and ended once, however often its hooks tell of them."""

import logging
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from turnlog.clients.process import OF_PROCESS
from turnlog.errors import TooLarge, TurnlogError, UsageError
from turnlog.litellm.reading import Asked, failed_with, understood
from turnlog.producer import Producer, Run, SyncProducer
from turnlog.recording import COUNTS

logger = logging.getLogger(__name__)

# LiteLLM tells of one end up to four times, within seconds.
_REMEMBERED = 20_000

_HELD = "turnlog_run"

Key = tuple[str, str]


class _Held(str):
    """A run's id whose end can be watched."""


@dataclass(slots=True)
class Attempt:
    """An open run.

    Attributes:
        asked: what was asked.
        run: the run.
        is_sent: whether LiteLLM said that the request goes out.
    """

    asked: Asked
    run: Run
    is_sent: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """How a call ended.

    Attributes:
        response: the response object as JSON; empty where there is none.
        standard: LiteLLM's own summary of the call.
        cached: whether nobody was asked.
        left: whether its reader went away.
        first_token_ns: when the first token came, by `time.perf_counter_ns`; 0: not known.
        error: the exception of a call that failed.
    """

    response: bytes = b""
    standard: Any = None
    cached: bool = False
    left: bool = False
    first_token_ns: int = 0
    error: BaseException | None = None


class Calls:
    """The open runs of this process by call; any thread and any event loop may tell of them."""

    def __init__(self, producer: Callable[[], SyncProducer] = OF_PROCESS.get) -> None:
        self._producer = producer
        self._lock = threading.Lock()
        self._open: dict[Key, Attempt] = {}
        self._ended: OrderedDict[Key, str] = OrderedDict()
        self._failed: OrderedDict[tuple[str, int], str] = OrderedDict()

    def has(self, key: Key) -> Attempt | None:
        """Return the open run of a call."""
        return self._open.get(key)

    def beginning(self, key: Key, asked: Asked) -> Callable[[], Coroutine[Any, Any, None]]:
        """Return the work that creates a run, for `SyncProducer.wait` or `begin`.

        An attempt of the same call that ended before, or is still open, is its cause.
        """
        before = self._ended.get(key, "") or self._failed.get(asked.mark, "")
        if (open_still := self._take(key)) is not None:
            before = open_still.run.run
            self._leave(partial(_failed, open_still, Answer()))

        async def begin() -> None:
            producer = self._producer().on_loop
            run = await _begun(producer, asked, before)
            COUNTS.add("begun")
            with self._lock:
                self._open[key] = Attempt(asked, run)

        return begin

    def producer(self) -> SyncProducer:
        """Return the producer that writes the runs; see `OfProcess.get` for what is raised."""
        return self._producer()

    def watch(self, key: Key, details: dict[str, Any]) -> None:
        """Have the run cancelled when LiteLLM forgets the call without having told its end.

        That is how it treats a stream that nobody reads to its end, and a task that is cancelled.
        What is watched is a text of ours among what LiteLLM keeps of the call: a dictionary cannot
        be watched itself.
        """
        attempt = self._open.get(key)
        if attempt is not None:
            held = details[_HELD] = _Held(attempt.run.run)
            weakref.finalize(held, self._forgotten, key, attempt.run.run).atexit = False

    def _forgotten(self, key: Key, run: str) -> None:
        attempt = self._open.get(key)
        if attempt is not None and attempt.run.run == run and self._take(key) is attempt:
            self._leave(partial(_cancelled, attempt))

    def end(self, key: Key, answer: Answer, late: Callable[[], Asked]) -> None:
        """End the run of a call, or write it whole where none was begun.

        Args:
            key: the call.
            answer: how it ended.
            late: returns what was asked, where no run was begun.
        """
        attempt = self._take(key)
        if attempt is not None:
            if answer.error is not None:
                self._keep(self._failed, attempt.asked.mark, attempt.run.run)
            self._leave(partial(_ended, attempt, answer))
        elif self._remember(key, ""):
            self._leave(partial(self._whole, late(), answer))

    async def _whole(self, asked: Asked, answer: Answer) -> None:
        try:
            run = await _begun(self._producer().on_loop, asked, "")
        except TurnlogError as error:
            COUNTS.unrecorded_call(error)
            return
        COUNTS.add("begun")
        await _ended(Attempt(asked, run), answer)

    def _take(self, key: Key) -> Attempt | None:
        with self._lock:
            attempt = self._open.pop(key, None)
        if attempt is not None:
            self._remember(key, attempt.run.run)
        return attempt

    def _remember(self, key: Key, run: str) -> bool:
        """Note that a call has ended; return whether that is news."""
        if not run and key in self._ended:
            return False
        self._keep(self._ended, key, run)
        return True

    def _keep(self, kept: OrderedDict[Any, str], key: Any, run: str) -> None:
        with self._lock:
            kept[key] = run
            if len(kept) > _REMEMBERED:
                kept.popitem(last=False)

    def _leave(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            self._producer().later(work)
        except UsageError as error:
            # The producer was closed, and has ended what was open.
            logger.warning("the end of a call was not recorded: %s", error)
        except TurnlogError as error:
            COUNTS.unrecorded_call(error)


async def _begun(producer: Producer, asked: Asked, before: str) -> Run:
    own: dict[str, Any] = {"org": _org(producer), **asked.fields}
    if before:
        own["causation_id"] = before
    try:
        return await producer.run(**own).__aenter__()
    except TooLarge:
        COUNTS.add("cut")
        return await producer.run(**{**own, "request": b""}).__aenter__()


def _org(producer: Producer) -> str:
    """Return the org: the credential's, and nobody else's to say."""
    if len(producer.grant.orgs) != 1:
        raise UsageError("the credential of LiteLLM's process must name one org")
    return producer.grant.orgs[0]


async def _ended(attempt: Attempt, answer: Answer) -> None:
    if answer.error is not None:
        await _failed(attempt, answer)
        return
    try:
        await _completed(attempt, answer)
    except TurnlogError as error:
        _unended(attempt, error)


async def _completed(attempt: Attempt, answer: Answer) -> None:
    run, asked = attempt.run, attempt.asked
    if answer.first_token_ns:
        run.first_token(answer.first_token_ns)
    exchange = understood(
        asked,
        answer.response,
        answer.standard,
        cached=answer.cached,
        left=answer.left,
        at_us=time.time_ns() // 1000,
    )
    try:
        await run.end(exchange.status, exchange, response=answer.response or None)
    except TooLarge:
        COUNTS.add("cut")
        await run.end(exchange.status, exchange)


async def _failed(attempt: Attempt, answer: Answer) -> None:
    text, status = failed_with(answer.error)
    try:
        await attempt.run.fail(text, http_status=status)
    except TurnlogError as error:
        _unended(attempt, error)


async def _cancelled(attempt: Attempt) -> None:
    try:
        await attempt.run.cancel()
    except TurnlogError as error:
        _unended(attempt, error)


def _unended(attempt: Attempt, error: TurnlogError) -> None:
    COUNTS.add("unended")
    logger.warning("the end of run %s was not recorded: %s", attempt.run.run, error)


def first_token_ns(given: Mapping[str, Any]) -> int:
    """Return when a stream's first token came, by `time.perf_counter_ns`; 0 where nobody says."""
    first = given.get("completion_start_time")
    if not given.get("stream") or not isinstance(first, datetime):
        return 0
    # LiteLLM's times have no zone; both are this machine's.
    since_s = (datetime.now(first.tzinfo) - first).total_seconds()
    return time.perf_counter_ns() - int(max(since_s, 0.0) * 1e9)
