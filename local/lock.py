"""Locks between processes: `flock` on a file, released by the kernel when the holder dies."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from turnlog.errors import Unavailable

_POLL_S = 0.05


@contextmanager
def locked(path: Path, waiting: Callable[[str], None], patience_s: float) -> Iterator[None]:
    """Hold the lock file `path`; `waiting` hears once who has it.

    Raises:
        Unavailable: another process kept it for longer than `patience_s` seconds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="ascii") as file:
        _acquire(file.fileno(), path, waiting, patience_s)
        os.truncate(file.fileno(), 0)
        os.write(file.fileno(), str(os.getpid()).encode())
        yield


def _acquire(fd: int, path: Path, waiting: Callable[[str], None], patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    told = False
    while not _try(fd):
        if not told:
            waiting(f"waiting for process {_holder(path)}, which holds {path}")
            told = True
        if time.monotonic() > deadline:
            raise Unavailable(f"process {_holder(path)} has held {path} for {patience_s:.0f} s")
        time.sleep(_POLL_S)


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(path: Path) -> str:
    return path.read_text(encoding="ascii") or "?"
