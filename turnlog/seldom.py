"""Saying the same thing once in a while: what changes many times a second would fill a log."""

import time
from collections.abc import Callable, Hashable

EVERY_S = 10.0
MAX_KINDS = 1_000


class Seldom:
    """Knows what was said lately.

    Args:
        every_s: how long a thing is not said again.
        clock_s: a monotonic clock.
    """

    def __init__(
        self, every_s: float = EVERY_S, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._every_s = every_s
        self._clock_s = clock_s
        self._said_s: dict[Hashable, float] = {}

    def due(self, kind: Hashable) -> bool:
        """Say whether a thing may be said now, and count it as said."""
        now_s = self._clock_s()
        if now_s - self._said_s.get(kind, -self._every_s) < self._every_s:
            return False
        if len(self._said_s) >= MAX_KINDS:
            self._said_s.clear()
        self._said_s[kind] = now_s
        return True
