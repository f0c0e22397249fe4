"""What makes an event one of its kind, whose content it has, and what it says. Pure."""

from hashlib import sha256
from typing import Any

import msgpack

from serve.appending.given import Draft, Scope
from turnlog.ids import client_id, event_id, new_id
from turnlog.keys import Subject

# What differs between two tries to say the same.
_UNSAID = frozenset(
    (
        "occurred_at_us",
        "may_repeat",
        "correlation_id",
        "causation_id",
        "traceparent",
        "event_id",
    )
)


def identified(draft: Draft, scope: Scope) -> None:
    """Give an event its identity, in place; see DESIGN.md section 3.

    A run's own events: `{epoch}/{seq}`. Others: what their sender calls them, so that the same name
    is the same event; a turn's name without an id of the turn is the turn's too, as
    `Producer.turn` has it. Without a name each is an event of its own.
    """
    body, type_ = draft.body, draft.kind.type
    if type_ == "turn.appended":
        body["turn"] = body.get("turn") or _turn_id(draft, scope)
    # An answer's turn is its run's (`turnlog.producer.turns.answer_turn`).
    subject = body.get("run") or body["conversation"]
    body["event_id"] = event_id(scope.org, subject, type_, _natural(draft))


def _natural(draft: Draft) -> str:
    body, type_ = draft.body, draft.kind.type
    epoch = body.get("writer_epoch", 0)
    if draft.kind.identity == "beat":
        return f"{epoch}/hb/{body['occurred_at_us']}"
    if epoch:
        return f"{epoch}/{body.get('seq', 0)}"
    if draft.natural:
        return draft.natural
    if type_ == "turn.appended":
        return str(body["turn"])
    return str(body["conversation"]) if type_ == "conversation.created" else new_id("event")


def _turn_id(draft: Draft, scope: Scope) -> str:
    # The colon makes it no id, so that it is always keyed with the org's id key.
    return (
        client_id(f"key:{draft.natural}", scope.id_key, "turn") if draft.natural else new_id("turn")
    )


def subject_of(draft: Draft) -> Subject:
    """Return whose content an event has."""
    body, kind = draft.body, draft.kind.subject
    names = {"t": "turn", "d": "conversation"}
    own = body[names.get(kind, "run")]
    return Subject(body["org"], body.get("user", ""), body.get("conversation", ""), own, kind)


def said_of(draft: Draft, content_mac: bytes) -> bytes:
    """Return a digest of 16 bytes of what an event says, its content as its MAC.

    Two events of one identity that differ in it are a conflict: the second one would not be kept.
    """
    said: list[Any] = [
        (name, draft.body[name]) for name in sorted(draft.body) if name not in _UNSAID
    ]
    said.append(content_mac)
    return sha256(msgpack.packb(said, unicode_errors="surrogatepass")).digest()[:16]
