"""Events that this machine's spool could not read any more, and what the log lacks for it.

What was set aside (`turnlog.spool.aside`) was acknowledged to its sender, or may have been. Where
a damaged record still says which it was, and the log does not have that number, it is missing.
Where it says nothing, every hole below what arrived of that producer is, once it is not running and
nothing of it waits on the disk: its numbers are gapless (DESIGN.md section 3).
"""

from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple

from processors.ledger import Hole, Lane, Mark, Ranges, numbered
from turnlog.config import Config
from turnlog.errors import DecodeError
from turnlog.spool.aside import Aside, look_aside
from turnlog.spool.look import look
from turnlog.spool.records import Spooled


class Piece(NamedTuple):
    """A damaged record.

    Attributes:
        owner: the producer in whose folder it lay.
        segment: name of its file.
        lane: of its number; None where the record does not say it.
        seq: its `producer_seq`.
        org: whose event it was; empty where the record does not say it.
    """

    owner: str
    segment: str
    lane: Lane | None = None
    seq: int = -1
    org: str = ""


class Here(NamedTuple):
    """What this machine's spool knows of producers.

    Attributes:
        alive: those that run, or whose events are being sent now.
        waiting: dead ones whose events wait for the next producer.
        damaged: records that cannot be read any more.
    """

    alive: Set[str] = frozenset()
    waiting: Set[str] = frozenset()
    damaged: tuple[Piece, ...] = ()

    def state_of(self, producer: str) -> str:
        """Say `alive`, `waiting`, or `gone`: dead, or another machine's."""
        if producer in self.alive:
            return "alive"
        return "waiting" if producer in self.waiting else "gone"


NO_SPOOL = Here()


def look_here(config: Config) -> Here:
    """Look into this machine's spool.

    Raises:
        UsageError: it cannot be read.
    """
    folders = look(config.spool_folder)
    return Here(
        {folder.owner for folder in folders if folder.alive},
        {folder.owner for folder in folders if folder.events and not folder.alive},
        tuple(_piece(aside) for aside in look_aside(config.spool_folder)),
    )


def _piece(aside: Aside) -> Piece:
    unknown = Piece(aside.owner, aside.path.name)
    record = aside.record
    return unknown if record is None else _read(unknown, record)


def _read(unknown: Piece, record: Spooled) -> Piece:
    try:
        event = numbered(record.value)
    except DecodeError:
        return unknown
    if event.producer != unknown.owner or event.seq != record.seq:
        return unknown  # any bit of it may be wrong
    lane = Lane(event.producer, event.epoch, record.topic, record.partition)
    return unknown._replace(lane=lane, seq=record.seq, org=event.org)


def unread(here: Here, org: str) -> list[Piece]:
    """Return the damaged records that do not say which they were; they may be any org's."""
    return [piece for piece in here.damaged if piece.lane is None and piece.org in ("", org)]


def with_damage(
    marks: Mapping[Lane, Mark], seen: Mapping[Lane, Ranges], here: Here
) -> dict[Lane, Mark]:
    """Return marks that vouch for all that arrived of producers whose damage says nothing."""
    silent = {piece.owner for piece in here.damaged if piece.lane is None}
    silent -= here.alive | here.waiting
    raised = dict(marks)
    for lane, ranges in seen.items():
        if lane.producer in silent:
            mark = marks.get(lane, Mark(-1, False, 0))
            raised[lane] = mark._replace(acked_seq=max(mark.acked_seq, ranges.top))
    return raised


def missing(
    here: Here,
    marks: Mapping[Lane, Mark],
    seen: Mapping[Lane, Ranges],
    floors: Mapping[Lane, int],
    found: Iterable[Hole],
    org: str,
) -> list[Hole]:
    """Return the numbers of damaged records that are nowhere, beside the holes that were found.

    What lies below a floor may have been there, and retention took it.
    """
    known: dict[Lane, list[tuple[int, int]]] = {}
    for hole in found:
        known.setdefault(hole.lane, []).append((hole.first, hole.last))
    holes = []
    for piece in here.damaged:
        if piece.lane is None or (org and piece.org != org):
            continue
        below = (0, floors.get(piece.lane, 0) - 1)
        refused = marks[piece.lane].refused if piece.lane in marks else ()
        told = (below, *known.get(piece.lane, ()), *seen.get(piece.lane, ()), *refused)
        if not any(first <= piece.seq <= last for first, last in told):
            holes.append(Hole(piece.lane, piece.seq, piece.seq))
    return sorted(set(holes))
