"""The fold of conversations: `(rows, event) -> outcome`. No I/O, no clock, no client.

Log order is the arbiter. An append is decided against the state that the events before it left,
and every replay decides the same. Imports are the exception: they bring their own turn_seq, and the
tree that they make does not depend on the order in which they arrive.

An event changes a bounded number of rows, however long the conversation is: its own turn and
decision, the parent's row, the head. An import that arrives out of order also walks down from the
leaf to its place.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from processors.conversation_rows import (
    Created,
    Decision,
    Head,
    Locator,
    MemoryRows,
    Refusal,
    Row,
    Rows,
    Turn,
    canonical_rows,
)
from turnlog.errors import Conflict
from turnlog.events import Event
from turnlog.ids import event_id as identity
from turnlog.ids import stream_key

MAX_PARTICIPANTS = 100
CREATED = "conversation.created"
APPENDED = "turn.appended"
# Known types of the topic that this fold does not decide: they wait in the dead letters.
UNSUPPORTED = frozenset(
    (
        "turn.edited",
        "turn.regenerated",
        "leaf.selected",
        "conversation.forked",
        "conversation.renamed",
        "conversation.deleted",
        "conversation.restored",
    )
)


class Place(Protocol):
    """Where a record stands in `turnlog.turns`."""

    @property
    def partition(self) -> int:
        """Return the partition."""

    @property
    def offset(self) -> int:
        """Return the offset."""


class Outcome(NamedTuple):
    """What one event does.

    Attributes:
        stream: the conversation's stream key.
        head: the head after the event; None in a dead letter.
        turns: the rows that the event changed, its own first. A repeat changes none and names its
            own row again, so that outputs are given again.
        decision: what was decided about the event, now or at its first occurrence.
        changed: whether rows are to be written.
        own_frame: whether the event's frame is the content of what it made; false for a repeat that
            was sealed under another key.
        dead: why the event goes to the dead letters, "" if it does not.
    """

    stream: bytes
    head: Head | None = None
    turns: tuple[Turn, ...] = ()
    decision: Decision | None = None
    changed: bool = False
    own_frame: bool = False
    dead: str = ""


def fold(rows: Rows, event: Event, place: Place) -> Outcome:
    """Decide one event against what the rows hold.

    Args:
        rows: the state before the event.
        event: any event of `turnlog.turns`.
        place: where it stands; offsets of one conversation grow.
    """
    body = event.body
    stream = stream_key(body["org"], body.get("conversation", ""), body.get("run", ""))
    misplaced = _misplaced(event)
    if misplaced:
        return Outcome(stream, dead=misplaced)
    head = rows.head(stream) or Head(body["org"], body["conversation"])
    draft = _Draft(rows, stream, head)
    return (_create if event.type == CREATED else _append)(draft, body, place)


def fold_all(events: Iterable[tuple[Event, Place]]) -> Iterator[Row]:
    """Fold a log and yield the canonical rows of every conversation in it.

    Args:
        events: events with their places, those of one partition in the order of their offsets.
    """
    rows = MemoryRows()
    for event, place in events:
        apply(rows, fold(rows, event, place), event.body["event_id"])
    turns: dict[bytes, list[Turn]] = {}
    decisions: dict[bytes, list[tuple[bytes, Decision]]] = {}
    for (stream, _), turn in rows.turns.items():
        turns.setdefault(stream, []).append(turn)
    for (stream, event_id), decision in rows.decisions.items():
        decisions.setdefault(stream, []).append((event_id, decision))
    for stream, head in rows.heads.items():
        yield from canonical_rows(stream, head, turns.get(stream, ()), decisions.get(stream, ()))


def apply(rows: MemoryRows, outcome: Outcome, event_id: bytes) -> None:
    """Write what an event changed."""
    if not outcome.changed or outcome.head is None:
        return
    rows.heads[outcome.stream] = outcome.head
    for turn in outcome.turns:
        rows.turns[outcome.stream, turn.turn] = turn
    if outcome.decision is not None:
        rows.decisions[outcome.stream, event_id] = outcome.decision


def refusal_body(body: Mapping[str, Any], decision: Decision) -> dict[str, Any]:
    """Return the `append.refused` event of a refused append; a replay gives the same.

    Its time is the append's: the fold has no clock.

    Args:
        body: the refused append, at the place where it was refused.
        decision: what was decided, with a refusal.
    """
    refused = decision.refused or Refusal("", None, 0, None, 0)
    refused_id: bytes = body["event_id"]
    conversation = body["conversation"]
    copied = ("org", "conversation", "project", "turn", "user", "correlation_id", "traceparent")
    return {name: body[name] for name in (*copied, "occurred_at_us", "time_basis")} | {
        "event_id": identity(body["org"], conversation, "append.refused", refused_id.hex()),
        "causation_id": refused_id.hex(),
        "refused_event_id": refused_id,
        "refused_type": APPENDED,
        "refused_topic": "turnlog.turns",
        "refused_partition": decision.partition,
        "refused_offset": decision.offset,
        "reason": refused.reason,
        "expected_last_seq": refused.expected_last_seq,
        "last_seq": refused.last_seq,
        "expected_leaf_version": refused.expected_leaf_version,
        "current_leaf_version": refused.leaf_version,
    }


def _misplaced(event: Event) -> str:
    """Return why an event cannot be folded here at all, "" if it can."""
    if event.type in UNSUPPORTED:
        return "unsupported"
    if event.type not in (CREATED, APPENDED):
        return "wrong_topic"
    if not event.body["conversation"]:
        return "no_conversation"
    if event.type == APPENDED and not event.body["turn"]:
        return "no_turn"
    import_seq = event.body.get("import_seq")
    return "import_seq" if import_seq is not None and import_seq < 1 else ""


class _Draft:
    """Rows as they will be: what was changed so far over what is stored."""

    def __init__(self, rows: Rows, stream: bytes, head: Head) -> None:
        self.rows = rows
        self.stream = stream
        self.head = head
        self.turns: dict[str, Turn] = {}

    def turn(self, turn: str) -> Turn:
        found = self.turns.get(turn) or self.rows.turn(self.stream, turn)
        if found is None:
            raise Conflict("a conversation names a turn that has no row")
        return found

    def put(self, turn: Turn) -> None:
        self.turns[turn.turn] = turn

    def youngest(self, parent: str) -> str:
        return self.turn(parent).last_child if parent else self.head.last_root

    def set_youngest(self, parent: str, child: str) -> None:
        if parent:
            self.put(self.turn(parent)._replace(last_child=child))
        else:
            self.head = self.head._replace(last_root=child)

    def link(self, turn: Turn, parent: str) -> None:
        """Make a turn the youngest child of a parent, "" for a root."""
        self.put(turn._replace(parent=parent, older_sibling=self.youngest(parent)))
        self.set_youngest(parent, turn.turn)

    def unlink(self, turn: Turn) -> None:
        """Take a turn out of its parent's children."""
        youngest = self.youngest(turn.parent)
        if youngest == turn.turn:
            self.set_youngest(turn.parent, turn.older_sibling)
            return
        sibling = self.turn(youngest)
        while sibling.older_sibling != turn.turn:
            sibling = self.turn(sibling.older_sibling)
        self.put(sibling._replace(older_sibling=turn.older_sibling))

    def move_leaf(self, turn: Turn) -> None:
        """Make a turn the leaf; its version is the turn's turn_seq, or one more than it was.

        Two imported turns with the same turn_seq share a version, so that it does not tell which of
        them came first.
        """
        head, seq = self.head, turn.turn_seq
        same = head.leaf and head.leaf_version == seq == self.turn(head.leaf).turn_seq
        version = seq if seq > head.leaf_version or same else head.leaf_version + 1
        self.head = head._replace(leaf=turn.turn, leaf_version=version)

    def acted(self, user: str, offset: int) -> None:
        """Note who acted and which offset is applied."""
        head = self.head._replace(applied=offset)
        if user and user not in head.participants:
            everyone = sorted((*head.participants, user))
            head = head._replace(
                participants=tuple(everyone[:MAX_PARTICIPANTS]),
                more_participants=head.more_participants or len(everyone) > MAX_PARTICIPANTS,
            )
        self.head = head


def _create(draft: _Draft, body: Mapping[str, Any], place: Place) -> Outcome:
    held = draft.head.created
    if held is not None:
        return _repeat(draft, body, place, held)
    if place.offset <= draft.head.applied:
        return Outcome(draft.stream, dead="stale_offset")
    draft.acted(body["user"], place.offset)
    created = Created(source_ref=body["source_ref"], **_common(body))
    head = draft.head._replace(created=created)
    return Outcome(draft.stream, head, changed=True, own_frame=True)


def _append(draft: _Draft, body: Mapping[str, Any], place: Place) -> Outcome:
    decided = draft.rows.decision(draft.stream, body["event_id"])
    if decided is not None and decided.refused is not None:
        return _repeat(draft, body, place, decided, decided)
    held = draft.rows.turn(draft.stream, decided.turn if decided else body["turn"])
    if held is not None:
        return _repeat(draft, body, place, held, decided or Decision(held.turn))
    if place.offset <= draft.head.applied:
        return Outcome(draft.stream, dead="stale_offset")
    refused = _refusal(draft, body)
    draft.acted("" if refused else body["user"], place.offset)
    return _refuse(draft, body, refused, place) if refused else _accept(draft, body, place)


def _refusal(draft: _Draft, body: Mapping[str, Any]) -> Refusal | None:
    """Return why an append is refused. An import and a branch from a known turn never are."""
    head, parent, expected = draft.head, body["parent_turn"], body["expected_last_seq"]
    reason = ""
    if body["import_seq"] is not None:
        return None
    if parent and draft.rows.turn(draft.stream, parent) is None:
        reason = "no_parent"
    elif parent is None and expected not in (None, head.last_seq):
        reason = "conflict"
    if not reason:
        return None
    return Refusal(reason, expected, head.last_seq, body["leaf_version"], head.leaf_version)


def _refuse(draft: _Draft, body: Mapping[str, Any], refused: Refusal, place: Place) -> Outcome:
    decision = Decision(
        turn=body["turn"],
        refused=refused,
        project=body["project"],
        user=body["user"],
        content_mac=body["content_mac"],
        locator=_locator(body),
        partition=place.partition,
        offset=place.offset,
    )
    head = draft.head._replace(refused=draft.head.refused + 1)
    return Outcome(draft.stream, head, decision=decision, changed=True)


def _accept(draft: _Draft, body: Mapping[str, Any], place: Place) -> Outcome:
    turn = Turn(
        turn=body["turn"],
        turn_seq=body["import_seq"] or draft.head.last_seq + 1,
        role=body["role"],
        name=body["name"],
        run=body["answer_run"],
        import_seq=body["import_seq"],
        partition=place.partition,
        offset=place.offset,
        **_common(body),
    )
    _PLACE[_way(body)](draft, turn, body)
    head = draft.head
    head = head._replace(last_seq=max(head.last_seq, turn.turn_seq), turns=head.turns + 1)
    own = draft.turns.pop(turn.turn)
    changed = (own, *draft.turns.values())
    return Outcome(draft.stream, head, changed, Decision(turn.turn), changed=True, own_frame=True)


def _way(body: Mapping[str, Any]) -> str:
    if body["import_seq"] is not None:
        return "import"
    return "append" if body["parent_turn"] is None else "branch"


def _follow(draft: _Draft, turn: Turn, body: Mapping[str, Any]) -> None:
    """Append to the leaf; the leaf moves unless the writer asked for another version of it."""
    draft.link(turn, draft.head.leaf)
    if body["leaf_version"] in (None, draft.head.leaf_version):
        draft.move_leaf(turn)


def _branch(draft: _Draft, turn: Turn, body: Mapping[str, Any]) -> None:
    """Add a sibling; the leaf moves only with its present version, or where there is none yet."""
    draft.link(turn, body["parent_turn"])
    if not draft.head.leaf or body["leaf_version"] == draft.head.leaf_version:
        draft.move_leaf(turn)


def _insert(draft: _Draft, turn: Turn, body: Mapping[str, Any]) -> None:
    """Put an imported turn where its turn_seq belongs on the path from the leaf down.

    Near the leaf it costs nothing; a turn that comes late walks as far as it comes late.
    """
    leaf = draft.head.leaf
    if not leaf or _order(draft.turn(leaf)) < _order(turn):
        draft.link(turn, leaf)
        draft.move_leaf(turn)
        return
    above = draft.turn(leaf)
    while above.parent and _order(below := draft.turn(above.parent)) > _order(turn):
        above = below
    draft.unlink(above)
    draft.link(turn, above.parent)
    draft.link(draft.turn(above.turn), turn.turn)


_PLACE = {"import": _insert, "append": _follow, "branch": _branch}


def _order(turn: Turn) -> tuple[int, str]:
    """Return the order of imported turns; ids decide where a source gives one number twice."""
    return turn.turn_seq, turn.turn


def _repeat(
    draft: _Draft,
    body: Mapping[str, Any],
    place: Place,
    held: Turn | Created | Decision,
    decision: Decision | None = None,
) -> Outcome:
    """Judge an event whose identity is taken: a repeat gives its outputs again, and no more."""
    if _other(held, body):
        return Outcome(draft.stream, dead="conflict")
    turns = (held,) if isinstance(held, Turn) else ()
    if (held.content_mac or body["content_mac"]) and held.locator != _locator(body):
        # The first beginning wins; this frame lies under another key and is never read.
        return Outcome(draft.stream, draft.head, turns, decision, dead="second_beginning")
    if held.content_mac != body["content_mac"]:
        return Outcome(draft.stream, dead="conflict")
    # The first occurrence wins, for the frame too: only a replay of that very record brings it.
    again = getattr(held, "offset", place.offset) == place.offset
    return Outcome(draft.stream, draft.head, turns, decision, own_frame=again)


def _other(held: Turn | Created | Decision, body: Mapping[str, Any]) -> bool:
    """Say whether what is held differs from the event in anything but its content."""
    return any(getattr(held, mine) != body[theirs] for mine, theirs in _IDENTITY[type(held)])


_WRITTEN = tuple((name, name) for name in ("project", "user"))
_ORDERED = (*_WRITTEN, ("writer_epoch", "writer_epoch"), ("seq", "seq"))
_SPOKEN = (("turn", "turn"), ("role", "role"), ("run", "answer_run"), ("import_seq", "import_seq"))
_IDENTITY: Mapping[type, tuple[tuple[str, str], ...]] = {
    Created: _ORDERED,
    Turn: (*_ORDERED, *_SPOKEN),
    Decision: (*_WRITTEN, ("turn", "turn")),
}


def _common(body: Mapping[str, Any]) -> dict[str, Any]:
    imported = body["time_basis"] == "import"
    return {
        "event_id": body["event_id"],
        "project": body["project"],
        "user": body["user"],
        "content_mac": body["content_mac"],
        "locator": _locator(body),
        "occurred_at_us": None if imported else body["occurred_at_us"],
        "writer_epoch": body["writer_epoch"],
        "seq": body["seq"],
    }


def _locator(body: Mapping[str, Any]) -> Locator:
    return body["key_tree"], body["key_day"], body["key_gen"]
