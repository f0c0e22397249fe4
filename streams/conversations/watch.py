"""Says when a worker no longer gets anywhere (faust-kafka.md F12, F13).

Gaps in Faust's accounts stop commits for good, a recovery can wait for a record that compaction
removed. A fresh process gets over the first and shows the second. Faust itself only logs it, and
counts from the start of the process: to it the first record of a quiet partition is an event that
hangs, once five minutes are over. Its own watch is therefore off (`streams.conversations.app`).
"""

from collections.abc import Mapping

Partition = int


class Stall:
    """Notes for how long no position has moved while records wait.

    All partitions together, because Faust reads one for minutes before it turns to the next.

    Args:
        limit_s: longer than that is a stall.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._positions: dict[Partition, int] = {}
        self._since_s: float | None = None

    def rest(self) -> None:
        """Nobody looks for a while: what comes then is counted from the next look on."""
        self._since_s = None

    def stuck(self, now_s: float, places: Mapping[Partition, tuple[int, int]]) -> list[Partition]:
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
