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
import logging
import os
import queue
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from turnlog.errors import SpoolFull, UsageError
from turnlog.spool.aside import DAMAGED
from turnlog.spool.files import strangers_in
from turnlog.spool.folder import (
    LOCK,
    PROBE_BYTES,
    has_reserve,
    lock,
    locked_from_birth,
    probe,
    release,
    remove_drafts,
    remove_empty,
    reserve,
    reserve_again,
    write_shed,
)
from turnlog.spool.records import Spooled, packed, packed_size
from turnlog.spool.segments import Lane, Segment

logger = logging.getLogger(__name__)

CHUNKS = "run-chunks"
LANES = ("runs", "usage", "turns", CHUNKS)
"""In the order in which they drain."""
RESERVED_SHARE = 0.25
RESERVE_FILE_BYTES = 32 << 20
MAX_BYTES = 1 << 30
T = TypeVar("T")
_STEP_S = 0.002
# So often the thread looks whether the event loop was closed without closing the spool.
_ORPHAN_S = 1.0
# From here on a record is packed in the thread: 20 MB took the loop 40 ms.
_LARGE_BYTES = 256 << 10
_BROKEN = "the spool's thread has ended: open another producer"
# One sync takes in at most this many records.
_GROUP = 4096


Stream = tuple[str, bytes]
"""Lane and Kafka key."""
Room = Literal["spool", "shedding", "refusing"]
"""What finds room: all, all but chunk batches, nothing."""


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


class _Job(NamedTuple):
    """Something that the thread does, and who waits for it, if anybody."""

    work: Callable[[], None]
    future: asyncio.Future[Any] | None = None


_Work = _Append | _Job


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
        self._reserve_bytes = min(RESERVE_FILE_BYTES, int(max_bytes * RESERVED_SHARE))
        self._taken = 0
        self._loop = asyncio.get_running_loop()
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._lanes = {name: Lane(folder, name) for name in LANES}
        self._held: dict[Path, int] = {}
        # Folders of dead processes with files that could not be taken over yet.
        self._unfinished: set[Path] = set()
        self._told: set[str] = set()
        self._group: list[_Work] = []
        self._broken = False  # the thread ended, and nobody had closed
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
        remove_drafts(spool)
        own = lock(self._folder) if self._folder.exists() else locked_from_birth(self._folder)
        if own is None:
            raise UsageError(f"spool {self._folder} is another process's")
        self._held[self._folder] = own
        reserve(self._folder, self._reserve_bytes)
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
        """Take over what dead processes left; what somebody else put there stops nobody."""
        for folder in sorted(path.parent for path in self._folder.parent.glob(f"[!.]*/{LOCK}")):
            if folder.name == DAMAGED or (folder in self._held and folder not in self._unfinished):
                continue
            try:
                self._adopt(folder)
            except OSError as error:
                self._tell(f"{folder.name} cannot be looked through: {error.strerror}")
            self._let_go(folder)

    def _adopt(self, folder: Path) -> None:
        if folder not in self._held:
            theirs = lock(folder)
            if theirs is None:
                return
            self._held[folder] = theirs
        self._unfinished.discard(folder)
        for name in strangers_in(folder, LANES):
            self._tell(f"{folder.name}/{name} is not the spool's and is left alone")
        for lane in self._lanes.values():
            self._take_over(folder, lane)

    def _take_over(self, folder: Path, lane: Lane) -> None:
        before = lane.size
        keys, failed = lane.adopt(folder)
        for what in failed:
            self._unfinished.add(folder)
            self._tell(f"{folder.name}/{what}")
        if keys:
            count = keys.total()
            what = "1 event" if count == 1 else f"{count} events"
            logger.warning("spool %s: %s of lane %s taken over", folder.name, what, lane.name)
        size = lane.size - before
        self._call(lambda: self._count_adopted(lane.name, keys, size))

    def _count_adopted(self, lane: str, keys: Counter[bytes], size: int) -> None:
        """Count on the loop's thread, like everything that is counted."""
        self.adopted.update({(lane, key): count for key, count in keys.items()})
        self.events[lane] += keys.total()
        self._taken += size

    def _tell(self, what: str) -> None:
        """Warn of something once."""
        if what not in self._told:
            self._told.add(what)
            logger.warning("spool: %s", what)

    def _let_go(self, folder: Path) -> None:
        """Give a dead process's folder free once nothing of it waits here any more."""
        if folder == self._folder or folder not in self._held:
            return
        if any(lane.holds(folder) for lane in self._lanes.values()):
            return
        self._unfinished.discard(folder)
        remove_empty(folder)
        os.close(self._held.pop(folder))

    @property
    def owner(self) -> str:
        """The name of this process's folder."""
        return self._folder.name

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
        self._require_thread()
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
        self._work.put(_Job(lambda: write_shed(self._folder, counts)))

    def read(self, lane: str) -> asyncio.Future[Read | None]:
        """Return the next records of a lane; None where all were handed out."""
        future: asyncio.Future[Read | None] = self._loop.create_future()
        self._do(future, lambda: self._read(lane))
        return future

    def _read(self, lane: str) -> Read | None:
        while (batch := self._lanes[lane].read()) is not None:
            if batch.lost:
                self._lose(lane, batch.lost)
            if batch.records:
                own = batch.segment.path.parent == self._folder
                return Read(lane, batch.segment, batch.records, own)
            self._count_done(lane, batch.segment, 0)
        return None

    def _lose(self, lane: str, records: int) -> None:
        logger.error("spool: %d events of lane %s cannot be read any more", records, lane)

        def tell() -> None:
            self.events[lane] -= records

        self._call(tell)

    def room(self) -> asyncio.Future[Room]:
        """Write a little, to see what finds room."""
        future: asyncio.Future[Room] = self._loop.create_future()
        self._do(future, self._room)
        return future

    def _room(self) -> Room:
        try:
            probe(self._folder)
        except OSError:
            return "shedding" if has_reserve(self._folder) else "refusing"
        reserve_again(self._folder, self._reserve_bytes)
        left = self._max_bytes - self._taken
        if left < PROBE_BYTES:
            return "refusing"
        return "spool" if left >= self._max_bytes * RESERVED_SHARE + PROBE_BYTES else "shedding"

    def _do(self, future: asyncio.Future[T], work: Callable[[], T]) -> None:
        """Have the thread do something and tell what came of it."""
        if self._broken:
            future.set_exception(SpoolFull(_BROKEN))
            return

        def done() -> None:
            try:
                result = work()
            except OSError as error:
                reason = SpoolFull(f"the spool cannot be read: {error.strerror}")
                self._call(lambda: None if future.done() else future.set_exception(reason))
            else:
                self._call(lambda: None if future.done() else future.set_result(result))

        self._work.put(_Job(done, future))

    def _require_thread(self) -> None:
        if self._broken:
            raise SpoolFull(_BROKEN)

    def done(self, read: Read, records: int) -> asyncio.Future[None]:
        """Count the first records of what was read as delivered."""
        self.events[read.lane] -= records
        future: asyncio.Future[None] = self._loop.create_future()

        self._do(future, lambda: self._count_done(read.lane, read.segment, records))
        return future

    def _count_done(self, lane: str, segment: Segment, records: int) -> None:
        freed = self._lanes[lane].done(segment, records)
        if freed:
            self._let_go(segment.path.parent)
            self._call(lambda: self._free(freed))

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
            remove_empty(folder)
            os.close(held)
        self._held.clear()

    def abandon(self) -> None:
        """Let go of the folder in a forked child, so that it stays locked by the parent alone."""
        for held in self._held.values():
            os.close(held)
        self._held.clear()

    # The thread.

    def _run(self) -> None:
        try:
            while (first := self._next()) is not None:
                self._group, last = self._gathered(first)
                self._work_off(self._group)
                self._group = []
                if last:
                    return
        finally:
            # Whatever ended it: who waits hears of it, and so does who comes later.
            self._call(self._break_off)

    def _work_off(self, group: list[_Work]) -> None:
        appends = [work for work in group if isinstance(work, _Append)]
        for name in LANES:
            self._write(name, [one for one in appends if one.lane == name])
        for work in group:
            if isinstance(work, _Job):
                work.work()

    def _break_off(self) -> None:
        """Tell everybody, on the loop's thread, that the thread has ended."""
        self._broken = True
        waiting = list(self._group)
        while not self._work.empty():
            work = self._work.get_nowait()
            waiting += [work] if work is not None else []
        for work in waiting:
            if work.future is not None and not work.future.done():
                work.future.set_exception(SpoolFull(_BROKEN))

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
            if name == CHUNKS or not release(self._folder):
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
