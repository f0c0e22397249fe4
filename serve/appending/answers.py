"""What each event of a batch is answered with."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

ACCEPTED, DUPLICATE, CONFLICT = "accepted", "duplicate", "conflict"
INVALID, ERASED, REFUSED, PENDING = "invalid", "erased", "refused", "pending"


class Answer(NamedTuple):
    """The answer to one event.

    Attributes:
        n: place of the event in its batch, from 0.
        id: what its sender calls it, empty where it has no name.
        status: 201 accepted, 200 duplicate, 202 pending: durable, and its conversation has not yet
            decided about it; 400 invalid, 409 conflict or erased, 413 too large, 503 refused: send
            it again later.
        outcome: accepted, duplicate, pending, conflict, invalid, erased or refused.
        event_id: identity of the event, a UUID; empty where it has none.
        durable: `broker` or `spool`, who vouches for it; empty where nobody does.
        position: `topic/partition/offset`; the offset is -1 while it is in the spool.
        field: name of the field that is wrong.
        detail: why, without any of the event's values.
        turn: id of the turn, of an append.
        decision: what its conversation decided: turn_seq, last_seq, leaf_version.
    """

    n: int
    id: str
    status: int
    outcome: str
    event_id: str = ""
    durable: str = ""
    position: str = ""
    field: str = ""
    detail: str = ""
    turn: str = ""
    decision: Mapping[str, Any] = MappingProxyType({})

    @property
    def is_kept(self) -> bool:
        """Whether the event is in the log, now or before."""
        return self.status < 300

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON, without what is empty."""
        said = {name: value for name, value in self._asdict().items() if value != ""}
        decision = said.pop("decision")
        return {"index": said.pop("n"), **said, **decision}


def invalid(n: int, id: str, field: str, detail: str) -> Answer:
    """Return the answer to an event that cannot be."""
    return Answer(n, id, 400, INVALID, field=field, detail=detail)


def too_large(n: int, id: str, detail: str) -> Answer:
    """Return the answer to an event that is over a limit."""
    return Answer(n, id, 413, INVALID, field="content", detail=detail)


def status_of(answers: Iterable[Answer]) -> int:
    """Return the HTTP status of a batch: 200 where every event is in the log, else 207."""
    return 200 if all(answer.is_kept for answer in answers) else 207
