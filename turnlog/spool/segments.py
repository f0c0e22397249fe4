"""Segment files of one lane: appended to, read from the beginning, removed when drained."""

import logging
import os
from collections import Counter, deque
from pathlib import Path
from typing import NamedTuple

from turnlog.spool.aside import set_aside
from turnlog.spool.files import number_of, segment_name, segments_in
from turnlog.spool.records import Damage, Found, Spooled, scan

logger = logging.getLogger(__name__)

SEGMENT_BYTES = 16 << 20
_READ_BYTES = 1 << 20


class Batch(NamedTuple):
    """Records of a segment that were handed out.

    Attributes:
        segment: where they stand.
        records: the records.
        lost: how many that this process wrote cannot be read any more: damaged since.
    """

    segment: "Segment"
    records: list[Spooled]
    lost: int


class Segment:
    """One file.

    Attributes:
        path: where it is.
        size: bytes of whole records that are on the disk.
        unread: offset of the first record that was not handed out.
        left: records that were written or found and are not done.
        unseen: those of them that were not handed out.
        closed: nothing is appended any more.
        keys: streams of the records that were found, and how many each has.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys: Counter[bytes] = Counter()
        self.size = 0
        self.unread = 0
        self.left = 0
        self.unseen = 0
        self.closed = False
        self._kept: Path | None = None
        self._file: int | None = None

    def append(self, data: bytes, records: int) -> None:
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
        self.left += records
        self.unseen += records

    def read(self) -> Batch:
        """Hand out the next records, about a megabyte of them; pass over what is damaged.

        Raises:
            OSError: it cannot be read, or what is damaged cannot be set aside.
        """
        parts, at_end = self._next_parts()
        whole = [part.record for part in parts if isinstance(part, Found)]
        self._keep([part for part in parts if isinstance(part, Damage)])
        self.unread = self.size if at_end else self.unread + parts[-1].end
        self.unseen -= len(whole)
        lost = self.unseen if at_end else 0
        self.unseen -= lost
        self.left -= lost
        return Batch(self, whole, lost)

    def _next_parts(self) -> tuple[list[Found | Damage], bool]:
        """Return what comes next, and whether it reaches the end; else without a rest."""
        data, parts = b"", list[Found | Damage]()
        with self.path.open("rb") as file:
            file.seek(self.unread)
            while not parts:
                left = self.size - self.unread - len(data)
                more = file.read(min(max(_READ_BYTES, len(data)), left))
                data += more
                parts = list(scan(data))
                if not more or len(more) == left:
                    return parts, True
                if isinstance(parts[-1], Damage):
                    parts.pop()  # it goes on behind these bytes
        return parts, False

    def _keep(self, damaged: list[Damage]) -> None:
        """Set the file aside, once, where records in it are damaged."""
        if self._kept is not None or not damaged:
            return
        self._kept = set_aside(self.path)
        places = ", ".join(f"{self.unread + d.start} to {self.unread + d.end}" for d in damaged)
        logger.error(
            "spool %s: %s: bytes %s are damaged and not sent; the file is kept as %s",
            self.path.parent.name, self.path.name, places, self._kept,
        )  # fmt: skip

    def close(self) -> None:
        """Append nothing any more."""
        self.closed = True
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def repair(self) -> None:
        """Look through what a dead process left: count what is whole, cut off a torn end.

        Raises:
            OSError: it cannot be read, or what is damaged cannot be set aside.
        """
        data = self.path.read_bytes()
        parts = list(scan(data))
        self.keys = Counter(part.record.key for part in parts if isinstance(part, Found))
        damaged = [part for part in parts if isinstance(part, Damage)]
        torn = damaged.pop() if damaged and damaged[-1].torn else None
        self._keep(damaged)
        self.left = self.unseen = self.keys.total()
        self.size = torn.start if torn else len(data)
        self.closed = True
        if torn is not None:
            self._cut_off(torn)

    def _cut_off(self, torn: Damage) -> None:
        logger.warning(
            "spool %s: %s: its last %d bytes are no whole record: it was being written when its "
            "process died, and was not acknowledged",
            self.path.parent.name, self.path.name, torn.end - torn.start,
        )  # fmt: skip
        if self._kept is None:  # else it is the same file
            os.truncate(self.path, self.size)


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
        self._current().append(data, records)

    def adopt(self, folder: Path) -> tuple[Counter[bytes], list[str]]:
        """Take over the files of a dead process, in order; those that it has are left out.

        Returns:
            How many records each stream has in them, and which files cannot be taken, and why.
        """
        had = {segment.path for segment in self._segments}
        keys: Counter[bytes] = Counter()
        for path in segments_in(folder, self.name):
            if path in had:
                continue
            segment = Segment(path)
            try:
                segment.repair()
            except OSError as error:
                # What follows may be of the same streams: it waits too.
                return keys, [f"{path.name} cannot be taken over: {error.strerror}"]
            keys += segment.keys
            self._segments.append(segment)
            self._number = max(self._number, number_of(path))
        self._drop_done()
        return keys, []

    def holds(self, folder: Path) -> bool:
        """Say whether files of a folder are in use."""
        return any(segment.path.parent == folder for segment in self._segments)

    def _current(self) -> Segment:
        last = self._segments[-1] if self._segments else None
        if last is None or last.closed or last.size >= SEGMENT_BYTES:
            if last is not None:
                last.close()
            self._number += 1
            last = Segment(self._folder / segment_name(self.name, self._number))
            self._segments.append(last)
        return last

    def read(self) -> Batch | None:
        """Hand out the next records; None where all were."""
        for segment in self._segments:
            if segment.unread < segment.size:
                return segment.read()
        return None

    def done(self, segment: Segment, records: int) -> int:
        """Count records as done; return the bytes of files that went away with their last one."""
        segment.left -= records
        return self._drop_done()

    def _drop_done(self) -> int:
        freed = 0
        for segment in [s for s in self._segments if not s.left]:
            segment.close()
            # Where it fails the file stays in the list: the next call tries again.
            segment.path.unlink(missing_ok=True)
            self._segments.remove(segment)
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
