"""Says when a worker no longer gets anywhere, although records wait.

Clients of Kafka get stuck in ways of their own. Gaps in Faust's accounts stop commits for good, a
recovery can wait for a record that compaction removed (faust-kafka.md F12, F13). librdkafka 2.16
under KIP-848 can fall silent when a broker stops for a few seconds: it tells nobody that the group
gave its place away, neither joins again nor reads, and answers no commit (one outage of 5 s in 37).
A fresh process gets over that, or shows what is wrong.
"""

import time
from collections.abc import Collection, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from streams.progress import Group, Partition, Progress
from turnlog.config import Config
from turnlog.errors import Unavailable

Place = TypeVar("Place", bound=Hashable)

# Longer than a broker's restart and the rebalance behind it, both of which pass by themselves.
LIMIT_S = 30.0
LOOK_EVERY_S = 5.0


class Stall(Generic[Place]):
    """Notes for how long no position has moved while records wait.

    All partitions together, because a client may read one for minutes before it turns to the next.

    Args:
        limit_s: longer than that is a stall.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._positions: dict[Place, int] = {}
        self._since_s: float | None = None

    def rest(self) -> None:
        """Nobody looks for a while: what comes then is counted from the next look on."""
        self._since_s = None

    def stuck(self, now_s: float, places: Mapping[Place, tuple[int, int]]) -> list[Place]:
        """Return the partitions in which records wait, if nothing has moved for too long.

        Args:
            now_s: a monotonic clock.
            places: `{partition: (position, end)}` of the partitions that are owned now.
        """
        positions = {partition: position for partition, (position, _) in places.items()}
        waiting = [partition for partition, (position, end) in places.items() if position < end]
        if positions != self._positions or not waiting or self._since_s is None:
            self._positions, self._since_s = positions, now_s
        return waiting if now_s - self._since_s > self._limit_s else []


class Watch:
    """Looks now and then, beside the work, whether what a consumer group commits still moves.

    Args:
        config: where Kafka is.
        group: the consumer group and what it reads.
        limit_s: how long records may wait while nothing is committed.
    """

    def __init__(self, config: Config, group: Group, limit_s: float) -> None:
        self._progress = Progress(config)
        self._group = group
        self._stall = Stall[Partition](limit_s)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="watch")
        self._asked: Future[dict[Partition, tuple[int, int]]] | None = None
        self._look_at_s = 0.0

    def rest(self) -> None:
        """Nothing can be committed now, and somebody else sees to how long that takes."""
        self._stall.rest()

    def look(self, owned: Collection[Partition]) -> None:
        """Look if it is time; never waits.

        Args:
            owned: partitions that this worker has; where it has none, it answers for them all,
                because one that was thrown out of its group may not know it.

        Raises:
            Unavailable: records wait in them, and nothing has moved for too long.
        """
        now_s = time.monotonic()
        if self._asked is None:
            if now_s >= self._look_at_s:
                self._asked = self._thread.submit(self._waiting)
        elif self._asked.done():
            asked, self._asked = self._asked, None
            self._look_at_s = now_s + LOOK_EVERY_S
            self._judge(now_s, asked, owned)

    def _judge(
        self,
        now_s: float,
        asked: "Future[dict[Partition, tuple[int, int]]]",
        owned: Collection[Partition],
    ) -> None:
        try:
            places = asked.result()
        except Unavailable:
            self._stall.rest()  # Kafka is away: that is no stall
            return
        if owned:
            places = {place: behind for place, behind in places.items() if place in owned}
        if not self._stall.stuck(now_s, places):
            return
        # A partition may end in marks of a transaction, which nobody ever gets to read.
        stuck = self._progress.readable(places)
        if stuck:
            named = ", ".join(sorted(f"{topic}/{number}" for topic, number in stuck))
            raise Unavailable(f"nothing moves any more while records wait in {named}")
        self._stall.rest()

    def _waiting(self) -> dict[Partition, tuple[int, int]]:
        """Return `{partition: (position, end)}` of those that are not at their end."""
        return self._progress.behind(self._group, self._progress.ends(self._group.topics))

    def close(self) -> None:
        """Look no more."""
        self._thread.shutdown(wait=False)
