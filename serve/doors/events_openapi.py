"""The OpenAPI operation of appending events."""

from collections.abc import Mapping
from typing import Any

from serve.appending.catalogue import KINDS
from serve.appending.forms import MAX_EVENTS, MEDIA_TYPES

_TEXT = {"type": "string"}
_ANSWER: Mapping[str, Any] = {
    "type": "object",
    "required": ["index", "status", "outcome"],
    "properties": {
        "index": {"type": "integer", "minimum": 0},
        "id": _TEXT,
        "status": {"type": "integer", "enum": [200, 201, 202, 400, 409, 413, 503]},
        "outcome": {
            "type": "string",
            "enum": [
                "accepted",
                "duplicate",
                "pending",
                "conflict",
                "invalid",
                "erased",
                "refused",
            ],
        },
        "event_id": {"type": "string", "format": "uuid"},
        "durable": {"type": "string", "enum": ["broker", "spool"]},
        "position": _TEXT,
        "field": _TEXT,
        "detail": _TEXT,
        "turn": _TEXT,
        "turn_seq": {"type": "integer"},
        "last_seq": {"type": ["integer", "null"]},
        "leaf_version": {"type": ["integer", "null"]},
    },
}
_RESULTS: Mapping[str, Any] = {
    "type": "object",
    "required": ["results"],
    "properties": {"results": {"type": "array", "items": _ANSWER}},
}
_EXAMPLE: Mapping[str, Any] = {
    "events": [
        {
            "id": "msg-1",
            "type": "turn.appended",
            "conversation": "greetings",
            "content": {"text": "Hello"},
        }
    ]
}


def _answered(description: str) -> Mapping[str, Any]:
    content = {"application/json": {"schema": _RESULTS}}
    return {"description": description, "content": content}


_DESCRIPTION = f"""Up to {MAX_EVENTS} events, each answered for itself: no wrong one fails another.

An event has `type`, and may have `id` (the same id is the same event), `time`, `conversation`,
`run`, `turn`, `user`, `project`, the fields of its type, and `content`, which is stored encrypted
and nowhere else. docs/http.md lists the fields of each type.

Types: {", ".join(f"`{name}`" for name in KINDS)}.

Taken are {", ".join(f"`{name}`" for name in MEDIA_TYPES)}. JSON is a batch as below, a list of
events, or one event. What holds one event (that, a CloudEvent, one Avro object) is answered by the
HTTP status of its answer."""

# An event has no schema here: what is wrong with one is its own answer, and not the request's.
APPEND: Mapping[str, Any] = {
    "operationId": "appendEvents",
    "summary": "Append events",
    "description": _DESCRIPTION,
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "anyOf": [
                        {
                            "type": "object",
                            "required": ["events"],
                            "properties": {"events": {"type": "array"}},
                            "additionalProperties": False,
                        },
                        {"type": "array"},
                    ]
                },
                "example": _EXAMPLE,
            }
        },
    },
    "responses": {
        "200": _answered("Every event is in the log, or the only one was there before."),
        "201": _answered("The only event is accepted."),
        "202": _answered("The only event is durable, and its conversation has not decided yet."),
        "207": _answered("At least one event is not in the log: see its answer."),
        "400": _answered("The only event is invalid, or the body cannot be read."),
        "409": _answered("The only event is another one under a known id, or its key is gone."),
        "413": _answered("The only event, or the body, is too large."),
        "503": _answered("The only event found no room: send it again later."),
    },
}
