"""Whose turn it is, where the runs of many streams end in the same moment.

The end of a run takes two milliseconds of the event loop, and nobody waits for it. A hundred of
them in one step of the loop would keep every reader waiting for all of them. So each step takes
few, and more the more of them wait, because each holds its answer until then.
"""

import asyncio
from collections import deque
from weakref import WeakKeyDictionary

from turnlog.producer import Producer

BACKLOG = 16
"""A step of the loop takes one end, and one more for every so many that wait."""


class Turns:
    """The turns of one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._loop = asyncio.get_running_loop()
        self._due = False

    def next(self) -> asyncio.Future[None]:
        """Return what resolves when it is the caller's turn: first come, first served."""
        future = self._loop.create_future()
        self._waiting.append(future)
        if not self._due:
            self._due = True
            self._loop.call_soon(self._step)
        return future

    def _step(self) -> None:
        room = 1 + len(self._waiting) // BACKLOG
        while self._waiting and room:
            future = self._waiting.popleft()
            if not future.done():  # whoever waited for it was cancelled
                future.set_result(None)
                room -= 1
        self._due = bool(self._waiting)
        if self._due:
            self._loop.call_soon(self._step)


_TURNS: WeakKeyDictionary[Producer, Turns] = WeakKeyDictionary()


def turns_of(producer: Producer) -> Turns:
    """Return the turns of a producer's loop; called on it."""
    turns = _TURNS.get(producer)
    if turns is None:
        turns = _TURNS[producer] = Turns()
    return turns
