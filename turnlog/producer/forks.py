"""What a fork leaves in the child of what was opened before it: nothing that works, said clearly.

Of a process with threads, `fork` copies the memory and one thread. A producer in the child has no
librdkafka threads, no event loop that runs and no spool thread, and shares the parent's lock on the
spool. So it is refused there, and lets go of what would hurt the parent or hang the child.
"""

import ctypes
import os
from typing import Protocol
from weakref import WeakSet

REFUSED = "this producer was opened before the process was forked: open one in each process"


class Forked(Protocol):
    """What has to be told that it is now in a forked child."""

    def abandon(self) -> None:
        """Work no more, and touch nothing that the parent uses. Called in the child."""


_alive: WeakSet[Forked] = WeakSet()


def watch(one: Forked) -> None:
    """Have something abandoned in every child that is forked from now on."""
    _alive.add(one)


def keep_for_ever(one: object) -> None:
    """Have an object never destroyed.

    librdkafka's destructor waits for its threads, which a forked child does not have: a worker of
    gunicorn that had loaded the application before the fork hung at its `sys.exit`.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


def _in_child() -> None:
    for one in tuple(_alive):
        one.abandon()
    _alive.clear()


os.register_at_fork(after_in_child=_in_child)
