"""Runs that this process holds for clients elsewhere, ticked while their clients show life.

A client that is gone must not look alive: without a call or an open stream for 10 s (a setting) a
run is sealed and left in silence, and the finalizer ends it by its rules (DESIGN.md section 4). A
client that comes back goes on, even behind the finalizer's word, which is provisional.
"""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from serve.doors.life import Life, Lives
from serve.doors.problem import Problem
from serve.doors.server import Server
from turnlog.errors import TurnlogError
from turnlog.ids import new_id
from turnlog.producer import Producer
from turnlog.producer.run import Run

logger = logging.getLogger(__name__)

FORGET_S = 900.0
MAX_HELD = 10_000
MAX_OVER = 20_000
"""Runs that ended here, remembered without their output."""

MAX_OUTPUT_BYTES = 32 << 20
"""Of one run, held until its end."""

_TICK_S = 0.02
_TURN_NS = 2_000_000


class Held:
    """A run and its client.

    Attributes:
        run: the run.
        life: what other processes know of it.
        lock: held while something is decided about its end.
        noted: pieces of output that it was shown.
        output_bytes: of them, at most.
    """

    def __init__(self, run: Run, life: Life) -> None:
        self.run = run
        self.life = life
        self.lock = asyncio.Lock()
        self.noted = 0
        self.output_bytes = 0
        self.touched_s = time.monotonic()
        self._streams = 0

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Count an open stream: while there is one, its client lives."""
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1
            self.touched_s = time.monotonic()

    def silent_s(self, now_s: float) -> float:
        """Return since when nothing came from its client, 0 while a stream is open."""
        return 0.0 if self._streams else now_s - self.touched_s

    def room_for(self, text: str) -> None:
        """Count a piece of output.

        Raises:
            Problem: 413, the output of one run is bounded.
        """
        self.output_bytes += len(text) if text.isascii() else 4 * len(text)
        if self.output_bytes > MAX_OUTPUT_BYTES:
            raise Problem(413, "too_large", f"one run shows at most {MAX_OUTPUT_BYTES} bytes")


class HeldRuns:
    """All runs that this process holds.

    Attributes:
        holder: id of this process.
        opened: the runs that are open, where `Run` enters itself.

    Args:
        server: whose drain is watched.
        lives: told that this process lives.
    """

    def __init__(self, server: Server, lives: Lives) -> None:
        self.holder = new_id("door")
        self.opened: set[Run] = set()
        self._server = server
        self._idle_s = server.config.client_idle_s
        self._lives = lives
        self._held: dict[tuple[str, str], Held] = {}
        self._over: dict[tuple[str, str], Life] = {}
        self._is_ticking = False

    def get(self, org: str, run: str) -> Held | None:
        """Return a run that is held here, and note that its client lives."""
        held = self._held.get((org, run))
        if held is not None:
            held.touched_s = time.monotonic()
        return held

    def require_room(self) -> None:
        """Make sure that one more run can be held.

        Raises:
            Problem: 429.
        """
        if len(self._held) >= MAX_HELD:
            raise Problem(429, "slow_down", "too many runs are open here", headers=_SOON)

    async def hold(self, org: str, producer: Producer, run: Run, life: Life) -> Held:
        """Hold a run that is begun, written by a producer."""
        held = self._held[org, run.run] = Held(run, life)
        if not self._is_ticking:
            self._is_ticking = True
            # Closing the producer waits for it: what was shown last is sealed before that.
            producer.later(self._tick_to_the_end())
        await self._lives.alive(self.holder, 1.5 * self._idle_s)
        return held

    def drop(self, org: str, run: str) -> None:
        """Hold a run no longer; it is not ended."""
        held = self._held.pop((org, run), None)
        if held is not None:
            self.opened.discard(held.run)

    def end(self, org: str, run: str, life: Life) -> None:
        """Let go of a run that has ended; how it did is remembered for a while."""
        self.drop(org, run)
        self._over[org, run] = life
        while len(self._over) > MAX_OVER:
            del self._over[next(iter(self._over))]

    def over(self, org: str, run: str) -> Life | None:
        """Return how a run ended, if it did here and not long ago."""
        return self._over.get((org, run))

    async def _tick_to_the_end(self) -> None:
        try:
            await self._tick_while_held()
        finally:
            self._is_ticking = False

    async def _tick_while_held(self) -> None:
        said_s = time.monotonic()
        while not self._is_over():
            await asyncio.sleep(_TICK_S)
            await self._tick()
            if time.monotonic() - said_s >= self._idle_s / 2:
                said_s = time.monotonic()
                self._forget(said_s)
                await self._lives.alive(self.holder, 1.5 * self._idle_s)
        await self._tick()

    def _is_over(self) -> bool:
        """Tell whether the server drains and nobody can send anything any more."""
        return not self._held or (self._server.draining and not self._server.open_requests)

    async def _tick(self) -> None:
        now_s, draining = time.monotonic(), self._server.draining
        until_ns = time.perf_counter_ns() + _TURN_NS
        for held in list(self._held.values()):
            _tick_one(held, held.silent_s(now_s) > self._idle_s, draining)
            if time.perf_counter_ns() > until_ns:
                await asyncio.sleep(0)
                until_ns = time.perf_counter_ns() + _TURN_NS

    def _forget(self, now_s: float) -> None:
        """Drop the runs that nobody asks for any more; Redis knows them for days."""
        for (org, run), held in list(self._held.items()):
            if held.silent_s(now_s) > FORGET_S:
                self.drop(org, run)


def _tick_one(held: Held, is_silent: bool, draining: bool) -> None:
    if not held.run.is_open:
        return
    try:
        if is_silent or draining:
            held.run.seal()
        if not is_silent:
            held.run.tick(time.perf_counter_ns())
    except TurnlogError as error:
        logger.warning("run %s: a chunk batch was not written: %s", held.run.run, error)


_SOON = {"Retry-After": "5"}
