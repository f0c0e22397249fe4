"""How many exchanges of this process were recorded, and how many were not."""

import logging
import threading

from turnlog.errors import TurnlogError

logger = logging.getLogger(__name__)


class Counts:
    """Counters of this process, for its metrics; any thread may read them.

    Attributes:
        begun: exchanges whose run was created.
        unrecorded: calls that went to the provider although no run could be created.
        unended: runs whose end could not be written; the finalizer interrupts them.
        cut: exchanges of which a body was too large to be kept whole.
    """

    def __init__(self) -> None:
        self.begun = 0
        self.unrecorded = 0
        self.unended = 0
        self.cut = 0
        self._lock = threading.Lock()

    def add(self, name: str) -> None:
        """Count one more of a name."""
        with self._lock:
            setattr(self, name, getattr(self, name) + 1)

    def unrecorded_call(self, error: TurnlogError) -> None:
        """Count and log a call that goes out without a run; the reason's class, never its text."""
        self.add("unrecorded")
        logger.warning(
            "a call goes to the provider unrecorded (%s); %d so far",
            type(error).__name__,
            self.unrecorded,
        )

    def unopened(self, error: TurnlogError) -> None:
        """Log that no producer could be opened; calls try again."""
        logger.warning(
            "nothing can be recorded yet (%s): calls go to the provider unrecorded until it can",
            type(error).__name__,
        )


COUNTS = Counts()
