"""What the handlers of one server process share, and how it comes to rest."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web
from redis.asyncio import Redis

from serve.doors.callers import Callers
from serve.doors.metrics import Metrics
from serve.doors.parts import Parts
from serve.doors.problem import Problem
from serve.doors.producers import Producers
from turnlog.config import Config

PRESSURE_RECORDS = 50_000
"""So many unacknowledged records are two seconds of what one process writes; more only waits."""


class Server:
    """What every handler may use; `request.app[SERVER]` is it.

    Attributes:
        config: where the parts are.
        producers: write for the orgs.
        redis: expendable; a handler goes on without it. Bytes in, bytes out.
        callers: say who a request comes from.
        parts: says how the key keeper, Redis and the knowledge of API keys are.
        metrics: counted, served as `/metrics`.
        draining: True once the server takes no new requests.
    """

    def __init__(
        self,
        config: Config,
        producers: Producers,
        redis: Redis,
        callers: Callers,
        parts: Parts | None = None,
    ) -> None:
        self.config = config
        self.producers = producers
        self.redis = redis
        self.callers = callers
        self.parts = parts or Parts(config, redis)
        self.metrics = Metrics()
        self.draining = False
        self._open = 0
        self._resting = asyncio.Event()
        self._resting.set()

    @property
    def open_requests(self) -> int:
        """Requests that are being answered now."""
        return self._open

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request for as long as it is being answered."""
        self._open += 1
        self._resting.clear()
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self._resting.set()

    async def rest(self, deadline_s: float) -> int:
        """Take no new requests and wait for the open ones; return how many are left."""
        self.draining = True
        try:
            async with asyncio.timeout(deadline_s):
                await self._resting.wait()
        except TimeoutError:
            pass
        return self._open

    def require_room(self) -> None:
        """Make sure that what is accepted now does not only wait.

        A ladder that refuses is tried all the same: only a record tells it that there is room.

        Raises:
            Problem: 429 where more would wait behind what Kafka has not answered for.
        """
        state = self.producers.state
        if state is not None and state.unacknowledged > PRESSURE_RECORDS:
            raise Problem(
                429, "slow_down", "too much waits for Kafka", headers={"Retry-After": "1"}
            )


SERVER: web.AppKey[Server] = web.AppKey("server", Server)
