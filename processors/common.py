"""What the row views share: which fields make a canonical row, and which events are refused."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from turnlog.errors import UsageError
from turnlog.events import TYPES, Event
from turnlog.events.schema import COMMON_FIELDS
from turnlog.events.shapes import shape_body
from turnlog.ids import stream_key

Row = tuple[bytes, bytes, dict[str, Any]]

# Where an event lies, how it came there and what opens it say nothing about what happened.
LEFT_OUT = frozenset(
    {
        "event_id",  # the row key
        "frame",
        "key_tree",
        "key_day",
        "key_gen",
        "producer_id",
        "producer_epoch",
        "producer_seq",
        "may_repeat",
    }
)
# In these fields 0 is another value than none.
NULLABLE = frozenset(
    field.name for kind in TYPES.values() for field in kind.fields if isinstance(field.type, list)
)
# What tells a repeat of an event from another event under the same id (DESIGN.md section 3).
IDENTITY = (
    "org",
    "project",
    "user",
    "conversation",
    "run",
    "turn",
    "type",
    "writer_epoch",
    "seq",
    "content_mac",
)


def shaped(event: Event) -> dict[str, Any] | None:
    """Return the body with every content-free value in its shape (law 5).

    A value outside its shape reads `other`. None where an id has not the form of one (such an
    event names nothing that could be found again) or a number is out of bounds (sums would not
    hold it): it is refused.
    """
    body = dict(event.body)
    try:
        shape_body(TYPES[event.type], body)
    except UsageError:
        return None
    return body if body["org"] else None


def canonical_row(event: Event) -> Row | None:
    """Return `(stream key, event_id, row)` of an event; None where it is refused.

    Empty values are left out, so that a field which a later schema version adds changes no digest
    of earlier events.
    """
    body = shaped(event)
    if body is None:
        return None
    row = {name: value for name, value in body.items() if _kept(name, value)}
    if body["time_basis"] == "import":
        row.pop("occurred_at_us", None)
    key = stream_key(body["org"], body["conversation"], body["run"])
    return key, body["event_id"], {"type": event.type, **row}


def _kept(name: str, value: object) -> bool:
    if name in LEFT_OUT or value is None:
        return False
    return name in NULLABLE or value not in ("", b"", 0, {}, [])


def identity(type_: str, body: Mapping[str, Any], numbers: Sequence[str] = ()) -> tuple[Any, ...]:
    """Return what a repeat of an event has in common with it; anything else is a conflict.

    Args:
        type_: type of the event.
        body: its body, or its row in a table, where `content_mac` may be hex already.
        numbers: fields that belong to the identity of the types that have them, because such an
            event says what it says there and seals nothing.

    Returns:
        Values in the order of IDENTITY, `content_mac` as hex, then those of `numbers`.
    """
    mac = body["content_mac"]
    own = {**body, "type": type_, "content_mac": mac if isinstance(mac, str) else mac.hex()}
    has = _own_fields(type_) if numbers else ()
    return tuple(own[name] for name in (*IDENTITY, *(name for name in numbers if name in has)))


@cache
def _own_fields(type_: str) -> frozenset[str]:
    """Return the fields of a type that are not every type's, and who claims a run, in a claim."""
    own = {field.name for field in TYPES[type_].fields[COMMON_FIELDS:]}
    return frozenset(own | {"producer_id"} if type_ == "run.taken_over" else own)
