"""The producer that clients share which were given none: one a process, made when first needed."""

import threading
import time

from turnlog.errors import Unavailable
from turnlog.producer import SyncProducer, forks

# What does not answer is not asked again before, so that no call waits for it over and over.
RETRY_S = 30.0


class OfProcess:
    """A `SyncProducer` of the config and credential that the environment names.

    It is closed at the end of the interpreter, which flushes it. A forked child opens its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._producer: SyncProducer | None = None
        self._not_before_s = 0.0
        forks.watch(self)

    def get(self) -> SyncProducer:
        """Return it, opened.

        Raises:
            UsageError: the config or the credential cannot be used.
            Unavailable: Kafka or the key keeper does not answer, or did not 30 s ago.
        """
        if self._producer is None:
            with self._lock:
                if self._producer is None:
                    self._producer = self._opened()
        return self._producer

    def _opened(self) -> SyncProducer:
        if time.monotonic() < self._not_before_s:
            raise Unavailable("the stack did not answer a moment ago")
        try:
            return SyncProducer.open()
        except Unavailable:
            self._not_before_s = time.monotonic() + RETRY_S
            raise

    def abandon(self) -> None:
        """Forget what is the parent's: this is a forked child."""
        self._lock = threading.Lock()
        self._producer = None
        forks.watch(self)

    def close(self) -> None:
        """Flush and close it; the next `get` opens another.

        Raises:
            Unavailable: something is neither in Kafka nor on the disk.
        """
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()


OF_PROCESS = OfProcess()
