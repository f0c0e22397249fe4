"""Rows as the fold sees them: not yet written over being written over stored."""

from collections.abc import Iterator
from typing import Protocol

from processors.conversation_rows import (
    Decision,
    Head,
    MemoryRows,
    Stored,
    Turn,
    decision_key,
    pack,
    stream_of,
    turn_key,
    unpack_decision,
    unpack_stored,
    unpack_turn,
)

# Heads that are clean are kept decoded: a conversation in progress is read again at every event.
KNOWN_HEADS = 10_000


class Tables(Protocol):
    """The two tables, one partition of them."""

    def head(self, key: bytes) -> bytes | None:
        """Return a stored head."""

    def row(self, key: bytes) -> bytes | None:
        """Return a stored turn or decision."""


class State:
    """One partition's rows.

    `fresh` holds what the fold changed since the last `cut`, `leaving` what is being written now.
    """

    def __init__(self, tables: Tables) -> None:
        self.fresh = MemoryRows()
        self.leaving = MemoryRows()
        self._tables = tables
        self._known: dict[bytes, Head] = {}

    def head(self, stream: bytes) -> Head | None:
        """Return the head of a conversation."""
        found = self.fresh.heads.get(stream) or self.leaving.heads.get(stream)
        if found is not None:
            return found
        return self._known.get(stream) or self._stored_head(stream)

    def turn(self, stream: bytes, turn: str) -> Turn | None:
        """Return one turn."""
        key = (stream, turn)
        found = self.fresh.turns.get(key) or self.leaving.turns.get(key)
        if found is not None:
            return found
        value = self._tables.row(turn_key(stream, turn))
        return None if value is None else unpack_turn(value)

    def decision(self, stream: bytes, event_id: bytes) -> Decision | None:
        """Return what was decided about an event."""
        key = (stream, event_id)
        found = self.fresh.decisions.get(key) or self.leaving.decisions.get(key)
        if found is not None:
            return found
        value = self._tables.row(decision_key(stream, event_id))
        return None if value is None else unpack_decision(value)

    def cut(self) -> MemoryRows:
        """Take what is to be written; the fold goes on seeing it until `written`."""
        self.leaving, self.fresh = self.fresh, MemoryRows()
        return self.leaving

    def written(self) -> None:
        """Forget what the tables now hold."""
        if len(self._known) > KNOWN_HEADS:
            self._known.clear()
        self._known.update(self.leaving.heads)
        self.leaving = MemoryRows()

    def _stored_head(self, stream: bytes) -> Head | None:
        value = self._tables.head(stream)
        if value is None:
            return None
        stored = unpack_stored(value)
        self._redo(stream, stored)
        self._known[stream] = stored.head
        return stored.head

    def _redo(self, stream: bytes, stored: Stored) -> None:
        """Change again what a head says was changed with it and the table does not hold."""
        missing = [(key, row) for key, row in stored.redo if self._tables.row(key) != row]
        for key, row in missing:
            if stream_of(key)[1] == b"t":
                turn = unpack_turn(row)
                self.fresh.turns[stream, turn.turn] = turn
            else:
                event_id = key[-16:]
                self.fresh.decisions[stream, event_id] = unpack_decision(row)
        if missing:
            self.fresh.heads[stream] = stored.head


Pairs = list[tuple[bytes, bytes]]


def stored(rows: MemoryRows) -> tuple[Pairs, Pairs]:
    """Return keys and values for the heads table and the turns table of what was changed.

    Each head carries the rows of its conversation, so that it may be written before them.
    """
    pairs = [*_pairs(rows)]
    redo: dict[bytes, Pairs] = {stream: [] for stream in rows.heads}
    for key, value in pairs:
        redo[stream_of(key)[0]].append((key, value))
    heads = [
        (stream, pack(Stored(head, tuple(redo[stream])))) for stream, head in rows.heads.items()
    ]
    return heads, pairs


def _pairs(rows: MemoryRows) -> Iterator[tuple[bytes, bytes]]:
    for (stream, turn), row in rows.turns.items():
        yield turn_key(stream, turn), pack(row)
    for (stream, event_id), decision in rows.decisions.items():
        yield decision_key(stream, event_id), pack(decision)
