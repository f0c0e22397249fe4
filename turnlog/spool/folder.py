"""The folder of one process: its lock, its reserve, its count of shed events."""

import fcntl
import json
import logging
import os
import stat
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from turnlog.spool.files import is_plain

logger = logging.getLogger(__name__)

LOCK = "lock"
_RESERVE = "reserve"
_SHED = "shed.json"
# Far more than a process takes from making its folder to showing it.
_BIRTH_S = 60.0
PROBE = "probe"
PROBE_BYTES = 4096


def lock(folder: Path, create: bool = False) -> int | None:
    """Lock a folder of a spool; None where its process lives, or has removed it meanwhile.

    The lock is free when the file is closed or the process dies. A folder without a lock file is
    none of the spool's.

    Raises:
        OSError: the lock is no file, or somebody else's.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | create * os.O_CREAT
    try:
        held = os.open(folder / LOCK, flags, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        return None
    found = os.fstat(held)
    if not found.st_nlink or not stat.S_ISREG(found.st_mode):
        os.close(held)
        return None
    return held


def locked_from_birth(folder: Path) -> int | None:
    """Make a folder that others see only once it is locked.

    Else of two workers that start together one adopts the other's, new and not yet locked.
    """
    draft = folder.with_name(f".{folder.name}")
    draft.mkdir(mode=0o700)
    held = lock(draft, create=True)
    draft.rename(folder)
    return held


def remove_drafts(spool: Path) -> None:
    """Remove folders whose processes died before others could see them; they hold no event."""
    for path in spool.glob(f".*/{LOCK}"):
        with suppress(OSError):  # it was shown meanwhile, under its own name; or is no draft
            born_now = time.time() - path.stat().st_mtime < _BIRTH_S
            if born_now or (held := lock(path.parent)) is None:
                continue
            remove_empty(path.parent)
            os.close(held)


def remove_empty(folder: Path) -> None:
    """Remove a folder that holds no event and no count of shed ones; no file but the spool's."""
    try:
        (folder / _RESERVE).unlink(missing_ok=True)
        if {path.name for path in folder.iterdir()} <= {LOCK}:
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()
    except OSError as error:
        logger.warning("spool %s stays: %s", folder, error.strerror)


def reserve(folder: Path, size: int) -> None:
    """Take room on the disk for the events that people wait for."""
    held = os.open(folder / _RESERVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(held, 0, size)
    except OSError as error:
        logger.warning("spool %s: no room to reserve: %s", folder, error.strerror)
    finally:
        os.close(held)


def has_reserve(folder: Path) -> bool:
    """Say whether room is held for the events that people wait for."""
    path = folder / _RESERVE
    return path.exists() and path.stat().st_size > 0


def reserve_again(folder: Path, size: int) -> None:
    """Take the room again that was given up, once there is twice as much."""
    path = folder / _RESERVE
    room = os.statvfs(folder)
    held = path.stat().st_size if path.exists() else 0
    if held < size and room.f_bavail * room.f_frsize > 2 * size:
        reserve(folder, size)


def release(folder: Path) -> bool:
    """Give up the reserved room; False where it was given up before."""
    if not has_reserve(folder):
        return False
    os.truncate(folder / _RESERVE, 0)
    logger.error("spool %s: the disk is full, the reserve is in use", folder)
    return True


def probe(folder: Path) -> None:
    """Write and sync a little, to see whether the disk takes anything.

    Raises:
        OSError: it does not.
    """
    path = folder / PROBE
    held = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        written = 0
        while written < PROBE_BYTES:  # a full disk may take a part
            written += os.pwrite(held, bytes(PROBE_BYTES - written), written)
        os.fsync(held)
    finally:
        os.close(held)
        path.unlink(missing_ok=True)


def read_shed(folder: Path) -> Counter[str]:
    """Return what a process could not keep, by lane."""
    path = folder / _SHED
    try:
        counts = json.loads(path.read_text()) if is_plain(path) else {}
    except (FileNotFoundError, ValueError):
        return Counter()
    noted = counts.items() if isinstance(counts, dict) else ()
    return Counter({name: count for name, count in noted if isinstance(count, int)})


def write_shed(folder: Path, counts: dict[str, int]) -> None:
    """Note what a process could not keep, by lane."""
    path = folder / _SHED
    try:
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(counts))
        draft.replace(path)
    except OSError as error:
        logger.error("spool %s: shed events cannot be noted: %s", folder, error.strerror)
