"""What the conversation fold keeps: a head a conversation, a row a turn, a row a decision.

Rows are small msgpack arrays. New fields are added at the end with a default, so that a row that an
older worker wrote still reads.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import msgpack

Row = tuple[bytes, bytes, dict[str, Any]]
"""Stream key, row key (an event_id) and canonical row, as `processors.digest` takes them."""

Locator = tuple[bytes, int, int]
"""Where the key of a content lies: tree, day, generation."""


class Created(NamedTuple):
    """The `conversation.created` event that a conversation holds: the first in log order."""

    event_id: bytes
    project: str = ""
    user: str = ""
    source_ref: str = ""
    content_mac: bytes = b""
    locator: Locator = (bytes(16), 0, 0)
    occurred_at_us: int | None = None
    writer_epoch: int = 0
    seq: int = 0


class Head(NamedTuple):
    """A conversation as a whole.

    Attributes:
        last_seq: the highest turn_seq, 0 while there is no turn.
        turns: how many turns there are, siblings included.
        leaf: the turn that the visible path ends in.
        leaf_version: grows whenever the leaf moves; a chain of appends has that of its last turn.
        last_root: the youngest turn without a parent.
        participants: users who acted, sorted; the 100 lowest where there are more.
        more_participants: whether there are more.
        refused: how many appends were refused.
        applied: offset of the last event that changed anything here.
        created: the event that created it, unless that has not come yet.
    """

    org: str
    conversation: str
    last_seq: int = 0
    turns: int = 0
    leaf: str = ""
    leaf_version: int = 0
    last_root: str = ""
    participants: tuple[str, ...] = ()
    more_participants: bool = False
    refused: int = 0
    applied: int = -1
    created: Created | None = None


class Turn(NamedTuple):
    """One turn.

    Children are a chain, because a list would make a sibling cost what all its siblings weigh: the
    parent names its youngest child, and each child the sibling before it.

    Attributes:
        turn_seq: the place in the order of accepted turns, from 1.
        parent: the turn that it follows, "" for a root.
        run: the run whose output it is, "" for a turn with a text of its own.
        import_seq: the turn_seq that an import fixed, None where the fold counted.
        occurred_at_us: None where the source of an import has no time.
        partition: of `turnlog.turns`, with `offset` the place of its event.
    """

    turn: str
    event_id: bytes
    turn_seq: int
    parent: str = ""
    role: str = ""
    name: str = ""
    project: str = ""
    user: str = ""
    run: str = ""
    import_seq: int | None = None
    content_mac: bytes = b""
    locator: Locator = (bytes(16), 0, 0)
    occurred_at_us: int | None = None
    partition: int = -1
    offset: int = -1
    last_child: str = ""
    older_sibling: str = ""
    writer_epoch: int = 0
    seq: int = 0


class Refusal(NamedTuple):
    """Why an append was refused, and against which state."""

    reason: str
    expected_last_seq: int | None
    last_seq: int
    expected_leaf_version: int | None
    leaf_version: int


class Decision(NamedTuple):
    """What the log decided about one event_id, so that a repeat is decided in the same way.

    `refused` is None for an accepted turn, whose own row holds the rest. `partition` and `offset`
    say where the refused append stands.
    """

    turn: str
    refused: Refusal | None = None
    project: str = ""
    user: str = ""
    content_mac: bytes = b""
    locator: Locator = (bytes(16), 0, 0)
    partition: int = -1
    offset: int = -1


class Rows(Protocol):
    """Where rows are read from; what is missing is None."""

    def head(self, stream: bytes) -> Head | None:
        """Return the head of a conversation."""

    def turn(self, stream: bytes, turn: str) -> Turn | None:
        """Return one turn."""

    def decision(self, stream: bytes, event_id: bytes) -> Decision | None:
        """Return what was decided about an event."""


class MemoryRows:
    """Rows in dicts: for a pure fold of a log and for rebuilding one conversation."""

    def __init__(self) -> None:
        self.heads: dict[bytes, Head] = {}
        self.turns: dict[tuple[bytes, str], Turn] = {}
        self.decisions: dict[tuple[bytes, bytes], Decision] = {}

    def head(self, stream: bytes) -> Head | None:
        """Return the head of a conversation."""
        return self.heads.get(stream)

    def turn(self, stream: bytes, turn: str) -> Turn | None:
        """Return one turn."""
        return self.turns.get((stream, turn))

    def decision(self, stream: bytes, event_id: bytes) -> Decision | None:
        """Return what was decided about an event."""
        return self.decisions.get((stream, event_id))


def turn_key(stream: bytes, turn: str) -> bytes:
    """Return the key of a turn's row. Ids hold no zero byte, so keys never run into each other."""
    return stream + b"\0t" + turn.encode()


def decision_key(stream: bytes, event_id: bytes) -> bytes:
    """Return the key of a decision's row."""
    return stream + b"\0e" + event_id


def stream_of(key: bytes) -> tuple[bytes, bytes]:
    """Return the stream of a row's key, and `t` or `e`: what kind of row it is."""
    stream, _, rest = key.partition(b"\0")
    return stream, rest[:1]


class Stored(NamedTuple):
    """A head as it is stored: with the rows that were changed together with it.

    The two tables cannot be written in one step. The head is written first and carries the rows of
    that step, so that nothing is lost and nothing half seen where the rows themselves did not get
    written: `redo` wins over the row that is found under its key.
    """

    head: Head
    redo: tuple[tuple[bytes, bytes], ...] = ()


_packer = msgpack.Packer(use_bin_type=True)


def pack(row: Head | Turn | Decision | Stored) -> bytes:
    """Return a row as msgpack."""
    packed: bytes = _packer.pack(row)
    return packed


def unpack_stored(value: bytes) -> Stored:
    """Return the stored head that `pack` packed."""
    fields, redo = _unpack(value)
    return Stored(_head(fields), redo)


def unpack_head(value: bytes) -> Head:
    """Return the head that `pack` packed on its own."""
    return _head(_unpack(value))


def _head(fields: tuple[Any, ...]) -> Head:
    head = Head(*fields)
    return head._replace(created=head.created and Created(*head.created))


def unpack_turn(value: bytes) -> Turn:
    """Return the turn that `pack` packed."""
    return Turn(*_unpack(value))


def unpack_decision(value: bytes) -> Decision:
    """Return the decision that `pack` packed."""
    turn, refused, *rest = _unpack(value)
    return Decision(turn, None if refused is None else Refusal(*refused), *rest)


def _unpack(value: bytes) -> tuple[Any, ...]:
    fields: tuple[Any, ...] = msgpack.unpackb(value, use_list=False, raw=False)
    return fields


def canonical_rows(
    stream: bytes,
    head: Head,
    turns: Iterable[Turn],
    decisions: Iterable[tuple[bytes, Decision]],
) -> Iterator[Row]:
    """Yield what one conversation holds, one row an event_id.

    Offsets, key locators and the chains of siblings are left out: the first two are coordinates,
    the third follows from the parents.

    Args:
        stream: the conversation's stream key.
        head: its head.
        turns: all its turns.
        decisions: `(event_id, decision)` of all its events; only the refused ones are rows.
    """
    base = {"org": head.org, "conversation": head.conversation}
    if head.created is not None:
        yield stream, head.created.event_id, base | _created_row(head.created)
    for turn in turns:
        yield stream, turn.event_id, base | _turn_row(turn, head)
    for event_id, decision in decisions:
        if decision.refused is not None:
            yield stream, event_id, base | _refused_row(decision, decision.refused)


def _created_row(created: Created) -> dict[str, Any]:
    return {"row": "created"} | _without(created._asdict(), "event_id", "locator")


def _turn_row(turn: Turn, head: Head) -> dict[str, Any]:
    row = _without(turn._asdict(), "event_id", *_TURN_PLACES)
    leaf = {"leaf_version": head.leaf_version} if head.leaf == turn.turn else {}
    return {"row": "turn"} | row | leaf


def _refused_row(decision: Decision, refused: Refusal) -> dict[str, Any]:
    row = _without(decision._asdict(), "refused", "locator", "partition", "offset")
    return {"row": "refused"} | row | refused._asdict()


_TURN_PLACES = ("locator", "partition", "offset", "last_child", "older_sibling")


def _without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in names}


def visible_path(head: Head, turns: Mapping[str, Turn]) -> list[Turn]:
    """Return the chain of parents from the leaf, oldest first."""
    path = []
    at = head.leaf
    while at:
        path.append(turns[at])
        at = turns[at].parent
    return path[::-1]
