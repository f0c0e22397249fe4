"""The disk spool: where events wait while Kafka does not take them.

A folder per process, `{spool}/{owner}/`, locked while its process lives. The lock of a dead one is
free: whoever opens the spool next adopts its segments, and no two processes adopt the same. All
file work happens in one thread, which syncs whatever gathered meanwhile in one go; the event loop
only hands over and hears back.

There is one lane a topic. Of the bound, chunk batches get `1 - RESERVED_SHARE`; the rest is left to
the events that people wait for, and so is a file of that size which is given up when the disk is
full.
"""

import asyncio
import fcntl
import json
import logging
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from turnlog.errors import SpoolFull, UsageError
from turnlog.spool.records import Spooled, packed, packed_size
from turnlog.spool.segments import SUFFIX, Lane, Segment

logger = logging.getLogger(__name__)

CHUNKS = "run-chunks"
LANES = ("runs", "usage", "turns", CHUNKS)
"""In the order in which they drain."""
RESERVED_SHARE = 0.25
RESERVE_FILE_BYTES = 32 << 20
MAX_BYTES = 1 << 30
T = TypeVar("T")
_LOCK = "lock"
_RESERVE = "reserve"
_SHED = "shed.json"
_STEP_S = 0.002
# Far more than a process takes from making its folder to showing it.
_BIRTH_S = 60.0
# So often the thread looks whether the event loop was closed without closing the spool.
_ORPHAN_S = 1.0
# From here on a record is packed in the thread: 20 MB took the loop 40 ms.
_LARGE_BYTES = 256 << 10
# One sync takes in at most this many records.
_GROUP = 4096


Stream = tuple[str, bytes]
"""Lane and Kafka key."""


class Read(NamedTuple):
    """Records of one segment, in order.

    Attributes:
        lane: its lane.
        segment: where they stand; `Spool.done` wants it.
        records: the records.
        own: whether this process wrote them.
    """

    lane: str
    segment: Segment
    records: list[Spooled]
    own: bool


class _Append(NamedTuple):
    lane: str
    size: int
    data: bytes | Spooled
    future: asyncio.Future[None]

    def packed(self) -> bytes:
        """Return what is written; a large record is packed only now, in the thread."""
        return packed(self.data) if isinstance(self.data, Spooled) else self.data


_Work = _Append | Callable[[], None]


class Spool:
    """The spool of this process; made by `Spool.open`, used on one event loop.

    Attributes:
        events: records that wait, by lane.
        shed: events that found no room, by lane.
        adopted: how many records each stream had in the folders that were taken over.
    """

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        self.events: Counter[str] = Counter()
        self.shed: Counter[str] = Counter()
        self.adopted: Counter[Stream] = Counter()
        self._folder = folder
        self._max_bytes = max_bytes
        self._taken = 0
        self._loop = asyncio.get_running_loop()
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._lanes = {name: Lane(folder, name) for name in LANES}
        self._held: dict[Path, int] = {}
        self._thread = threading.Thread(target=self._run, name="turnlog-spool", daemon=True)

    @classmethod
    async def open(cls, spool: Path, owner: str, max_bytes: int = MAX_BYTES) -> "Spool":
        """Make this process's folder and adopt those of dead ones.

        Raises:
            UsageError: the folder cannot be written to.
        """
        made = cls(spool / owner, max_bytes)
        try:
            await asyncio.to_thread(made._prepare, spool)
        except OSError as error:
            raise UsageError(f"spool {spool}: {error.strerror}") from error
        made._thread.start()
        return made

    def _prepare(self, spool: Path) -> None:
        spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_drafts(spool)
        own = lock(self._folder) if self._folder.exists() else _locked_from_birth(self._folder)
        if own is None:
            raise UsageError(f"spool {self._folder} is another process's")
        self._held[self._folder] = own
        _reserve(self._folder, min(RESERVE_FILE_BYTES, int(self._max_bytes * RESERVED_SHARE)))
        self._adopt_dead()

    def adopt_dead(self) -> asyncio.Future[Counter[Stream]]:
        """Look for the folders of processes that died meanwhile; see `adopted`."""
        future: asyncio.Future[Counter[Stream]] = self._loop.create_future()

        def work() -> Counter[Stream]:
            self._adopt_dead()
            return self.adopted

        self._do(future, work)
        return future

    def _adopt_dead(self) -> None:
        """Take over what dead processes left."""
        for folder in sorted(path.parent for path in self._folder.parent.glob(f"[!.]*/{_LOCK}")):
            if folder in self._held or (theirs := lock(folder)) is None:
                continue
            self._held[folder] = theirs
            for lane in self._lanes.values():
                self._adopt(folder, lane)

    def _adopt(self, folder: Path, lane: Lane) -> None:
        before = lane.size
        keys, said = lane.adopt(folder.glob(f"{lane.name}-????????{SUFFIX}"))
        for what in said:
            logger.warning("spool %s: %s", folder.name, what)
        if keys:
            logger.warning("spool %s: %d %s of a dead one", folder.name, keys.total(), lane.name)
        self.adopted.update({(lane.name, key): count for key, count in keys.items()})
        self.events[lane.name] += keys.total()
        self._taken += lane.size - before

    @property
    def root(self) -> Path:
        """The folder of all processes' folders."""
        return self._folder.parent

    @property
    def bytes_taken(self) -> int:
        """Bytes that are taken up or spoken for."""
        return self._taken

    def append(self, lane: str, record: Spooled) -> asyncio.Future[None]:
        """Hand a record over; resolves when it is on the disk.

        Raises:
            SpoolFull: there is no room for it, said at once; or later, by the future.
        """
        large = record.headers and len(record.headers[-1][1]) > _LARGE_BYTES
        data = record if large else packed(record)
        size = packed_size(record) if large else len(data)
        share = 1 - RESERVED_SHARE if lane == CHUNKS else 1
        if self._taken + size > self._max_bytes * share:
            raise SpoolFull(f"the spool holds {self._taken} bytes and takes no more of {lane}")
        self._taken += size
        self.events[lane] += 1
        future: asyncio.Future[None] = self._loop.create_future()
        self._work.put(_Append(lane, size, data, future))
        return future

    def note_shed(self, lane: str, events: int = 1) -> None:
        """Count events that found no room."""
        self.shed[lane] += events
        counts = dict(self.shed)
        self._work.put(lambda: _write_shed(self._folder, counts))

    def read(self, lane: str) -> asyncio.Future[Read | None]:
        """Return the next records of a lane; None where all were handed out."""
        future: asyncio.Future[Read | None] = self._loop.create_future()
        self._do(future, lambda: self._read(lane))
        return future

    def _read(self, lane: str) -> Read | None:
        found = self._lanes[lane].read()
        if found is None:
            return None
        segment, records, damaged = found
        for damage in damaged:
            logger.error("spool %s: damaged at %d", segment.path.name, damage.start)
        own = segment.path.parent == self._folder
        return Read(lane, segment, [f.record for f in records], own)

    def _do(self, future: asyncio.Future[T], work: Callable[[], T]) -> None:
        """Have the thread do something and tell what came of it."""

        def done() -> None:
            try:
                result = work()
            except OSError as error:
                reason = SpoolFull(f"the spool cannot be read: {error.strerror}")
                self._call(lambda: None if future.done() else future.set_exception(reason))
            else:
                self._call(lambda: None if future.done() else future.set_result(result))

        self._work.put(done)

    def done(self, read: Read, records: int) -> asyncio.Future[None]:
        """Count the first records of what was read as delivered."""
        self.events[read.lane] -= records
        future: asyncio.Future[None] = self._loop.create_future()

        def work() -> None:
            freed = self._lanes[read.lane].done(read.segment, records)
            if freed:
                self._call(lambda: self._free(freed))

        self._do(future, work)
        return future

    def _free(self, size: int) -> None:
        self._taken -= size

    async def close(self) -> None:
        """Finish what was handed over and give the folder free; it goes away when it is empty."""
        self._work.put(None)
        while self._thread.is_alive():
            # Not joined in a thread: an interpreter that is going away starts none.
            await asyncio.sleep(_STEP_S)
        self._give_free()

    def _give_free(self) -> None:
        for lane in self._lanes.values():
            lane.close()
        for folder, held in self._held.items():
            _remove_empty(folder)
            os.close(held)
        self._held.clear()

    def abandon(self) -> None:
        """Let go of the folder in a forked child, so that it stays locked by the parent alone."""
        for held in self._held.values():
            os.close(held)
        self._held.clear()

    # The thread.

    def _run(self) -> None:
        while (first := self._next()) is not None:
            group, last = self._gathered(first)
            appends = [work for work in group if isinstance(work, _Append)]
            for name in LANES:
                self._write(name, [one for one in appends if one.lane == name])
            for work in group:
                if not isinstance(work, _Append):
                    work()
            if last:
                return

    def _next(self) -> _Work | None:
        """Wait for work; None at the end, also where the loop was closed and the spool was not."""
        while True:
            try:
                return self._work.get(timeout=_ORPHAN_S)
            except queue.Empty:
                if self._loop.is_closed():
                    # Whoever opens the spool next, this process too, adopts what lies there.
                    self._give_free()
                    return None

    def _gathered(self, first: _Work) -> tuple[list[_Work], bool]:
        """Return what waits, and whether closing was asked for."""
        group = [first]
        while len(group) < _GROUP:
            try:
                work = self._work.get_nowait()
            except queue.Empty:
                return group, False
            if work is None:
                return group, True
            group.append(work)
        return group, False

    def _write(self, name: str, appends: list[_Append]) -> None:
        if not appends:
            return
        try:
            self._append(name, b"".join(one.packed() for one in appends), len(appends))
        except OSError as error:
            self._refuse(name, appends, error)
            return
        self._call(lambda: _resolve(appends))

    def _append(self, name: str, data: bytes, records: int) -> None:
        lane = self._lanes[name]
        try:
            lane.append(data, records)
        except OSError:
            if name == CHUNKS or not _release(self._folder):
                raise
            lane.append(data, records)

    def _refuse(self, name: str, appends: list[_Append], error: OSError) -> None:
        reason = f"the spool cannot be written: {error.strerror}"

        def tell() -> None:
            for one in appends:
                self._taken -= one.size
                self.events[name] -= 1
                if not one.future.done():
                    one.future.set_exception(SpoolFull(reason))

        self._call(tell)

    def _call(self, work: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(work)


def _resolve(appends: list[_Append]) -> None:
    for one in appends:
        if not one.future.done():
            one.future.set_result(None)


def lock(folder: Path, create: bool = False) -> int | None:
    """Lock a folder of a spool; None where its process lives, or has removed it meanwhile.

    The lock is free when the file is closed or the process dies. A folder without a lock file is
    none of the spool's.
    """
    try:
        held = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | create * os.O_CREAT, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        return None
    if not os.fstat(held).st_nlink:
        os.close(held)
        return None
    return held


def _locked_from_birth(folder: Path) -> int | None:
    """Make a folder that others see only once it is locked.

    Else of two workers that start together one adopts the other's, new and not yet locked.
    """
    draft = folder.with_name(f".{folder.name}")
    draft.mkdir(mode=0o700)
    held = lock(draft, create=True)
    draft.rename(folder)
    return held


def _remove_drafts(spool: Path) -> None:
    """Remove folders whose processes died before others could see them; they hold no event."""
    for path in spool.glob(f".*/{_LOCK}"):
        with suppress(FileNotFoundError):  # it was shown meanwhile, under its own name
            born_now = time.time() - path.stat().st_mtime < _BIRTH_S
            if born_now or (held := lock(path.parent)) is None:
                continue
            _remove_empty(path.parent)
            os.close(held)


def _remove_empty(folder: Path) -> None:
    """Remove a folder that holds no event and no count of shed ones; no file but the spool's."""
    (folder / _RESERVE).unlink(missing_ok=True)
    if any(folder.glob(f"*{SUFFIX}")) or (folder / _SHED).exists():
        return
    (folder / _LOCK).unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError as error:
        logger.warning("spool %s stays: %s", folder, error.strerror)


def _reserve(folder: Path, size: int) -> None:
    """Take room on the disk for the events that people wait for."""
    held = os.open(folder / _RESERVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(held, 0, size)
    except OSError as error:
        logger.warning("spool %s: no room to reserve: %s", folder, error.strerror)
    finally:
        os.close(held)


def _release(folder: Path) -> bool:
    """Give up the reserved room; False where it was given up before."""
    path = folder / _RESERVE
    if not path.exists() or not path.stat().st_size:
        return False
    os.truncate(path, 0)
    logger.error("spool %s: the disk is full, the reserve is in use", folder)
    return True


def read_shed(folder: Path) -> Counter[str]:
    """Return what a process could not keep, by lane."""
    try:
        return Counter(json.loads((folder / _SHED).read_text()))
    except (FileNotFoundError, ValueError):
        return Counter()


def _write_shed(folder: Path, counts: dict[str, int]) -> None:
    path = folder / _SHED
    try:
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(counts))
        draft.replace(path)
    except OSError as error:
        logger.error("spool %s: shed events cannot be noted: %s", folder, error.strerror)
