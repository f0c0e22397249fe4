"""One partition's share of the unit of work: events are folded in memory until they are written."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack

from processors.conversation_rows import Head, MemoryRows, Turn, pack
from processors.conversations import CREATED, Outcome, apply, fold, refusal_body
from sinks.redis.conversations import (
    APPLIED,
    CREATED_FRAME,
    HEAD,
    frame_field,
    outcome_key,
    turn_field,
)
from streams.batch import Stopped
from streams.conversations.state import State, Tables
from streams.dead import DeadRecord, dead_record
from turnlog.errors import DecodeError, Unavailable, UnknownSchema
from turnlog.events import Event, Record, decode, key_of, record
from turnlog.kafka import partition_of

VIEW = "conversations"
TOPIC = "turnlog.turns"
# A head carries the rows that changed with it: 300 events of the largest ids stay under the
# 950,000 bytes of a record.
MAX_EVENTS = 300
# And their frames are kept until they are written.
MAX_BYTES = 16 << 20
# So many unreadable records with no readable one between them are another fault than theirs.
MAX_UNREADABLE = 1000


class Source(NamedTuple):
    """A record of `turnlog.turns` as it was read."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


class Shown:
    """What of one conversation goes to the read model."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.turns: dict[str, Turn] = {}
        self.frames: dict[bytes, bytes] = {}

    def fields(self) -> dict[bytes, bytes]:
        """Return the fields of the conversation's hash that change."""
        rows = {turn_field(name): pack(turn) for name, turn in self.turns.items()}
        head = {HEAD: pack(self.head), APPLIED: str(self.head.applied).encode()}
        return rows | self.frames | head


class Step:
    """What one partition has to write.

    Attributes:
        events: how many records were folded,
        bytes: and how large they were.
        position: the offset behind the last of them.
        rows: the rows that changed.
        shown: what goes to the read model, by stream.
        outcomes: what was decided about appends, by key in Redis.
        refusals: `append.refused` events.
        dead: dead letters.
    """

    def __init__(self) -> None:
        self.events = 0
        self.bytes = 0
        self.position = 0
        self.rows = MemoryRows()
        self.shown: dict[bytes, Shown] = {}
        self.outcomes: dict[bytes, bytes] = {}
        self.refusals: list[Record] = []
        self.dead: list[DeadRecord] = []

    @property
    def full(self) -> bool:
        """Say whether it should be written before more is folded."""
        return self.events >= MAX_EVENTS or self.bytes >= MAX_BYTES


class Partition:
    """Folds one partition of the topic, without a gap.

    Args:
        tables: rows.
        partitions: how many the topic has, so that a record in another one than its key's is
            refused; 0 does not look.

    Attributes:
        durable: the offset up to which everything is written; None where nothing was committed yet,
            before the first step.
    """

    def __init__(self, tables: Tables, partitions: int = 0) -> None:
        self.state = State(tables)
        self._partitions = partitions
        self.step = Step()
        self.durable: int | None = None
        self._first: int | None = None
        self._next: int | None = None
        self._missing = ""
        self._unreadable = 0

    def expect(self, position: int) -> None:
        """Hear at which offset, the committed one, reading began; records may have come before."""
        if self.durable is None:
            # Not only once a record came: a quiet partition would look like one that is stuck.
            self.durable = position
        if self._first is None:
            self._next = position
        elif self._first > position:
            self._missing = f"{position} to {self._first - 1}"

    def fold(self, source: Source) -> None:
        """Fold one record; what it changes and says waits in the step.

        Raises:
            Unavailable: the records before it were not handed over: retention took them, or
                something between the broker and here lost them.
            Stopped: nothing can be read any more.
        """
        if self._next is not None and source.offset > self._next:
            self._missing = f"{self._next} to {source.offset - 1}"
        if self._missing:
            where = f"{TOPIC}/{source.partition}/{self._missing}"
            raise Unavailable(f"{where} was not handed over")
        if self._first is None:
            self._first = source.offset
        self._next = source.offset + 1
        step = self.step
        step.events += 1
        step.bytes += len(source.value or b"")
        step.position = source.offset + 1
        event = self._event(source)
        if event is None:
            return
        outcome = fold(self.state, event, source)
        apply(self.state.fresh, outcome, event.body["event_id"])
        if outcome.dead:
            self._bury(source, outcome.dead)
        if outcome.head is not None:
            self._show(event, source, outcome, outcome.head)
        if event.body["time_basis"] != "import":
            key = outcome_key(event.body["org"], source.partition, source.offset)
            step.outcomes[key] = msgpack.packb(_said(outcome))

    def cut(self) -> Step:
        """Take the step; the next event begins another."""
        step, self.step = self.step, Step()
        step.rows = self.state.cut()
        return step

    def written(self, step: Step) -> None:
        """Note that a step is durable."""
        self.state.written()
        if not self._missing:
            self.durable = step.position

    def _event(self, source: Source) -> Event | None:
        event, wrong = _read(source, self._partitions)
        self._unreadable = self._unreadable + 1 if wrong else 0
        if self._unreadable >= MAX_UNREADABLE:
            raise Stopped(f"{self._unreadable} records in a row of {TOPIC} cannot be read: {wrong}")
        if wrong:
            self._bury(source, wrong)
        return event

    def _bury(self, source: Source, reason: str) -> None:
        where = (TOPIC, source.partition, source.offset)
        letter = dead_record(VIEW, where, source.key, source.value, reason, headers=source.headers)
        self.step.dead.append(letter)

    def _show(self, event: Event, source: Source, outcome: Outcome, head: Head) -> None:
        shown = self.step.shown.setdefault(outcome.stream, Shown(head))
        shown.head = head
        shown.turns.update((turn.turn, turn) for turn in outcome.turns)
        frame: bytes = event.body["frame"]
        if frame and outcome.own_frame:
            created = event.type == CREATED
            shown.frames[CREATED_FRAME if created else frame_field(event.body["turn"])] = frame
        decision = outcome.decision
        if decision is not None and decision.refused and decision.offset == source.offset:
            refusal = record("append.refused", refusal_body(event.body, decision))
            self.step.refusals.append(refusal)


def _read(source: Source, partitions: int) -> tuple[Event | None, str]:
    """Return the event, or why there is none."""
    try:
        event = decode(source.value or b"")
    except UnknownSchema:
        return None, "unknown_schema"
    except DecodeError:
        return None, "not_an_event"
    if key_of(event.type, event.body) != source.key:
        return None, "key_mismatch"
    if partitions and partition_of(source.key, partitions) != source.partition:
        return None, "partition_mismatch"
    return event, ""


def _said(outcome: Outcome) -> dict[str, Any]:
    """Return what a writer that waits for its append is told."""
    if outcome.head is None:
        return {"status": "dead", "reason": outcome.dead}
    head, decision = outcome.head, outcome.decision
    said: dict[str, Any] = {
        "status": "accepted",
        "last_seq": head.last_seq,
        "leaf": head.leaf,
        "leaf_version": head.leaf_version,
    }
    if decision is not None and decision.refused is not None:
        return said | {"status": "refused", "reason": decision.refused.reason}
    for turn in outcome.turns[:1]:
        said |= {"turn": turn.turn, "turn_seq": turn.turn_seq, "parent": turn.parent}
    return said
