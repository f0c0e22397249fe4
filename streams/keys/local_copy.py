"""A copy of the rows of `turnlog.keys` on this machine's disk: a start reads only what is new.

`{home}/keys/copies/{role}/` is a RocksDB of rows as they are in the topic (ciphertext and public
parts; no key that opens anything) and of the offset that comes next in each partition, both changed
in one batch. A copy is a convenience: whatever does not fit makes it be thrown away and read again,
also when nothing is wrong with it, after 7 days. That bounds what a mistake can keep.

What the topic removed must go from the files too, so nothing is written to RocksDB's log (a crash
loses the newest rows *and* their offsets, so they are read again), nothing is compressed, and
`purge` compacts where rows were replaced or removed.
"""

import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from rocksdict import (
    AccessType,
    BottommostLevelCompaction,
    CompactOptions,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from turnlog.config import Config
from turnlog.errors import TurnlogError
from turnlog.ids import require_id
from turnlog.keys.rows import Row

logger = logging.getLogger(__name__)

FORMAT = 1
MAX_AGE_S = 7 * 86_400
PURGE_S = 10.0
"""How long a replaced row may stay in the files of a running reader, or a little more."""

_META = b"meta"
_ROW = b"r/"
_UNPURGED = b"u/"
# Clocks of one machine step back a little when they are set right.
_STEP_S = 60.0
_FEW = 4


class CopyDamaged(TurnlogError):
    """A copy that is corrupt or of another form: it is thrown away."""


class Meta(NamedTuple):
    """What a copy says of itself.

    Attributes:
        format: of this module.
        topic: name of the topic.
        topic_id: Kafka's id of it: another one under the same name has another.
        begun_at_s: UTC seconds when the copy was begun.
        seen_at_s: the latest UTC seconds that it saw.
        rows: how many there are: RocksDB ends an iteration over a damaged file without a word.
        next: the next offset by partition.
    """

    format: int
    topic: str
    topic_id: str
    begun_at_s: float
    seen_at_s: float
    rows: int
    next: dict[int, int]


class _Told:
    """Turns RocksDB's errors into ours: rocksdict raises nothing but `Exception` itself."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is Exception:
            raise CopyDamaged(str(error)) from error


def copies_folder(config: Config) -> Path:
    """Return where the copies of a home lie, one folder a role."""
    return config.home / "keys" / "copies"


def open_rows(path: Path, access: AccessType | None = None) -> Rdict:
    """Open the RocksDB of a copy.

    Raises:
        CopyDamaged: it does not open.
    """
    options = Options(raw_mode=True)
    options.create_if_missing(access is None)
    options.set_compression_type(DBCompressionType.none())
    options.set_keep_log_file_num(1)
    with _Told():
        rows = Rdict(str(path), options, access_type=access or AccessType.read_write())
    writing = WriteOptions()
    writing.disable_wal = True  # type: ignore[assignment, method-assign]  # a property
    rows.set_write_options(writing)
    return rows


def read_meta(rows: Rdict) -> Meta | None:
    """Return what a copy says of itself, None where it was never filled.

    Raises:
        CopyDamaged: it cannot be read, or is of another format.
    """
    with _Told():
        stored = rows.get(_META)
    try:
        values = json.loads(stored or b"null")
        if values is None:
            return None
        meta = Meta(**values)
        if meta.format != FORMAT:
            raise CopyDamaged(f"format {meta.format}, this is for {FORMAT}")
        return meta._replace(next={int(number): at for number, at in meta.next.items()})
    except (ValueError, TypeError, AttributeError) as error:
        raise CopyDamaged(f"not a copy of Turnlog's: {error}") from error


def read_rows(rows: Rdict, meta: Meta) -> dict[bytes, bytes]:
    """Return all rows of a copy.

    Raises:
        CopyDamaged: there are not as many as it says.
    """
    with _Told():
        cut = len(_ROW)
        found = {key[cut:]: value for key, value in _under(rows, _ROW)}
    if len(found) != meta.rows:
        raise CopyDamaged(f"{len(found)} rows, not {meta.rows}")
    return found


def unpurged(rows: Rdict) -> list[bytes]:
    """Return the beginnings of row keys under which replaced rows may still be in the files."""
    with _Told():
        return [key[len(_UNPURGED) :] for key, _ in _under(rows, _UNPURGED)]


def _under(rows: Rdict, start: bytes) -> Iterable[tuple[bytes, bytes]]:
    for key, value in rows.items(from_key=start):
        assert isinstance(key, bytes)
        if not key.startswith(start):
            return
        yield key, value


class RowsCopy:
    """The copy of one role, held by one process; made by `open_copy` alone.

    Not safe to use from several threads.
    """

    def __init__(
        self, folder: Path, lock: int, topic: tuple[str, str], clock: Callable[[], float]
    ) -> None:
        self._folder = folder
        self._lock = lock
        self._topic = topic
        self._clock = clock
        self._unpurged: set[bytes] = set()
        self._purging: set[bytes] = set()
        self._pool = ThreadPoolExecutor(1, "turnlog-keys-copy")
        self._compaction: Future[None] | None = None
        self._purge_due_s = 0.0
        self._opened_at_s, self._opened_mono = clock(), time.monotonic()
        self._rows: Rdict | None = None
        self._meta = self._new_meta()

    def load(self, bounds: Mapping[int, tuple[int, int]]) -> dict[bytes, bytes]:
        """Return the rows that are there; none, in a copy begun anew, where it does not fit.

        Args:
            bounds: first and end offset of each partition that is read.
        """
        try:
            self._rows = open_rows(self._folder)
            meta = read_meta(self._rows)
            why = "" if meta is None else self._misfit(meta, bounds)
            if meta is not None and not why:
                found = read_rows(self._rows, meta)
                self._unpurged = set(unpurged(self._rows))
                self._meta = meta
                return found
        except CopyDamaged as error:
            why = str(error)
        if why:
            logger.warning("the local copy %s is read again: %s", self._folder.name, why)
        self.renew(bounds)
        return {}

    def renew(self, bounds: Mapping[int, tuple[int, int]]) -> None:
        """Throw the copy away and begin an empty one."""
        self.destroy()
        self._opened_at_s, self._opened_mono = self._clock(), time.monotonic()
        self._meta = self._new_meta()._replace(next={n: start for n, (start, _) in bounds.items()})
        self._rows = open_rows(self._folder)

    @property
    def next(self) -> Mapping[int, int]:
        """The next offset by partition."""
        return self._meta.next

    def _new_meta(self) -> Meta:
        now = self._clock()
        return Meta(FORMAT, *self._topic, now, now, 0, {})

    def _misfit(self, meta: Meta, bounds: Mapping[int, tuple[int, int]]) -> str:
        """Return why a copy cannot be gone on with, "" where it can."""
        if (meta.topic, meta.topic_id) != self._topic:
            return "it is of another topic"
        if meta.next.keys() != bounds.keys():
            return "it is of other partitions"
        for number, (start, end) in bounds.items():
            if not start <= meta.next[number] <= end:
                return f"partition {number} now holds {start} to {end}, not {meta.next[number]}"
        return self._too_old(meta)

    def _too_old(self, meta: Meta) -> str:
        now = self._clock()
        if now < meta.seen_at_s - _STEP_S:
            return "the clock was set back, so its age is not known"
        return "it is older than 7 days" if now - meta.begun_at_s >= MAX_AGE_S else ""

    @property
    def is_expired(self) -> bool:
        """Whether it reached 7 days while it was open, by the clock or by time that passed."""
        begun_at_s = self._meta.begun_at_s
        passed_s = self._opened_at_s - begun_at_s + time.monotonic() - self._opened_mono
        return max(self._clock() - begun_at_s, passed_s) >= MAX_AGE_S

    def write(
        self,
        rows: Sequence[Row],
        replaced: Iterable[bytes],
        count: int,
        moved: Mapping[int, int],
    ) -> None:
        """Take in rows and the offsets behind them at once.

        Args:
            rows: in the order of the log.
            replaced: row keys of which an older value was there.
            count: how many rows there are then.
            moved: the next offset of the partitions in which it changed.

        Raises:
            CopyDamaged: RocksDB cannot write.
        """
        assert self._rows is not None
        batch = WriteBatch(raw_mode=True)
        for key, value in dict(rows).items():
            if value is None:
                batch.delete(_ROW + key)
            else:
                batch.put(_ROW + key, value)
        for place in {_place(key) for key in replaced} - self._unpurged:
            batch.put(_UNPURGED + place, b"")
            self._mark(place)
        seen = max(self._meta.seen_at_s, self._clock())
        meta = self._meta._replace(rows=count, next={**self._meta.next, **moved}, seen_at_s=seen)
        batch.put(_META, json.dumps(meta._asdict()).encode())
        with _Told():
            self._rows.write(batch)
        self._meta = meta

    def _mark(self, place: bytes) -> None:
        if not self._unpurged:
            self._purge_due_s = time.monotonic() + PURGE_S
        self._unpurged.add(place)

    def purge_beside(self) -> None:
        """Begin a purge that is due on a thread of its own, or end one that has run.

        It compacts whole files, 0.3 s for 100,000 rows and more for more, and reading must go on.

        Raises:
            CopyDamaged: RocksDB cannot compact.
        """
        if self._compaction is None:
            if self._unpurged and time.monotonic() >= self._purge_due_s:
                self._purging, self._unpurged = self._unpurged, set()
                self._compaction = self._pool.submit(self._compact, self._purging)
        elif self._compaction.done():
            self._end_purge()

    def purge(self) -> None:
        """Make replaced and removed rows be gone from the files; returns when they are.

        Raises:
            CopyDamaged: RocksDB cannot compact.
        """
        self._end_purge()
        if self._rows is not None and self._unpurged:
            self._purging, self._unpurged = self._unpurged, set()
            self._compact(self._purging)
            self._unmark()

    def _end_purge(self) -> None:
        compaction, self._compaction = self._compaction, None
        if compaction is not None:
            compaction.result()
            self._unmark()

    def _compact(self, places: Set[bytes]) -> None:
        assert self._rows is not None
        options = CompactOptions()
        options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
        with _Told():
            self._rows.flush()
            # Over many trees one pass is cheaper: each compacts whole files.
            for place in places if len(places) <= _FEW else (b"",):
                begin = _ROW + place
                self._rows.compact_range(begin, begin[:-1] + bytes((begin[-1] + 1,)), options)

    def _unmark(self) -> None:
        assert self._rows is not None
        with _Told():
            # What was replaced again in the meantime keeps its mark.
            for place in self._purging - self._unpurged:
                self._rows.delete(_UNPURGED + place)
            self._rows.flush()
        self._purging = set()

    def close(self) -> None:
        """Purge what is left, write everything to the files and let go of the copy."""
        try:
            if self._rows is not None:
                self.purge()
                with _Told():
                    self._rows.flush()
                    self._rows.close()
        except CopyDamaged as error:
            logger.warning("the local copy %s is thrown away: %s", self._folder.name, error)
            self.destroy()
        self._pool.shutdown()
        os.close(self._lock)

    def destroy(self) -> None:
        """Remove the files of the copy; the lock on it stays."""
        if self._compaction is not None:
            wait([self._compaction])
            self._compaction = None
        rows, self._rows = self._rows, None
        if rows is not None:
            with suppress(CopyDamaged), _Told():
                rows.close()
        self._unpurged = set()
        shutil.rmtree(self._folder, ignore_errors=True)


def _place(row_key: bytes) -> bytes:
    """Return how the keys of the rows beside this one begin: org and tree, or org."""
    return row_key[: row_key.rfind(b"/") + 1]


def open_copy(
    folder: Path, role: str, topic: tuple[str, str], clock: Callable[[], float] = time.time
) -> RowsCopy | None:
    """Take the copy of a role, None where another process has it or the disk refuses.

    Args:
        folder: of all copies.
        role: what the process is, such as `usage`; an id.
        topic: its name and Kafka's id of it.
        clock: UTC seconds.
    """
    require_id(role, "role")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / f"{role}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        logger.warning("no local copy in %s: %s", folder, error.strerror)
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        logger.info("another process has the local copy %s", role)
        os.close(lock)
        return None
    return RowsCopy(folder / role, lock, topic, clock)
