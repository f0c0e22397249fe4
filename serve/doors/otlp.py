"""OTLP/HTTP: `POST /v1/traces`, as any OpenTelemetry exporter or collector sends it.

https://opentelemetry.io/docs/specs/otlp/#otlphttp. A span that cannot be taken is counted in
`partial_success` and costs no other; what a retry may cure is answered with 429 or 503 and
`Retry-After`, and such a retry adds nothing twice.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from serve.doors.body import read_body
from serve.doors.openapi import refusal
from serve.doors.problem import Problem
from serve.doors.refusals import problem_of
from serve.doors.route import Caller, Role, Route
from serve.doors.server import SERVER
from serve.otel.spans import Found, read_json, read_protobuf
from serve.otel.writing import REJECTED, Outcome, Spans
from turnlog.errors import DecodeError, TurnlogError
from turnlog.producer.fields import DEFAULT_PROJECT, allowed

MAX_INFLATED_BYTES = 20 << 20
"""What the collector's own receiver takes by default."""

RESULTS = "Turnlog-Results"
JSON, PROTOBUF = "application/json", "application/x-protobuf"
_READERS: Mapping[str, Callable[[bytes], list[Found]]] = {
    JSON: read_json,
    PROTOBUF: read_protobuf,
    "application/protobuf": read_protobuf,
}
# google.rpc.Code, which the specification asks for in the body of a refusal.
_INVALID_ARGUMENT, _UNAVAILABLE, _UNKNOWN = 3, 14, 2


async def traces(request: web.Request, caller: Caller) -> web.Response:
    """Take an export request; answer in the media type in which it came."""
    media = request.content_type
    if media not in _READERS:
        detail = f"spans come as {PROTOBUF} or {JSON}"
        raise Problem(415, "media_type", detail, "Content-Type", {"Accept": f"{PROTOBUF}, {JSON}"})
    try:
        outcomes = await _taken(request, caller, media)
    except Problem as problem:
        return _refusal(problem, media)
    except TurnlogError as error:
        return _refusal(problem_of(error), media)
    for outcome in outcomes:
        request.app[SERVER].metrics.event("otlp", outcome.outcome)
    return _answer(outcomes, media, "detail" in request.query)


async def _taken(request: web.Request, caller: Caller, media: str) -> list[Outcome]:
    server = request.app[SERVER]
    body = await read_body(request)
    try:
        found = await asyncio.to_thread(_READERS[media], body)
    except DecodeError as error:
        raise Problem(400, "invalid", str(error)) from None
    if not found:
        return []
    producer = await server.producers.of(caller.org)
    project = caller.project or DEFAULT_PROJECT
    allowed(producer.grant, caller.org, project)
    spans = Spans(server.config, server.redis, producer, caller.org, project)
    return await spans.take(found)


def _answer(outcomes: Sequence[Outcome], media: str, detail: bool) -> web.Response:
    headers = {RESULTS: _counted(outcome.outcome for outcome in outcomes)}
    rejected = [outcome.reason for outcome in outcomes if outcome.outcome == REJECTED]
    said = f"rejected: {_counted(rejected)}" if rejected else ""
    if detail or media == JSON:
        body = _json_answer(len(rejected), said)
        if detail:
            body["turnlog"] = {"spans": [_row(outcome) for outcome in outcomes]}
        return web.Response(body=orjson.dumps(body), content_type=JSON, headers=headers)
    answer = ExportTraceServiceResponse()
    if rejected:
        answer.partial_success.rejected_spans = len(rejected)
        answer.partial_success.error_message = said
    return web.Response(body=answer.SerializeToString(), content_type=media, headers=headers)


def _json_answer(rejected: int, said: str) -> dict[str, Any]:
    """Return the response as ProtoJSON has it: a 64-bit integer is a string."""
    if not rejected:
        return {}
    return {"partialSuccess": {"rejectedSpans": str(rejected), "errorMessage": said}}


def _row(outcome: Outcome) -> dict[str, str]:
    row = {"trace_id": outcome.trace, "span_id": outcome.span, "outcome": outcome.outcome}
    more = {"reason": outcome.reason, "run": outcome.run}
    return row | {name: value for name, value in more.items() if value}


def _counted(words: Iterable[str]) -> str:
    counts = sorted(Counter(words).items())
    return ", ".join(f"{word}={count}" for word, count in counts)


def _refusal(problem: Problem, media: str) -> web.Response:
    """Return a refusal of the whole request as the `google.rpc.Status` that exporters read."""
    code = {400: _INVALID_ARGUMENT, 503: _UNAVAILABLE, 429: _UNAVAILABLE}.get(
        problem.status, _UNKNOWN
    )
    if media == JSON:
        body = orjson.dumps({"code": code, "message": problem.detail})
    else:
        body = _status(code, problem.detail)
    return web.Response(
        body=body, status=problem.status, content_type=media, headers=problem.headers
    )


def _status(code: int, message: str) -> bytes:
    """Return a `google.rpc.Status`: field 1 the code, field 2 the message; by hand, it is two."""
    raw = message.encode()[:120]
    return bytes((0x08, code, 0x12, len(raw))) + raw


_STATUS: Mapping[str, Any] = {
    "type": "object",
    "description": "A `google.rpc.Status`.",
    "properties": {"code": {"type": "integer"}, "message": {"type": "string"}},
    "required": ["code", "message"],
}
_TAKEN: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "partialSuccess": {
            "type": "object",
            "properties": {
                "rejectedSpans": {"type": "string"},
                "errorMessage": {"type": "string"},
            },
        },
        "turnlog": {
            "type": "object",
            "properties": {"spans": {"type": "array", "items": {"type": "object"}}},
        },
    },
}


def _refused(status: int) -> dict[str, Any]:
    """Return a refusal as exporters read it, or as every route has it where none was asked for."""
    said = refusal(status)
    binary = {"schema": {"type": "string", "format": "binary"}}
    return {**said, "content": {**said["content"], JSON: {"schema": _STATUS}, PROTOBUF: binary}}


# OTLP's own rules for numbers, and unknown fields are passed over.
_ANY_OBJECT: Mapping[str, Any] = {"type": "object", "additionalProperties": True}
_OPERATION: Mapping[str, Any] = {
    "operationId": "exportTraces",
    "summary": "Export OpenTelemetry spans (OTLP/HTTP)",
    "description": (
        "Calls of models become runs, turns and usage; other spans are accepted and not recorded. "
        f"Exporters send the same as `{PROTOBUF}` (an ExportTraceServiceRequest) and get their "
        "answer in it."
    ),
    "parameters": [
        {
            "name": "detail",
            "in": "query",
            "required": False,
            "schema": {"type": "string"},
            "description": "Present: the answer is JSON and says what became of each span.",
        }
    ],
    "requestBody": {"required": True, "content": {JSON: {"schema": _ANY_OBJECT}}},
    "responses": {
        "200": {
            "description": "Taken; spans that were not are counted in `partialSuccess`.",
            "headers": {
                RESULTS: {
                    "description": "Spans by what became of them.",
                    "schema": {"type": "string"},
                }
            },
            "content": {
                JSON: {"schema": _TAKEN},
                PROTOBUF: {"schema": {"type": "string", "format": "binary"}},
            },
        },
        **{str(status): _refused(status) for status in (400, 408, 413, 429, 503)},
    },
}

ROUTES = (
    Route(
        "POST",
        "/v1/traces",
        frozenset((Role.PRODUCER, Role.ADMIN)),
        traces,
        _OPERATION,
        MAX_INFLATED_BYTES,
    ),
)
