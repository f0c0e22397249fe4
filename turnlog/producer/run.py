"""One run as its writer holds it: created, shown chunk by chunk, ended once."""

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self

from turnlog.errors import SpoolFull, TooLarge, TurnlogError, UsageError
from turnlog.keys import Locator
from turnlog.producer.ending import Ending, code_of, read_ending, text_of
from turnlog.producer.fields import Began, Content
from turnlog.producer.heard import trouble_of, unheard, warn_if_lost
from turnlog.producer.large import is_large
from turnlog.producer.output import BATCH_BYTES, Chunk, Output, check_chunk, ranges
from turnlog.producer.run_events import RunEvents
from turnlog.producer.transport import Position
from turnlog.producer.turns import answer_turn, input_turn
from turnlog.producer.writer import Writer
from turnlog.providers import Exchange

logger = logging.getLogger(__name__)

# DESIGN.md law 2: chunk batches follow within 500 ms or 16 KB. Sooner, so that what a crash costs
# while Kafka is silent (this, 400 ms, and a sync of the disk) stays under a second: at 500 ms a
# loaded machine lost 1,011 ms.
BATCH_NS = 400_000_000
HEARTBEAT_NS = 5_000_000_000
# Acknowledgements of chunk batches that a long run keeps before it looks which have come.
_PRUNE_AT = 64

# A task that is cancelled, a generator that a server closes when its reader is gone, Ctrl-C.
_STOPPED = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)

_Noted = tuple[int, int, str, str, int, str, str]


class Run:
    """A run in progress; `Producer.run` makes it, `async with` begins and ends it.

    Entering resolves when the broker has acknowledged `run.created` (and the input turn, where one
    was given), so the run exists before the model is called. Leaving the block:

    - after `complete`, `fail`, `cancel` or `interrupt`: nothing more is written;
    - by an exception: `fail` with the error code `exception` and the exception's class name, which
      then propagates; by cancellation of the task (`CancelledError`), of a generator that holds the
      block (`GeneratorExit`) or by Ctrl-C: `cancel`;
    - in any other way: `interrupt`, because nobody said how it ended.

    Attributes:
        run: the run's id.
        conversation: the conversation's id, empty where there is none.
        turn: id of the answer's turn, empty outside a conversation.
        position: where its beginning is, None before.
    """

    def __init__(self, writer: Writer, began: Began, opened: set["Run"]) -> None:
        self.run: str = began.common["run"]
        self.conversation: str = began.common["conversation"]
        self.turn: str = began.common["turn"]
        self.position: Position | None = None
        self._fields = began
        self._writer = writer
        self._events = RunEvents(writer, began)
        self._opened = opened
        self._output = Output()
        self._pending: list[_Noted] = []
        self._pending_bytes = 0
        self._accepted: list[asyncio.Future[Position]] = []
        self._others: list[asyncio.Future[Position]] = []
        self._shed: list[int] = []
        self._began_ns = 0
        self._began_us = 0
        self._beat_ns = 0
        self._ttft_us: int | None = None
        self._entered = False
        self._is_partial = self._counted = False
        self._ending = False
        self._open = False

    def __repr__(self) -> str:
        return f"Run({self.run})"

    @property
    def is_open(self) -> bool:
        """Whether it was begun and has not ended."""
        return self._open

    @property
    def key_locator(self) -> Locator:
        """Where the run's keys sit."""
        return self._events.locator

    # Beginning.

    async def __aenter__(self) -> Self:
        """Begin the run.

        Raises:
            Unavailable: the broker did not acknowledge it; then the model must not be called.
            TooLarge: the request does not fit a frame; nothing was written.
            UsageError: the run was begun before.
        """
        self._writer.check()
        if self._entered:
            raise UsageError(f"run {self.run} was begun before")
        self._entered = True
        created = await self._created()
        try:
            turn = await self._input_turn()
            self.position = await created
            if turn is not None:
                await turn
            self._begin()
        finally:
            if not self._open:
                self._give_up(created)
        return self

    async def take_over(
        self, producer_id: str, began_us: int, shown: Output | None, counted: bool = False
    ) -> Self:
        """Go on with a run that another writer began, in the place of entering it.

        Its `Began` has the next writer epoch and the run's key locator.

        Args:
            producer_id: who held it.
            began_us: when it began, UTC microseconds.
            shown: what it has shown so far; None where that cannot be read, so that its end says
                what came since, or what the response says.
            counted: the other writer's usage stands in the log: the end books none.

        Raises:
            Unavailable: it was not accepted; the run is still the other writer's.
            UsageError: the run was begun before.
        """
        self._writer.check()
        if self._entered:
            raise UsageError(f"run {self.run} was begun before")
        self._entered = True
        own = {
            "previous_epoch": self._fields.common["writer_epoch"] - 1,
            "previous_producer": producer_id,
            "reason": "handover",
        }
        self.position = await self._events.put("run.taken_over", own)
        self._output, self._is_partial = shown or Output(), shown is None
        self._counted = counted
        self._began_us = began_us
        self._beat_ns = time.perf_counter_ns()
        self._began_ns = self._beat_ns - time.time_ns() + 1000 * began_us
        self._open = True
        self._opened.add(self)
        return self

    async def _created(self) -> asyncio.Future[Position]:
        began = self._fields
        own = began.describes | began.created
        if is_large(began.request):
            return await self._events.put_large("run.created", own, began.request, kind="q")
        return self._events.put("run.created", own, began.request, kind="q")

    async def _input_turn(self) -> asyncio.Future[Position] | None:
        began = self._fields
        if began.input is None:
            return None
        return await input_turn(self._writer, self._events, began.input, began.input_role)

    def _begin(self) -> None:
        self._began_ns, self._began_us = time.perf_counter_ns(), time.time_ns() // 1000
        self._beat_ns = self._began_ns
        if self.conversation:
            self._accepted.append(answer_turn(self._events))
        self._open = True
        self._opened.add(self)

    def _give_up(self, created: asyncio.Future[Position]) -> None:
        """End a run whose beginning was not waited for, while its record is on its way.

        The model was not called. Nobody waits for these records; closing the producer does.
        """
        lost = created.done() and not created.cancelled() and created.exception() is not None
        if not lost:
            self._began_ns = time.perf_counter_ns()
            for future in self._last_events(read_ending("cancelled", self._fields, {})):
                future.add_done_callback(unheard)

    def abandon(self) -> None:
        """Take nothing any more: this is a forked child, and the run is its parent's."""
        self._open = False

    def _not_open(self, what: str) -> UsageError:
        return UsageError(self._writer.refusal or f"run {self.run} is not open: {what}")

    # While it runs.

    def chunk(
        self,
        text: str,
        choice: int = 0,
        kind: str = "text",
        *,
        call: int = 0,
        id: str = "",
        name: str = "",
        at_ns: int = 0,
    ) -> None:
        """Note a piece of output that a reader was shown. Accepts nothing and never waits.

        Args:
            text: the piece; for a tool call, of its arguments.
            choice: index of the choice, from 0.
            kind: `text`, `reasoning`, `refusal` or `tool_call`.
            call: which tool call of the choice.
            id: the tool call's id, in its first piece.
            name: the tool's name, in its first piece.
            at_ns: when it was shown, by `time.perf_counter_ns`; now when left out.

        Raises:
            UsageError: a wrong type, kind or index, or the run is not open.
        """
        if not self._open:
            raise self._not_open("it takes no chunk")
        if type(text) is not str or kind != "text" or type(choice) is not int or choice:
            check_chunk(text, choice, kind, call, id, name)
        now_ns = self._when(at_ns) if at_ns else time.perf_counter_ns()
        self._pending.append((now_ns, choice, kind, text, call, id, name))
        # Four bytes a character at most; isascii() is a flag that the string carries.
        self._pending_bytes += len(text) if text.isascii() else 4 * len(text)

    def first_token(self, at_ns: int) -> None:
        """Note when the first token was shown, where the texts themselves are not at hand.

        Args:
            at_ns: by `time.perf_counter_ns`.

        Raises:
            UsageError: the run is not open.
        """
        if not self._open:
            raise self._not_open("it shows nothing")
        if self._ttft_us is None:
            self._start(self._when(at_ns))

    def _when(self, at_ns: int) -> int:
        """Return a time that lies in the run; a later one would keep its batch waiting."""
        if type(at_ns) is not int:
            raise UsageError("at_ns is a whole number, of time.perf_counter_ns")
        return max(self._began_ns, min(at_ns, time.perf_counter_ns()))

    def tick(self, now_ns: int) -> None:
        """Seal chunks that are due and show a sign of life. Called by the producer's ticker."""
        pending = self._pending
        if pending:
            if self._ttft_us is None and not self._ending:
                self._start(pending[0][0])
            due = self._pending_bytes >= BATCH_BYTES or now_ns - pending[0][0] >= BATCH_NS
            if due and not self._ending:
                self.seal()
        if now_ns - self._beat_ns >= HEARTBEAT_NS:
            self._beat_ns = now_ns
            self._note(self._events.beat(self._output.chars))

    def seal(self) -> None:
        """Write the chunks noted so far; `run.started` goes before the first of them."""
        # The list stays the same one: another thread may be appending to it (`SyncRun.chunk`).
        pending = self._pending[:]
        del self._pending[: len(pending)]
        self._pending_bytes = 0
        if not pending:
            return
        if self._ttft_us is None:
            self._start(pending[0][0])
        began_ns = self._began_ns
        chunks = [
            Chunk((ns - began_ns) // 1000, choice, kind, text, call, id_, name)
            for ns, choice, kind, text, call, id_, name in pending
        ]
        for batch in self._output.batches(chunks):
            future = self._events.put("chunk.batch", batch.body, batch.content)
            future.add_done_callback(partial(self._note_shed, batch.body["seq"]))
            self._note(future)

    def _note_shed(self, seq: int, future: asyncio.Future[Position]) -> None:
        """Remember a batch that found no room: the terminal event names it and has its text."""
        if not future.cancelled() and isinstance(future.exception(), SpoolFull):
            self._shed.append(seq)

    def _start(self, first_chunk_ns: int) -> None:
        self._ttft_us = (first_chunk_ns - self._began_ns) // 1000
        own = {"ttft_us": self._ttft_us, "occurred_at_us": self._began_us + self._ttft_us}
        self._note(self._events.put("run.started", own))

    def _note(self, future: asyncio.Future[Position]) -> None:
        """Keep the acknowledgement of what nobody waits for until the end."""
        if len(self._others) >= _PRUNE_AT:
            self._others = [f for f in self._others if not f.done() or f.exception()]
        self._others.append(future)

    # The end.

    async def complete(
        self,
        response: Content | None = None,
        usage: Mapping[str, Any] | None = None,
        *,
        finish_reason: str = "",
        model: str = "",
        http_status: int = 0,
    ) -> Position:
        """End the run: the answer is whole.

        Resolves when the broker has acknowledged the terminal event, which holds the whole output,
        and the usage event.

        Args:
            response: the response as received, stored byte for byte.
            usage: the eleven token classes, or the provider's usage block. Left out, it is read
                from the response; where that has none it is `unknown`, never 0.
            finish_reason: why generation ended, as the provider says it.
            model: the model that answered, as the provider named it.
            http_status: status of the provider's answer.

        Returns:
            Where the terminal event is.

        Raises:
            UsageError: the run is not open, or the usage is none (negative, not numbers).
            TooLarge: the response does not fit a frame; the run is still open.
            Unavailable: an acknowledgement did not come.
        """
        own = {"finish_reason": finish_reason, "model": model, "http_status": http_status}
        return await self._end("completed", own, response, usage)

    async def fail(
        self,
        error: str | BaseException = "",
        *,
        error_code: str = "",
        http_status: int = 0,
        response: Content | None = None,
        usage: Mapping[str, Any] | None = None,
        model: str = "",
    ) -> Position:
        """End the run: there is an error.

        Args:
            error: what happened; content, kept in the frame.
            error_code: a code without content, such as `timeout`. Left out: `http_429` where
                http_status is 429, `provider_error` where there is none.
            http_status: status of the provider's answer, 0 where there was none.
            response: see `complete`, like usage, model, the result and what is raised.
            usage: see `complete`.
            model: see `complete`.
        """
        code = error_code or code_of(http_status)
        own = {"error_code": code, "model": model, "http_status": http_status}
        return await self._end("failed", own, response, usage, text_of(error))

    async def cancel(
        self, *, response: Content | None = None, usage: Mapping[str, Any] | None = None
    ) -> Position:
        """End the run: somebody stopped it. See `complete`."""
        return await self._end("cancelled", {}, response, usage)

    async def interrupt(
        self, *, response: Content | None = None, usage: Mapping[str, Any] | None = None
    ) -> Position:
        """End the run: its stream broke off, and nobody said why. See `complete`."""
        return await self._end("interrupted", {}, response, usage)

    async def end(
        self,
        status: str,
        exchange: Exchange,
        *,
        response: Content | None = None,
        error: str = "",
        error_code: str = "",
    ) -> Position:
        """End the run with what `turnlog.providers` read in the response. See `complete`.

        Args:
            status: completed, failed, cancelled or interrupted.
            exchange: usage, finish reason, model and output are taken from it.
            response: the response as received.
            error: see `fail`; where it is empty, what the exchange says.
            error_code: see `fail`; where it is empty, what the exchange says of the same status.
        """
        same = status == exchange.status
        own = {
            "finish_reason": exchange.finish_reason,
            "model": exchange.model,
            "http_status": exchange.source.status,
            "error_code": error_code or (exchange.error_code if same else ""),
        }
        text = error or (exchange.error if same else "")
        return await self._end(status, own, response, None, text, exchange)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the run if nothing ended it; see the class."""
        if not self._open:
            return
        if error is None:
            await self._end_by_itself("interrupted", {})
            return
        try:
            if isinstance(error, _STOPPED):
                await self._end_by_itself("cancelled", {})
            else:
                name = type(error).__name__
                await self._end_by_itself("failed", {"error_code": "exception"}, name)
        except TurnlogError as trouble:
            # The caller's own exception matters more; it must not be hidden by ours.
            error.add_note(f"turnlog: the end of run {self.run} was not recorded: {trouble}")
            logger.warning("the end of run %s was not recorded: %s", self.run, trouble)

    async def _end_by_itself(self, status: str, own: dict[str, Any], error: str = "") -> None:
        try:
            await self._end(status, own, None, None, error)
        except TooLarge:
            # Every run ends: its output stands in the chunk batches.
            logger.warning("run %s ends without its output, which is too large", self.run)
            self._output.drop_texts()
            await self._end(status, own, None, None, error)

    async def _end(
        self,
        status: str,
        own: dict[str, Any],
        response: Content | None,
        usage: Mapping[str, Any] | None,
        error: str = "",
        exchange: Exchange | None = None,
    ) -> Position:
        if not self._open or self._ending:
            raise self._not_open(f"it cannot be {status}")
        ending = read_ending(status, self._fields, own, response, usage, error, exchange)
        self.seal()
        position, counted = await self._written(ending)
        self._open = False
        self._opened.discard(self)
        for future in self._others:
            # Not waited for: the terminal event holds the whole output, and chunks take longer.
            if future.done():
                warn_if_lost(self.run, future)
            else:
                future.add_done_callback(partial(warn_if_lost, self.run))
        troubles = [await trouble_of(future) for future in (*self._accepted, counted, position)]
        for trouble in filter(None, troubles):
            raise trouble
        return position.result()

    async def _written(self, ending: Ending) -> tuple[asyncio.Future[Position], ...]:
        """Write the terminal event, sealed in a thread where it is large, and the usage event."""
        body, content = self._terminal(ending)
        name = f"run.{ending.status}"
        if is_large(content, self._output.chars if "output" in content else 0):
            self._ending = True
            try:
                ended = await self._events.put_large(name, body, content)
            finally:
                self._ending = False
        else:
            ended = self._events.put(name, body, content)
        used = ended if self._counted else self._events.put("usage.recorded", ending.usage)
        return ended, used

    def _last_events(self, ending: Ending) -> tuple[asyncio.Future[Position], ...]:
        """Write the end of a run that was never begun, so that nothing in it is large."""
        body, content = self._terminal(ending)
        return (
            self._events.put(f"run.{ending.status}", body, content),
            self._events.put("usage.recorded", ending.usage),
        )

    def _terminal(self, ending: Ending) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return body and content of the terminal event."""
        body = {
            **ending.body,
            "ttft_us": self._ttft_us,
            "total_us": (time.perf_counter_ns() - self._began_ns) // 1000,
            "output_chars": self._output.chars,
            "shed": ranges(self._shed),
        }
        shown = self._output.content()
        # What was shown before a take-over may be missing here; the response knows it all.
        whole = shown | ending.content if self._is_partial else ending.content | shown
        return body, whole
