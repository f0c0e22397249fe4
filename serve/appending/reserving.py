"""The ids of one batch, reserved in the index for as long as the batch is being written."""

import asyncio
import os
import time
from collections.abc import Collection, Container, Sequence

from serve.appending.seen import RESERVED_MS, Looked, Seen

PENDING_S = RESERVED_MS / 1000 + 1
"""So long a batch waits for what another request writes; a dead one's reservation lapses before."""

_POLL_S = 0.02
_RENEW_S = RESERVED_MS / 2000


class Reservation:
    """Reserves ids, renews that, and gives back what was not written.

    Args:
        seen: the index.
        org: whose events.
        ids: of the events.
    """

    def __init__(self, seen: Seen, org: str, ids: Sequence[bytes]) -> None:
        self._seen = seen
        self._org = org
        self._ids = ids
        self._writer = os.urandom(16)
        self._mine: list[bytes] = []
        self._doubtful: frozenset[bytes] = frozenset()
        self._timer: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[Looked | None] | None = None

    async def take(self, here: Container[bytes]) -> Looked | None:
        """Reserve what is free, wait for what others write, and say what the index knows.

        Nothing is written while it waits, so that the events of a batch keep their order.

        Args:
            here: events that this process is writing: nobody waits for them here.

        Returns:
            None where Redis does not answer. What is pending was not decided within 6 s.
        """
        until_s = time.monotonic() + PENDING_S
        while (looked := await self._seen.reserve(self._org, self._ids, self._writer)) is not None:
            self._doubtful |= looked.doubtful
            waiting = any(id not in here for id in looked.pending)
            if not waiting or time.monotonic() > until_s:
                self._hold(looked)
                return looked._replace(doubtful=self._doubtful)
            await asyncio.sleep(_POLL_S)
        return None

    def _hold(self, looked: Looked) -> None:
        self._mine = [id for id in self._ids if id not in looked.marks and id not in looked.pending]
        if self._mine:
            self._timer = asyncio.get_running_loop().call_later(_RENEW_S, self._renew)

    def _renew(self) -> None:
        taking = self._seen.reserve(self._org, self._mine, self._writer)
        self._renewing = asyncio.create_task(taking, name="turnlog-reserved")
        self._timer = asyncio.get_running_loop().call_later(_RENEW_S, self._renew)

    async def give_back(self, durable: Container[bytes], tried: Collection[bytes]) -> None:
        """Release what is not durable.

        Args:
            durable: events that have their mark.
            tried: those that were handed over, and so may have been written.
        """
        self.stop()
        left = {id: id in tried or id in self._doubtful for id in self._mine if id not in durable}
        if left and self._renewing is not None:
            await self._renewing
        await self._seen.release(self._org, left, self._writer)

    def stop(self) -> None:
        """Renew no more: what was neither marked nor given back lapses."""
        if self._timer is not None:
            self._timer.cancel()
