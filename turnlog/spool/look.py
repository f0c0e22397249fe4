"""Looking at a spool from outside: read-only, also while its owners write."""

import fcntl
import mmap
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from turnlog.errors import UsageError
from turnlog.spool.aside import DAMAGED
from turnlog.spool.files import segments_in
from turnlog.spool.folder import LOCK, read_shed
from turnlog.spool.records import Found, scan


class Folder(NamedTuple):
    """One process's folder.

    Attributes:
        owner: its name.
        alive: whether its process, or the one that adopted it, lives.
        segments: files.
        bytes: what the events in them take up.
        events: records in them, also those that were sent and whose file is not empty yet.
        oldest_s: age of the first of them, 0 where there is none.
        shed: events that found no room, by lane.
    """

    owner: str
    alive: bool
    segments: int
    bytes: int
    events: int
    oldest_s: float
    shed: Mapping[str, int]


def look(spool: Path) -> list[Folder]:
    """Return the folders of a spool; none where it was never used.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        folders = sorted(p for p in spool.iterdir() if p.is_dir() and p.name != DAMAGED)
        return [found for path in folders if (found := _look(path)) is not None]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"spool {spool}: {error.strerror}") from error


def _look(folder: Path) -> Folder | None:
    """Return one folder; None where it went away meanwhile."""
    segments = size = events = 0
    oldest_us = 0
    for path in _segments(folder):
        try:
            found = list(_records(path))
        except FileNotFoundError:
            continue  # drained
        segments += 1
        size += sum(record.end - record.start for record in found)
        events += len(found)
        times = [record.record.spooled_at_us for record in found]
        oldest_us = min([*times, *([oldest_us] if oldest_us else [])], default=0)
    if not folder.exists():
        return None
    age_s = max(0.0, round(time.time() - oldest_us / 1e6, 1)) if oldest_us else 0.0
    shed = dict(read_shed(folder))
    return Folder(folder.name, _is_held(folder), segments, size, events, age_s, shed)


def _segments(folder: Path) -> list[Path]:
    try:
        return segments_in(folder)
    except FileNotFoundError:
        return []


def _records(path: Path) -> Iterator[Found]:
    """Yield the whole records of a file; its owner may be writing the last one."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            parts = scan(data[:])
    yield from (part for part in parts if isinstance(part, Found))


def _is_held(folder: Path) -> bool:
    """Say whether a process holds the lock. It is not taken: an owner that starts would find it so.

    The kernel lists who holds what; without that list, a shared lock is tried for an instant.
    """
    try:
        inode = (folder / LOCK).stat().st_ino
        locks = Path("/proc/locks").read_text()
    except FileNotFoundError:
        return _tried(folder / LOCK)
    return any(f":{inode} " in line and "FLOCK" in line for line in locks.splitlines())


def _tried(lock: Path) -> bool:
    try:
        held = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(held)
    return False
