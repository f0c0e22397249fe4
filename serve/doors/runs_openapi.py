"""The OpenAPI operations of a run's life cycle."""

from collections.abc import Mapping
from typing import Any

from serve.doors.openapi import refusal
from turnlog.producer.fields import ROLES

_TEXT: Mapping[str, Any] = {"type": "string"}
_COUNT: Mapping[str, Any] = {"type": "integer", "minimum": 0, "maximum": 2_147_483_647}
_BYTES: Mapping[str, Any] = {
    "description": 'Text as UTF-8, {"$base64": ...} as its bytes, any other JSON as JSON.'
}
_RUN_PARAMETER: Mapping[str, Any] = {
    "name": "run",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
}
_KEY_PARAMETER: Mapping[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "The same key is the same run.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 1024},
}
_USED: Mapping[str, Any] = {
    "response": _BYTES,
    "usage": {"type": "object", "description": "Token classes, or the provider's usage block."},
    "model": _TEXT,
    "http_status": {"type": "integer", "minimum": 0, "maximum": 999},
}
_BEGINS: Mapping[str, Any] = {
    **dict.fromkeys(("run", "conversation", "turn", "user", "project", "parent_run"), _TEXT),
    **dict.fromkeys(("provider", "model", "region", "run_group", "idempotency_key"), _TEXT),
    **dict.fromkeys(("method", "host", "path", "content_type"), _TEXT),
    **dict.fromkeys(("correlation_id", "causation_id", "traceparent"), _TEXT),
    "request": _BYTES,
    "input": {"type": "string", "description": "Text of the turn that it answers."},
    "input_role": {"enum": list(ROLES)},
    "streaming": {"type": "boolean"},
    "versions": {"type": "object", "additionalProperties": _TEXT},
}


def _object(properties: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _said(properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an object all of whose fields may be left out, or null, which is the same."""
    null = {"type": "null"}
    return _object({name: {"anyOf": [field, null]} for name, field in properties.items()})


_PIECE: Mapping[str, Any] = {
    "oneOf": [
        _TEXT,
        _said(
            {
                "text": _TEXT,
                "kind": {"enum": ["text", "reasoning", "refusal", "tool_call"]},
                "choice": _COUNT,
                "call": _COUNT,
                "id": _TEXT,
                "name": _TEXT,
            }
        ),
    ]
}
_NULL: Mapping[str, Any] = {"type": "null"}
# A turn needs a conversation.
_IN_A_CONVERSATION_OR_NO_TURN: Mapping[str, Any] = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"conversation": {"type": "string", "minLength": 1}},
            "required": ["conversation"],
        },
        {"type": "object", "properties": {"input": _NULL, "turn": _NULL}},
    ]
}


def _answer(description: str, properties: Mapping[str, Any]) -> Mapping[str, Any]:
    schema = {"type": "object", "properties": properties}
    content = {"application/json": {"schema": schema}}
    return {"description": description, "content": content}


_STOPPED = {
    "404": refusal(404),
    "409": refusal(409, "It has ended, or another process holds it."),
}
_DURABLE = {"durable": {"enum": ["broker", "spool"]}, "position": _TEXT}
_ENDED = {"run": _TEXT, "status": _TEXT, "outcome": {"enum": ["accepted", "duplicate"]}, **_DURABLE}


def _body(schema: Mapping[str, Any], required: bool = True) -> Mapping[str, Any]:
    return {"required": required, "content": {"application/json": {"schema": schema}}}


def _end(name: str, summary: str, properties: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "parameters": [_RUN_PARAMETER],
        "requestBody": _body(_said(properties), required=False),
        "responses": {"200": _answer("The end is durable.", _ENDED), **_STOPPED},
    }


CREATE: Mapping[str, Any] = {
    "operationId": "createRun",
    "summary": "Begin a run",
    "description": "Once it is answered the run is durable, and the model may be called.",
    "parameters": [_KEY_PARAMETER],
    "requestBody": _body(
        {
            **_said(_BEGINS),
            **_IN_A_CONVERSATION_OR_NO_TURN,
        }
    ),
    "responses": {
        "201": _answer("It is begun.", {"run": _TEXT, "turn": _TEXT, **_DURABLE}),
        "200": _answer("It was begun before by the same call.", {"run": _TEXT, "turn": _TEXT}),
        "404": refusal(404, "There is no such project."),
        "409": refusal(409, "Another run has this name or key."),
    },
}
CHUNKS: Mapping[str, Any] = {
    "operationId": "showChunks",
    "summary": "Show pieces of output",
    "description": "A batch, or a streamed body whose pieces count as they come.",
    "parameters": [_RUN_PARAMETER],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "oneOf": [
                        {
                            **_object(
                                {"chunks": {"type": "array", "items": _PIECE}, "first": _COUNT}
                            ),
                            "required": ["chunks"],
                        },
                        {"type": "array", "items": _PIECE},
                    ]
                }
            },
            "application/x-ndjson": {"schema": _TEXT},
            "text/plain": {"schema": _TEXT},
        },
    },
    "responses": {
        "202": _answer("They are noted.", {"run": _TEXT, "chunks": _COUNT, "noted": _COUNT}),
        **_STOPPED,
    },
}
HEARTBEAT: Mapping[str, Any] = {
    "operationId": "heartbeat",
    "summary": "Show a sign of life",
    "description": "Every 5 s while there is nothing else to send.",
    "parameters": [_RUN_PARAMETER],
    "responses": {"200": _answer("It is running.", {"run": _TEXT, "status": _TEXT}), **_STOPPED},
}
COMPLETE = _end("completeRun", "The answer is whole", {**_USED, "finish_reason": _TEXT})
FAIL = _end("failRun", "There is an error", {**_USED, "error": _TEXT, "error_code": _TEXT})
CANCEL = _end("cancelRun", "Somebody stopped it", {k: _USED[k] for k in ("response", "usage")})
