"""Turns of a conversation: what somebody said, and the place where an answer goes."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Required, TypedDict

from turnlog.errors import UsageError
from turnlog.ids import event_id, new_id
from turnlog.keys import Locator, Subject
from turnlog.producer.fields import DEFAULT_PROJECT, Names, allowed, check_fields, checked_role
from turnlog.producer.large import is_large
from turnlog.producer.transport import Position
from turnlog.producer.writer import Stream, Writer

_APPENDED = "turn.appended"


class TurnFields(TypedDict, total=False):
    """Everything that `Producer.turn` takes; org, conversation and text must be given.

    Keys:
        org: must be named by the producer's credential.
        project: `default` when left out.
        user: who acts.
        conversation: any text, see `RunFields`.
        text: what was said.
        raw: the same as bytes, where the wire had another form.
        role: `user` when left out.
        name: name of the speaker or tool.
        turn: id of the turn; made when left out.
        parent_turn: turn that it follows; left out, the leaf at the time the log decides.
        expected_last_seq: turn_seq seen last; another one refuses the append.
        leaf_version: version of the leaf seen; the leaf moves only when it still holds.
        idempotency_key: the same key twice is the same turn.
        correlation_id: groups events across runs and services.
        causation_id: what caused the turn.
        traceparent: W3C trace context.
    """

    org: Required[str]
    project: str
    user: str
    conversation: Required[str]
    text: Required[str]
    raw: bytes
    role: str
    name: str
    turn: str
    parent_turn: str
    expected_last_seq: int
    leaf_version: int
    idempotency_key: str
    correlation_id: str
    causation_id: str
    traceparent: str


class Turn(NamedTuple):
    """An accepted turn: its id and where its event is.

    Whether the conversation takes it is decided by the fold, in log order (DESIGN.md section 4).
    """

    turn: str
    position: Position


async def append_turn(writer: Writer, given: TurnFields) -> tuple[str, asyncio.Future[Position]]:
    """Hand over a turn with a text of its own; return its id and the acknowledgement to come.

    Raises:
        UsageError: a field is missing, unknown or of the wrong type, or the org is not allowed.
        TooLarge: the text does not fit a frame.
    """
    fields: Mapping[str, Any] = given
    _check(fields)
    keys = writer.grant
    org, project = allowed(keys, fields["org"], fields.get("project", DEFAULT_PROJECT))
    names = Names(keys.id_key(org))
    shared = {
        "org": org,
        "project": project,
        "conversation": names.id("conversation", fields["conversation"]),
        "user": names.id("user", fields.get("user", "")),
        "correlation_id": names.value("correlation_id", fields.get("correlation_id", "")),
        "causation_id": names.value("causation_id", fields.get("causation_id", "")),
        "traceparent": names.value("traceparent", fields.get("traceparent", "")),
    }
    key = fields.get("idempotency_key", "")
    turn = names.id("turn", fields.get("turn", "")) or _turn_id(keys.id_key(org), key)
    own = {
        "turn": turn,
        "role": fields.get("role", "user"),
        "name": names.value("name", fields.get("name", "")),
        "parent_turn": names.id("turn", fields.get("parent_turn", ""), "parent_turn") or None,
        "expected_last_seq": fields.get("expected_last_seq"),
        "leaf_version": fields.get("leaf_version"),
        "may_repeat": bool(key),
    }
    content: dict[str, Any] = {"text": fields["text"]}
    if fields.get("raw"):
        content["raw"] = fields["raw"]
    if names.source:
        content["source"] = names.source
    return turn, await _spoken(writer, shared | own, content, key or turn)


async def input_turn(writer: Writer, run: Stream, text: str, role: str) -> asyncio.Future[Position]:
    """Hand over the turn that a run answers.

    Args:
        writer: writes it.
        run: the run's events.
        text: what was said.
        role: who said it.
    """
    shared, turn = run.fields, new_id("turn")
    subject, locator = _begun(writer, shared, turn)
    tree, day, gen = locator
    located = {"key_tree": tree, "key_day": day, "key_gen": gen}
    stream = run.beside({"run": "", "turn": turn, "writer_epoch": 0, **located}, turn)
    own = {
        "event_id": event_id(shared["org"], shared["conversation"], _APPENDED, turn),
        "occurred_at_us": _now_us(),
        "role": role,
    }
    sealer = stream.sealer(writer.grant.data_key(locator, subject))
    way, content = stream.way(_APPENDED), {"text": text}
    if is_large(content):
        return await stream.hand_over_large(way, _APPENDED, own, content, sealer)
    return stream.hand_over(way, _APPENDED, own, content, sealer)


def answer_turn(run: Stream) -> asyncio.Future[Position]:
    """Hand over the turn that names a run as its answer: no text, no status (DESIGN.md section 4).

    Args:
        run: the run's events.
    """
    org, run_id, turn = (run.fields[name] for name in ("org", "run", "turn"))
    stream = run.beside({"writer_epoch": 0}, turn)
    own = {
        "event_id": event_id(org, run_id, _APPENDED, turn),
        "occurred_at_us": _now_us(),
        "role": "assistant",
        "answer_run": run_id,
    }
    return stream.hand_over(stream.way(_APPENDED), _APPENDED, own, None, None)


async def _spoken(
    writer: Writer, body: dict[str, Any], content: Mapping[str, Any], natural_id: str
) -> asyncio.Future[Position]:
    subject, locator = _begun(writer, body, body["turn"])
    body["event_id"] = event_id(body["org"], body["conversation"], _APPENDED, natural_id)
    body["occurred_at_us"] = _now_us()
    if is_large(content):
        return await writer.append_large(_APPENDED, body, content, subject, locator)
    return writer.append(_APPENDED, body, content, subject, locator)


def _begun(writer: Writer, body: Mapping[str, Any], turn: str) -> tuple[Subject, Locator]:
    """Return a turn that begins now as the subject of a key, and its key locator."""
    org, user, conversation = (body[name] for name in ("org", "user", "conversation"))
    locator = writer.grant.begin(
        org, body["project"], user=user, conversation=conversation, subject_id=turn, kind="t"
    )
    return Subject(org, user, conversation, turn, "t"), locator


def _turn_id(id_key: bytes, idempotency_key: str) -> str:
    """Make a turn id; a repeat of an idempotency key gives the same one."""
    if not idempotency_key:
        return new_id("turn")
    # The colon makes it no id, so that it is always keyed with the org's id key.
    return Names(id_key).id("turn", f"key:{idempotency_key}")


def _check(fields: Mapping[str, Any]) -> None:
    check_fields(fields, TurnFields, "a turn")
    if not fields["conversation"]:
        raise UsageError("a turn needs a conversation")
    checked_role(fields.get("role", "user"))


def _now_us() -> int:
    return time.time_ns() // 1000
