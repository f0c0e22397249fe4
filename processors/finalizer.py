"""Open runs of one partition number: who holds them, when they last showed a sign of life.

A fold of `turnlog.runs` and `turnlog.run-chunks`, which have the same partition numbers; the order
between the two does not matter to it. It keeps offsets and no bytes: what ends a run is read back.
No state of a view is written from it; it only says which runs are overdue.

Time is log time: append times, never this process's clock. It stands still while nobody appends,
and a tick, appended by whoever runs this fold, makes it pass when all producers are dead.
"""

import re
import struct
from collections.abc import Container, Iterator
from typing import NamedTuple

from processors.runs import CREATED, TAKEN_OVER, TERMINAL
from turnlog.errors import DecodeError
from turnlog.events import TYPES, common_fields, decode
from turnlog.events.schema import HEADER_BYTES
from turnlog.events.shapes import MAX_EPOCH
from turnlog.events.slices import without_frame
from turnlog.ids import is_id, stream_key

TOPICS = ("turnlog.runs", "turnlog.run-chunks")
TICK = "finalizer.tick"
BATCH = "chunk.batch"
# What begins a run's epoch; nothing else makes a run that is not known one that could be ended.
OPENING = (CREATED, TAKEN_OVER)

_FREQUENT = {TYPES[name].header: name for name in (BATCH, "run.heartbeat")}

UNKNOWN = -1
"""Offset of a beginning that was not read (yet)."""

_DIRTY, _STORED, _WRITTEN = 1, 2, 4
_ROW = struct.Struct(">Bqqq")
_VERSION = 1
# What no offset of 63 bits is written as, or an offset that is cut off.
_NO_DELTAS = re.compile(rb"[\x80-\xff]{9}|[\x80-\xff]\Z")


class Sign(NamedTuple):
    """What an event says to this fold.

    Attributes:
        type: event type.
        key: `{org}/{run}`; empty for a tick.
        epoch: of its writer.
    """

    type: str
    key: bytes
    epoch: int


def read_sign(value: bytes | None, key: bytes | None) -> Sign:
    """Read a record of one of the two topics.

    Of what comes most often, chunk batches and heartbeats, only the first fields are read: 17 µs
    instead of 50. Whether the rest is an event is found out when it is needed.

    Raises:
        DecodeError: it is no event, its key is another's, or its ids are none.
    """
    value = value or b""
    type_ = _FREQUENT.get(value[:HEADER_BYTES])
    if type_ is not None:
        return _sign(type_, key, *_first_fields(value))
    event = decode(without_frame(value))
    body = event.body
    if event.type == TICK:
        return Sign(TICK, b"", 0)
    names = body["org"], body["conversation"], body["run"]
    return _sign(event.type, key, *names, body["writer_epoch"])


def _sign(type_: str, key: bytes | None, org: str, conversation: str, run: str, epoch: int) -> Sign:
    if key != stream_key(org, conversation, run):
        raise DecodeError("the key disagrees with the body")
    if not (is_id(org) and is_id(run)):
        raise DecodeError("an id of the body has not the form of one")
    if not 0 <= epoch <= MAX_EPOCH:
        raise DecodeError("the writer epoch is out of bounds")
    return Sign(type_, f"{org}/{run}".encode(), epoch)


def _first_fields(value: bytes) -> tuple[str, str, str, int]:
    """Return org, conversation, run and writer epoch of an event without decoding the rest."""
    body = common_fields(value)
    return body["org"], body["conversation"], body["run"], body["writer_epoch"]


class OpenRun:
    """A run that nothing has ended yet, in about 420 bytes and 2 to 3 more a chunk batch.

    Attributes:
        opened: offset in `turnlog.runs` of what began it, UNKNOWN where only chunks were seen.
        epoch: highest writer epoch seen.
        last_ms: append time of the last sign of life of that epoch, ms since 1970.
    """

    __slots__ = ("_deltas", "_flags", "_last_offset", "epoch", "last_ms", "opened")

    def __init__(self, opened: int, epoch: int, last_ms: int) -> None:
        self.opened = opened
        self.epoch = epoch
        self.last_ms = last_ms
        self._flags = _DIRTY
        self._last_offset = 0
        self._deltas: bytearray | None = None

    @property
    def is_written(self) -> bool:
        """Whether its end is on its way into the log."""
        return bool(self._flags & _WRITTEN)

    def note_batch(self, offset: int) -> None:
        """Take the offset of a chunk batch; one that was taken before changes nothing."""
        if self._deltas is None:
            self._deltas = bytearray()
        elif offset <= self._last_offset:
            return
        _append_varint(self._deltas, offset - self._last_offset)
        self._last_offset = offset
        self._flags |= _DIRTY

    def batches(self) -> Iterator[int]:
        """Give the offsets of its chunk batches in order."""
        at = 0
        for delta in _varints(self._deltas or b""):
            at += delta
            yield at

    def live(self, epoch: int, append_ms: int) -> None:
        """Take a sign of life; one of a lower epoch, which was taken over, is none."""
        if epoch > self.epoch:
            self.epoch = epoch
            self._flags = self._flags & ~_WRITTEN | _DIRTY
        elif epoch < self.epoch:
            return
        self.last_ms = max(self.last_ms, append_ms)

    def begin(self, offset: int) -> None:
        """Take the offset of its beginning, unless one is known."""
        if self.opened == UNKNOWN:
            self.opened = offset
            self._flags |= _DIRTY

    def mark_written(self) -> None:
        """Note that its end was handed over: it is not handed over again."""
        self._flags |= _WRITTEN

    def row(self) -> bytes:
        """Return its row in the checkpoint."""
        head = _ROW.pack(_VERSION, self.opened, self.epoch, self.last_ms)
        return head + (self._deltas or b"")

    @classmethod
    def of_row(cls, row: bytes) -> "OpenRun":
        """Return the run that a row describes.

        Raises:
            DecodeError: it is no row of this version.
        """
        if len(row) < _ROW.size or row[0] != _VERSION:
            raise DecodeError("the row is no open run of this version")
        if _NO_DELTAS.search(row, _ROW.size):
            raise DecodeError("the chunk batches of the run are not offsets")
        run = cls(*_ROW.unpack_from(row)[1:])
        if run.opened < UNKNOWN or not 0 <= run.epoch <= MAX_EPOCH:
            raise DecodeError("a number of the run is out of bounds")
        run._flags = _STORED
        if len(row) > _ROW.size:
            run._deltas = bytearray(row[_ROW.size :])
            run._last_offset = sum(_varints(run._deltas))
        return run


class Partition:
    """The open runs of one partition number.

    Args:
        deadline_ms: a run is overdue this long after its last sign of life.
        silence_ms: a gap between two records of `run-chunks` that means that neither producers nor
            ticks could be appended (no broker, no finalizer): nobody is judged by it, and every
            run has a whole deadline after it to show a sign of life.

    Attributes:
        runs: by `{org}/{run}`, the one that was silent longest first, as far as it is known.
        head_ms: append time of the last record of `run-chunks`, 0 before the first.
    """

    def __init__(self, deadline_ms: int, silence_ms: int) -> None:
        self.runs: dict[bytes, OpenRun] = {}
        self.head_ms = 0
        self._deadline_ms = deadline_ms
        self._silence_ms = silence_ms
        self._judge_from_ms = 0
        self._runs_head_ms = 0
        self._gone: list[bytes] = []

    def restore(self, rows: dict[bytes, bytes], head_ms: int) -> None:
        """Begin where a checkpoint ended.

        A row is written when a run's offsets change, not at each heartbeat: every run counts as
        alive at the time of the checkpoint.

        Raises:
            DecodeError: a row is none.
        """
        self.head_ms = head_ms
        for key, row in rows.items():
            run = self.runs[key] = OpenRun.of_row(row)
            run.last_ms = max(run.last_ms, head_ms)

    def take_run(self, sign: Sign, offset: int, append_ms: int) -> None:
        """Take a record of `turnlog.runs`."""
        self._runs_head_ms = max(self._runs_head_ms, append_ms)
        if sign.type in TERMINAL:
            self._end(sign)
            return
        if sign.type == CREATED and self._has_begun(sign.key):
            return  # the first one won; the second changes neither the run nor its epoch
        run = self._moved(sign, append_ms)
        if sign.type in OPENING:
            run.begin(offset)

    def take_chunk(self, sign: Sign, offset: int, append_ms: int) -> None:
        """Take a record of `turnlog.run-chunks`."""
        if self.head_ms and append_ms - self.head_ms > self._silence_ms:
            self._judge_from_ms = append_ms + self._deadline_ms
        self.head_ms = max(self.head_ms, append_ms)
        if sign.type == TICK:
            return
        run = self._moved(sign, append_ms)
        if sign.type == BATCH:
            run.note_batch(offset)

    def _has_begun(self, key: bytes) -> bool:
        run = self.runs.get(key)
        return run is not None and run.opened != UNKNOWN

    def _moved(self, sign: Sign, append_ms: int) -> OpenRun:
        """Return the run, behind all that were silent for longer."""
        run = self.runs.pop(sign.key, None)
        if run is None:
            run = OpenRun(UNKNOWN, sign.epoch, append_ms)
        else:
            run.live(sign.epoch, append_ms)
        self.runs[sign.key] = run
        return run

    def _end(self, sign: Sign) -> None:
        """Close a run, unless who ended it had lost it to a higher epoch."""
        run = self.runs.get(sign.key)
        if run is not None and sign.epoch >= run.epoch:
            self.close(sign.key)

    def close(self, key: bytes) -> None:
        """Drop a run that has ended, or that never was."""
        run = self.runs.pop(key)
        if run._flags & _STORED:
            self._gone.append(key)

    def due(self, now_ms: int, limit: int, but: Container[bytes] = ()) -> list[bytes]:
        """Return runs that are overdue, at most `limit`, none of `but`.

        Chunks of runs that ended before them are forgotten here.

        Args:
            now_ms: an earlier `head_ms`, since which both topics were read to ends that were asked
                for after it; or what kept a run alive may still be unread.
            limit: how many.
            but: these not.
        """
        found: list[bytes] = []
        ghosts: list[bytes] = []
        for key, run in self._silent(now_ms):
            if run.opened == UNKNOWN:
                ghosts.append(key)
            elif not run.is_written and key not in but:
                found.append(key)
                if len(found) == limit:
                    break
        for key in ghosts:
            self.close(key)
        return found

    def has_due(self, but: Container[bytes] = ()) -> bool:
        """Say whether a look at the ends of the topics is worth its while."""
        silent = self._silent(self.head_ms)
        return any(not run.is_written and key not in but for key, run in silent)

    def forget_ghosts(self) -> None:
        """Drop runs of which only chunks are known, once their beginning must have been read.

        Those that ended: their chunks were drained late, or are read after their end. What begins a
        run is acknowledged before its first chunk is sent.
        """
        head_ms = self._runs_head_ms - self._deadline_ms
        gone = [key for key, run in self._older(head_ms) if run.opened == UNKNOWN]
        for key in gone:
            self.close(key)

    def _silent(self, now_ms: int) -> Iterator[tuple[bytes, OpenRun]]:
        """Give the runs that are overdue; none after a silence of everybody."""
        if now_ms < self._judge_from_ms:
            return iter(())
        return self._older(now_ms - self._deadline_ms)

    def _older(self, than_ms: int) -> Iterator[tuple[bytes, OpenRun]]:
        for key, run in self.runs.items():
            if run.last_ms > than_ms:
                return
            yield key, run

    def changes(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Give what a checkpoint must write since the last one: rows, and None for runs that ended.

        Each is given once: the caller makes all of them durable, or starts again from what is.
        """
        gone, self._gone = self._gone, []
        yield from ((key, None) for key in gone if key not in self.runs)
        for key, run in self.runs.items():
            if run._flags & _DIRTY:
                run._flags = run._flags & ~_DIRTY | _STORED
                yield key, run.row()


def _append_varint(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _varints(data: bytes | bytearray) -> Iterator[int]:
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield number
            number = shift = 0
