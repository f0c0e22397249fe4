"""Segment files of one lane: appended to, read from the beginning, removed when drained."""

import os
from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path

from turnlog.spool.records import Damage, Found, scan

SEGMENT_BYTES = 16 << 20
SUFFIX = ".seg"
_READ_BYTES = 1 << 20


class Segment:
    """One file.

    Attributes:
        path: where it is.
        size: bytes of whole records that are on the disk.
        unread: offset of the first record that was not handed out.
        left: records that were written or found and are not done.
        closed: nothing is appended any more.
        keys: streams of the records that were found, and how many each has.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys: Counter[bytes] = Counter()
        self.size = 0
        self.unread = 0
        self.left = 0
        self.closed = False
        self._file: int | None = None

    def append(self, data: bytes) -> None:
        """Write whole records behind the others and wait until they are on the disk.

        Raises:
            OSError: such as ENOSPC; then nothing of it is there.
        """
        if self._file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(self.path, flags, 0o600)
        try:
            _write_all(self._file, data, self.size)
            os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, self.size)
            raise
        self.size += len(data)

    def read(self) -> tuple[list[Found], list[Damage]]:
        """Hand out the next records, about a megabyte of them."""
        up_to = self.size
        with self.path.open("rb") as file:
            file.seek(self.unread)
            data = file.read(min(_READ_BYTES, up_to - self.unread))
            found = self._in(data)
            while not found[0] and not found[1] and self.unread + len(data) < up_to:
                data += file.read(min(len(data), up_to - self.unread - len(data)))
                found = self._in(data)
        base = self.unread
        whole = [Found(f.record, base + f.start, base + f.end) for f in found[0]]
        damaged = [Damage(base + d.start, base + d.end) for d in found[1]]
        self.unread = max([f.end for f in whole] + [d.end for d in damaged], default=up_to)
        return whole, damaged

    def _in(self, data: bytes) -> tuple[list[Found], list[Damage]]:
        """Return records and damage, the unfinished end left out."""
        found: list[Found] = []
        damaged: list[Damage] = []
        for part in scan(data):
            if isinstance(part, Found):
                found.append(part)
            elif part.end < len(data):
                damaged.append(part)
        return found, damaged

    def close(self) -> None:
        """Append nothing any more."""
        self.closed = True
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def repair(self) -> tuple[int, list[Damage]]:
        """Look through what a dead process left: cut off a torn end, count what is whole.

        Returns:
            Bytes cut off, and damage in the middle, which stays where it is.
        """
        data = self.path.read_bytes()
        parts = list(scan(data))
        self.keys = Counter(part.record.key for part in parts if isinstance(part, Found))
        self.left = self.keys.total()
        damaged = [part for part in parts if isinstance(part, Damage)]
        torn = damaged.pop() if damaged and damaged[-1].end == len(data) else None
        self.size = torn.start if torn else len(data)
        if torn:
            os.truncate(self.path, self.size)
        self.closed = True
        return len(data) - self.size, damaged


class Lane:
    """The segments of one lane, oldest first. Used by one thread."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._folder = folder
        self._segments: deque[Segment] = deque()
        self._number = 0

    @property
    def size(self) -> int:
        """Bytes that are taken up."""
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> int:
        """How many files."""
        return len(self._segments)

    @property
    def events(self) -> int:
        """Records that are not done."""
        return sum(segment.left for segment in self._segments)

    def append(self, data: bytes, records: int) -> None:
        """Write whole records behind the others and wait until they are on the disk.

        Raises:
            OSError: such as ENOSPC; then nothing of it is there.
        """
        segment = self._current()
        segment.append(data)
        segment.left += records

    def adopt(self, paths: Iterable[Path]) -> tuple[Counter[bytes], list[str]]:
        """Take over the files of a dead process, in order.

        Returns:
            How many records each stream has in them, and what is wrong with them.
        """
        said = []
        keys: Counter[bytes] = Counter()
        for path in sorted(paths):
            segment = Segment(path)
            torn, damaged = segment.repair()
            if torn:
                said.append(f"{path.name}: {torn} bytes cut off that were never acknowledged")
            said += [f"{path.name}: bytes {d.start} to {d.end} are damaged" for d in damaged]
            keys += segment.keys
            self._segments.append(segment)
            self._number = max(self._number, int(path.stem.rpartition("-")[2]))
        self._drop_done()
        return keys, said

    def _current(self) -> Segment:
        last = self._segments[-1] if self._segments else None
        if last is None or last.closed or last.size >= SEGMENT_BYTES:
            if last is not None:
                last.close()
            self._number += 1
            last = Segment(self._folder / f"{self.name}-{self._number:08d}{SUFFIX}")
            self._segments.append(last)
        return last

    def read(self) -> tuple[Segment, list[Found], list[Damage]] | None:
        """Hand out the next records; None where all were."""
        for segment in self._segments:
            if segment.unread < segment.size:
                return segment, *segment.read()
        return None

    def done(self, segment: Segment, records: int) -> int:
        """Count records as done; return the bytes of files that went away with their last one."""
        segment.left -= records
        return self._drop_done()

    def _drop_done(self) -> int:
        freed = 0
        for segment in [s for s in self._segments if not s.left and s.unread >= s.size]:
            segment.close()
            self._segments.remove(segment)
            segment.path.unlink(missing_ok=True)
            freed += segment.size
        return freed

    def close(self) -> None:
        """Close the files; those that hold nothing go away."""
        for segment in list(self._segments):
            segment.close()
            if not segment.left:
                segment.path.unlink(missing_ok=True)


def _write_all(file: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, at)
        view, at = view[written:], at + written
