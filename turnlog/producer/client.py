"""`Producer`: what a gateway opens once a process and writes all its runs and turns with."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from turnlog.config import Config, load
from turnlog.errors import TurnlogError, Unavailable
from turnlog.keeper_client import Credential, credential_of, fetch_grant, load_credential
from turnlog.keys import Grant, Locator, Subject
from turnlog.producer import forks
from turnlog.producer.fields import RunFields, began
from turnlog.producer.ladder import connected
from turnlog.producer.run import Run
from turnlog.producer.transport import Position, State, Transport
from turnlog.producer.turns import Turn, TurnFields, append_turn
from turnlog.producer.writer import Body, Writer
from turnlog.providers import rates

logger = logging.getLogger(__name__)

DEFAULT_ORG = "local"
TICK_S = 0.02
# So long one turn of the event loop looks after runs: a sealed batch costs 30 µs on a quiet machine
# and 500 on a busy one, where 32 of them held the loop for 22 ms.
TICK_TURN_NS = 2_000_000
# A grant is asked for anew this long before it ends, and again every so often if that fails.
RENEW_BEFORE_US = 6 * 3600 * 1_000_000
RENEW_RETRY_S = 60.0
# What is not in Kafka by then is left on the disk.
CLOSE_TIMEOUT_S = 10.0


class Producer:
    """Writes runs and turns for the orgs of one credential, from one event loop.

    An accepted call (entering a run, ending it, `turn`, `append`) resolves once the broker has
    acknowledged the event, or, where it does not in 400 ms, once the event is on the disk; the
    `Position` says which. `Run.chunk` accepts nothing and never waits.

    Example:
        ```python
        async with Producer.open() as producer:
            async with producer.run(org="local", provider="openai", request=request) as run:
                async for piece in stream:
                    run.chunk(piece)
                await run.complete(response=body, usage=usage)
        ```
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._opened: set[Run] = set()
        self._later: set[asyncio.Task[None]] = set()
        forks.watch(self)

    @classmethod
    def over(cls, grant: Grant, transport: Transport) -> "Producer":
        """Return a producer of a grant and a transport that are at hand, without a ticker.

        Its owner calls `tick` and `close`. `open` is what gateways use.
        """
        return cls(Writer(transport, grant))

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        config: Config | None = None,
        credential: Credential | Path | str | None = None,
        *,
        transport: Transport | None = None,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
    ) -> AsyncIterator["Producer"]:
        """Open a producer; leaving the block flushes what was accepted.

        Args:
            config: where the parts are; read from the environment when left out.
            credential: which orgs may be written for, or its file; that of the config when left
                out, else that of the org `local`.
            transport: takes the records instead of Kafka.
            close_timeout_s: what is not in Kafka so long after leaving is left on the disk.

        Raises:
            UsageError: the config or the credential cannot be used.
            Unavailable: Kafka or the key keeper does not answer; on leaving: records were not
                acknowledged.
        """
        config = config or load()
        held = _credential(config, credential)
        grant = await asyncio.to_thread(fetch_grant, config, held)
        await asyncio.to_thread(rates.warm)
        producer = cls.over(grant, transport or await connected(config))
        renewing = partial(fetch_grant, config, held)
        ticker = asyncio.create_task(producer._tick_forever(renewing), name="turnlog-ticker")
        ticker.add_done_callback(_tell_of_the_end)
        try:
            yield producer
        finally:
            ticker.cancel()
            await producer.close(close_timeout_s)

    @property
    def producer_id(self) -> str:
        """Id of this producer, new for each; `producer_seq` counts under it."""
        return self._writer.producer_id

    @property
    def state(self) -> State:
        """How it is doing: which rung of the ladder, what waits, what found no room."""
        return self._writer.transport.state

    @property
    def grant(self) -> Grant:
        """Keys and scope that the keeper granted."""
        return self._writer.grant

    @property
    def writer(self) -> Writer:
        """What seals and numbers its events, for doors that see each of them off themselves."""
        return self._writer

    def run(self, **fields: Unpack[RunFields]) -> Run:
        """Return a run that `async with` begins; `RunFields` describes the fields.

        Raises:
            UsageError: a field is wrong, or the credential does not name the org.
            Erased: the user's or conversation's keys of today are erased.
        """
        return Run(self._writer, began(fields, self._writer.grant), self._opened)

    async def turn(self, **fields: Unpack[TurnFields]) -> Turn:
        """Append a turn with a text of its own; `TurnFields` describes the fields.

        Raises:
            UsageError: a field is wrong, or the credential does not name the org.
            TooLarge: the text does not fit a frame.
            Unavailable: the broker did not acknowledge it.
        """
        turn, acknowledged = await append_turn(self._writer, fields)
        return Turn(turn, await acknowledged)

    def append(
        self,
        type: str,
        body: Body,
        content: Mapping[str, Any] | None = None,
        subject: Subject | None = None,
        locator: Locator | None = None,
    ) -> "asyncio.Future[Position]":
        """Hand over any event; awaiting the result waits for the broker's acknowledgement.

        Events go out in the order of the calls. The low level under runs and turns, for importers.

        Args:
            type: event type, such as `turn.appended`.
            body: its fields. Filled in here: producer_id, producer_epoch, producer_seq, the key
                locator's three, frame, content_mac, and, for a run's event with a writer epoch,
                event_id.
            content: content fields, sealed into the frame.
            subject: whose content it is.
            locator: the subject's key locator.

        Raises:
            UsageError: the body does not fit the type, or the credential does not name its org.
            TooLarge: the frame is over 786,432 bytes, or the record over 950,000.
            Unavailable: (on awaiting) the broker did not acknowledge it.
        """
        return self._writer.append(type, body, content, subject, locator)

    async def _tick_forever(self, fetch: Callable[[], Grant]) -> None:
        renew_at_us = self._writer.grant.expires_at_us - RENEW_BEFORE_US
        while True:
            await asyncio.sleep(TICK_S)
            await self.tick()
            if time.time_ns() // 1000 >= renew_at_us:
                renew_at_us = await self._renew(fetch)

    async def tick(self) -> None:
        """Seal what is due in every open run, for 2 ms a turn of the loop."""
        now_ns = time.perf_counter_ns()
        until_ns = now_ns + TICK_TURN_NS
        for run in tuple(self._opened):
            try:
                run.tick(now_ns)
            except TurnlogError as error:
                # Its output is still held and goes out with the terminal event.
                logger.warning("run %s: a chunk batch was not written: %s", run.run, error)
            if time.perf_counter_ns() > until_ns:
                await asyncio.sleep(0)
                until_ns = time.perf_counter_ns() + TICK_TURN_NS

    async def _renew(self, fetch: Callable[[], Grant]) -> int:
        """Ask for a new grant; return when to ask next. A dead keeper stops nobody for a day."""
        try:
            grant = await asyncio.to_thread(fetch)
        except TurnlogError as error:
            logger.warning("the grant was not renewed: %s", error)
            return time.time_ns() // 1000 + int(RENEW_RETRY_S * 1e6)
        self._writer.grant = grant
        return grant.expires_at_us - RENEW_BEFORE_US

    def abandon(self) -> None:
        """Take nothing any more: this is a forked child, and the producer is its parent's."""
        self._writer.refusal = forks.REFUSED
        for run in self._opened:
            run.abandon()

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what nobody waits for, except `close`: such as the end of a run after its answer."""
        task = asyncio.get_running_loop().create_task(work, name="turnlog-later")
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Wait until what was handed over is in Kafka, or leave it on the disk after a while.

        In a forked child of the process that opened it there is nothing to close.

        Raises:
            Unavailable: something is in neither.
        """
        if self._writer.refusal:
            return
        until = asyncio.get_running_loop().time() + timeout_s
        if self._later:
            await asyncio.wait(self._later, timeout=timeout_s)
        ends = [asyncio.ensure_future(_interrupted(run)) for run in self._opened]
        if ends:
            await asyncio.wait(ends, timeout=until - asyncio.get_running_loop().time())
        rest_s = max(0.0, until - asyncio.get_running_loop().time())
        left = await self._writer.transport.close(rest_s)
        if left:
            raise Unavailable(f"{left} records are neither in Kafka nor on the disk")


def _tell_of_the_end(ticker: asyncio.Task[None]) -> None:
    """Say that nothing seals chunks and shows signs of life any more; nothing may end it."""
    if not ticker.cancelled() and (error := ticker.exception()) is not None:
        logger.critical("the ticker of a producer ended: %s; open another", type(error).__name__)


async def _interrupted(run: Run) -> None:
    """End a run that is open as the producer closes.

    Nobody can end it any more, and what it has shown would be lost with this process.
    """
    logger.warning("run %s is still open as the producer closes: interrupted", run.run)
    try:
        await run.__aexit__(None, None, None)
    except TurnlogError as error:
        logger.warning("the end of run %s was not recorded: %s", run.run, error)


def _credential(config: Config, given: Credential | Path | str | None) -> Credential:
    given = given or config.credential
    if given is None:
        return credential_of(config, DEFAULT_ORG)
    return load_credential(Path(given)) if isinstance(given, Path | str) else given
