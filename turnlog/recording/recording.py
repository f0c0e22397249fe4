"""One exchange as it happens, from a request that is about to go out to the end of its answer."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Self

from turnlog.errors import TooLarge, TurnlogError
from turnlog.producer import Producer, Run
from turnlog.producer.usage import Spoke, source_of
from turnlog.providers import Chunk, Exchange, Source, understand
from turnlog.providers.live import Live
from turnlog.recording.body import Body
from turnlog.recording.counts import COUNTS
from turnlog.recording.seen import Seen
from turnlog.recording.turns import turns_of

logger = logging.getLogger(__name__)

# Bytes are read this long after they came, several pieces at once: reading each as it comes would
# cost a stream's reader its time. Reading an event costs 10 to 20 µs and what a client does with it
# 80, so a stream without pauses is read for a millisecond and then left alone for forty times that;
# what is left is read when it has ended. Of the 500 ms in which chunk batches follow (DESIGN.md
# law 2) it takes none: those count from when the bytes came.
READ_S = 0.1
READ_NS = 1_000_000
REST = 40
_SAID = ("content-encoding", "content-length", "content-type")
# A body from this size on is read in a thread: JSON of a megabyte takes 10 ms.
_LARGE_BYTES = 256 << 10


class Recording:
    """Writes the run of one exchange on the event loop of a `Producer`.

    `begin` may fail, and then nothing is recorded. After it nothing here raises into the call that
    is recorded: what fails is logged without content and counted in `COUNTS`. The first of `done`,
    `cancelled` and `broke` ends the run, later ones do nothing.

    Example:
        ```python
        recording = await Recording.begin(producer, Seen.of(org=org, provider="openai", ...))
        recording.head(answer.status, answer.headers)
        async for data in answer.content.iter_any():
            recording.data(data)
            await reader.write(data)
        await recording.done()
        ```

    Attributes:
        run: the run's id.
    """

    def __init__(
        self, producer: Producer, seen: Seen, run: Run, wake: Callable[[], None] | None = None
    ) -> None:
        """Take a run that was begun; `begin` is what others use.

        Args:
            producer: writes it.
            seen: the request.
            run: the run.
            wake: has the loop call `read_soon`; for those who bring bytes from another thread.
        """
        self.run = run.run
        self._producer = producer
        self._seen = seen
        self._run = run
        self._wake = wake or self.read_soon
        self._source: Source | None = None
        self._live: Live | None = None
        self._body = Body()
        self._came: deque[tuple[int, bytes]] = deque()
        self._due = False
        self._rest_until_ns = 0
        self._ended = False

    @classmethod
    async def begin(
        cls, producer: Producer, seen: Seen, wake: Callable[[], None] | None = None
    ) -> Self:
        """Create the run; resolves when that is durable, before the request may go out.

        A request that no frame can hold is left out, and the run says nothing of it but its model.

        Raises:
            Unavailable: it was not accepted.
            UsageError: a field is wrong, or the credential does not name the org.
            Erased: the user's or conversation's keys of today are erased.
        """
        try:
            run = await _begun(producer, seen)
        except TooLarge:
            COUNTS.add("cut")
            run = await _begun(producer, replace(seen, request=b"", input=""))
        COUNTS.add("begun")
        return cls(producer, seen, run, wake)

    # The answer. These three are called from one thread, the loop's or another.

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Take the beginning of the provider's answer.

        Args:
            status: HTTP status.
            headers: its headers, in any case.
        """
        said = dict.fromkeys(_SAID, "")
        said |= {lower: value for name, value in headers.items() if (lower := name.lower()) in said}
        encoding, length = said["content-encoding"], said["content-length"]
        self._body = Body(encoding)
        seen = self._seen
        spoke = Spoke(seen.provider, seen.model, seen.method, seen.host, seen.path)
        self._source = replace(
            source_of(spoke, status, seen.request, b""),
            streaming=seen.streaming,
            request_content_type=seen.content_type,
            content_type=said["content-type"].lower(),
            response_bytes=int(length) if length.isdecimal() and not encoding else None,
        )
        self._live = Live(self._source)

    def data(self, data: bytes) -> None:
        """Take the next bytes of the answer, as they came on the wire.

        The content-encoding that the head named is undone here. Never waits, and never raises
        whatever the bytes say.
        """
        self._came.append((time.perf_counter_ns(), data))
        if not self._due:
            self._due = True
            self._wake()

    # On the loop.

    def read_soon(self) -> None:
        """Have the bytes that came read a little later. Called on the loop's thread."""
        rest_s = (self._rest_until_ns - time.perf_counter_ns()) / 1e9
        asyncio.get_running_loop().call_later(max(READ_S, rest_s), self._read_in_time)

    def _read_in_time(self) -> None:
        began_ns = time.perf_counter_ns()
        self._due = False
        self._read(began_ns + READ_NS)
        now_ns = time.perf_counter_ns()
        self._rest_until_ns = now_ns + REST * (now_ns - began_ns)
        if self._came and not self._ended:
            self._due = True
            self.read_soon()

    def _read(self, until_ns: int) -> None:
        # Another thread may be appending to it.
        while self._came and time.perf_counter_ns() < until_ns:
            at_ns, data = self._came.popleft()
            plain = self._body.take(data)
            if plain and self._live is not None:
                self._show(self._live.feed(plain), at_ns)

    async def _read_rest(self) -> None:
        """Read what is left, and let the loop do other things in between."""
        while self._came:
            self._read(time.perf_counter_ns() + READ_NS)
            await asyncio.sleep(0)

    def _show(self, chunks: list[Chunk], at_ns: int) -> None:
        if not self._run.is_open:
            return  # the producer was closed, and has ended it
        for text in chunks:
            self._run.chunk(
                text.text,
                text.choice,
                text.kind,
                call=text.call,
                id=text.id,
                name=text.name,
                at_ns=at_ns,
            )

    # The end: `..._later` waits for nothing, and the producer's `close` waits for it.

    async def done(self) -> None:
        """End the run: the whole answer has come; what it says decides how.

        Resolves when that is durable. An answer that stops without its end is `interrupted`.
        """
        await self._end("", None)

    async def cancelled(self) -> None:
        """End the run: its reader went away. It is `cancelled`, unless the answer had ended."""
        await self._end("cancelled", None)

    async def broke(self, error: BaseException) -> None:
        """End the run: the connection broke or was never there.

        It is `interrupted` where bytes had come, else `failed`, unless the answer had ended.
        """
        await self._end("interrupted", error)

    def done_later(self) -> None:
        """Do as `done`, without waiting."""
        self._producer.later(self._in_turn(self.done))

    def cancelled_later(self) -> None:
        """Do as `cancelled`, without waiting."""
        self._producer.later(self._in_turn(self.cancelled))

    def broke_later(self, error: BaseException) -> None:
        """Do as `broke`, without waiting."""
        self._producer.later(self._in_turn(partial(self.broke, error)))

    async def _in_turn(self, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await turns_of(self._producer).next()
        await end()

    async def _end(self, asked: str, error: BaseException | None) -> None:
        if self._ended or not self._run.is_open:
            return  # it was ended before, or by the producer as that closed
        self._ended = True
        try:
            await self._written(asked, error)
        except TurnlogError as trouble:
            COUNTS.add("unended")
            logger.warning("the end of run %s was not recorded: %s", self.run, trouble)

    async def _written(self, asked: str, error: BaseException | None) -> None:
        await self._read_rest()
        if self._source is None or self._live is None:
            await self._unanswered(asked, error)
            return
        self._show(self._live.end(), 0)
        response = self._body.content()
        exchange = await _understood(self._live, replace(self._source, response=response))
        status = _status(asked, exchange, bool(response))
        await self._ended_as(status, exchange, response, _text(error))

    async def _unanswered(self, asked: str, error: BaseException | None) -> None:
        if asked == "cancelled":
            await self._run.cancel()
            return
        late = error is not None and "timeout" in type(error).__name__.lower()
        await self._run.fail(_text(error), error_code="timeout" if late else "no_answer")

    async def _ended_as(self, status: str, exchange: Exchange, response: bytes, error: str) -> None:
        kept = response if self._body.whole else None
        if kept is None:
            COUNTS.add("cut")
            logger.warning("run %s: its answer is too large or damaged, and is not kept", self.run)
        try:
            await self._run.end(status, exchange, response=kept, error=error)
        except TooLarge:
            COUNTS.add("cut")
            logger.warning("run %s: its answer does not fit a frame, and is not kept", self.run)
            await self._run.end(status, replace(exchange, choices=[]), error=error)


async def _begun(producer: Producer, seen: Seen) -> Run:
    run = producer.run(**seen.run_fields())
    return await run.__aenter__()


async def _understood(live: Live, source: Source) -> Exchange:
    """Return what an answer says; a stream of events was read as it came, and is not read again."""
    at_us = time.time_ns() // 1000
    read = live.exchange(source, at_us=at_us)
    if read is not None:
        return read
    if len(source.response) < _LARGE_BYTES:
        return understand(source, at_us=at_us)
    return await asyncio.to_thread(understand, source, at_us=at_us)


def _status(asked: str, exchange: Exchange, began: bool) -> str:
    """Return how the run ended: an answer that had come to its end counts, however it was left."""
    if not asked or _ended(exchange):
        return exchange.status
    return asked if asked == "cancelled" or began else "failed"


def _ended(exchange: Exchange) -> bool:
    """Say whether an answer that was left had ended by itself."""
    if exchange.status != "completed":
        return exchange.status == "failed"
    known_length = exchange.source.response_bytes is not None
    return exchange.streaming or exchange.form != "other" or known_length


def _text(error: BaseException | None) -> str:
    """Return what kind of error it was; the texts of HTTP clients quote headers and URLs."""
    if error is None:
        return ""
    said = getattr(error, "strerror", None)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
