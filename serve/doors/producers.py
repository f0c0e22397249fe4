"""The producers of a server: one an org, all over one way into Kafka and one disk spool."""

import asyncio
import logging
from contextlib import AbstractAsyncContextManager
from typing import cast

from serve.doors.problem import Problem
from turnlog.config import Config
from turnlog.errors import KeyUnavailable, TurnlogError, Unavailable, UsageError
from turnlog.keeper_client import credential_of
from turnlog.producer import Producer, Transport
from turnlog.producer.ladder import connected
from turnlog.producer.transport import State

logger = logging.getLogger(__name__)

RETRY_S = 1.0


class Producers:
    """Opens the producer of an org when it is first needed.

    An org's credential is its file under `config.credentials`. All producers share the process's
    transport, and so its `producer_id` and its numbering.

    Args:
        config: where the parts are.
        transport: takes the records instead of Kafka.
    """

    def __init__(self, config: Config, transport: Transport | None = None) -> None:
        self._config = config
        self._transport = transport
        self._connecting: asyncio.Task[Transport] | None = None
        self._opening: dict[str, asyncio.Task[Producer]] = {}
        self._opened: dict[str, Producer] = {}
        self._contexts: list[AbstractAsyncContextManager[Producer]] = []
        self._closed = False

    @property
    def state(self) -> State | None:
        """How the way into Kafka is doing; None while there never was one."""
        return None if self._transport is None else self._transport.state

    async def connect(self) -> None:
        """Connect to Kafka, again and again until it answers: nothing is accepted before."""
        while not self._closed:
            try:
                await self._shared()
                return
            except TurnlogError as error:
                logger.warning("nothing can be accepted yet: %s", error)
                await asyncio.sleep(RETRY_S)

    async def of(self, org: str) -> Producer:
        """Return the producer of an org.

        Raises:
            Problem: 503, the server has no credential for the org, or is closing.
            Unavailable: Kafka or the key keeper does not answer.
        """
        opened = self._opened.get(org)
        if opened is not None:
            return opened
        if self._closed:
            raise Problem(503, "draining", "the server is shutting down", headers=_SOON)
        opening = self._opening.get(org)
        if opening is None:
            # A task of its own: a caller that goes away takes nothing from those who wait beside.
            opening = asyncio.create_task(self._open(org), name=f"turnlog-open-{org}")
            self._opening[org] = opening
            opening.add_done_callback(lambda _: self._opening.pop(org, None))
        return await asyncio.shield(opening)

    async def _open(self, org: str) -> Producer:
        transport = cast(Transport, _Shared(await self._shared()))
        try:
            credential = await asyncio.to_thread(credential_of, self._config, org)
            context = Producer.open(self._config, credential, transport=transport)
            producer = await context.__aenter__()
        except (UsageError, KeyUnavailable) as error:
            logger.error("org %s cannot be written for: %s", org, error)
            raise Problem(
                503, "not_configured", "this server cannot write for the org of the credential"
            ) from None
        self._contexts.append(context)
        self._opened[org] = producer
        return producer

    async def _shared(self) -> Transport:
        if self._transport is not None:
            return self._transport
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect(), name="turnlog-connect")
        return await asyncio.shield(self._connecting)

    async def _connect(self) -> Transport:
        try:
            self._transport = await connected(self._config)
            return self._transport
        finally:
            self._connecting = None

    async def close(self, timeout_s: float) -> int:
        """End open runs as interrupted, then wait for Kafka; leave on the disk what takes too long.

        Returns:
            Events on the disk, which the next producer that is opened on this folder sends.

        Raises:
            Unavailable: something is in neither.
        """
        self._closed = True
        begun = [*self._opening.values(), *([self._connecting] if self._connecting else [])]
        await asyncio.gather(*begun, return_exceptions=True)
        self._opened.clear()
        ends = [context.__aexit__(None, None, None) for context in self._contexts]
        for failed in await asyncio.gather(*ends, return_exceptions=True):
            if failed is not None and not isinstance(failed, bool):
                logger.error("a producer did not close: %s", failed)
        if self._transport is None:
            return 0
        lost = await self._transport.close(timeout_s)
        if lost:
            raise Unavailable(f"{lost} records are neither in Kafka nor on the disk")
        return sum(self._transport.state.spool_events.values())


_SOON = {"Retry-After": "5"}


class _Shared:
    """The process's transport as each of its producers has it: not theirs to close."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.producer_id = transport.producer_id
        self.producer_epoch = transport.producer_epoch
        # The transport's own methods: a call through here would cost every record.
        self.lane = transport.lane
        self.send = transport.send
        self.takes_large = transport.takes_large

    @property
    def state(self) -> State:
        """How the transport is doing now."""
        return self._transport.state

    async def close(self, timeout_s: float) -> int:
        """Leave it open for the others."""
        return 0
