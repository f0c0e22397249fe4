"""From one span to what the importer writes: pure, no clock and no client.

The request of a run is what the span says of it, the response all the rest: every attribute and
event of the span stands in one of the two frames, as JSON under its own name.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from serve.importer.events import Told
from serve.otel import messages
from serve.otel.attributes import Attributes, first, parsed, plain, text
from serve.otel.kinds import Kind, kind_of, operation_of
from serve.otel.providers import http_status, price_id, provider_of
from serve.otel.spans import ERROR, Happened, Span
from serve.otel.usage import usage_of
from turnlog.ids import client_id, shaped
from turnlog.providers import Exchange, Source
from turnlog.providers.reading import MAX_ERROR_CHARS
from turnlog.providers.source import MAX_NAME_BYTES

FORM = "otlp"
CALLS = frozenset((Kind.CALL, Kind.EMBEDDING))
# Above it a time of 2^53 µs is near, which JSON readers cannot hold; it is the year 2112.
_MAX_US = 1 << 52

_ASKED = (
    "gen_ai.request.model",
    "llm.request.model",
    "ai.model.id",
    "langfuse.observation.model.name",
    "llm.model_name",
)
_ANSWERED = ("gen_ai.response.model", "llm.response.model", "ai.response.model", "llm.model_name")
_RESPONSE_ID = ("gen_ai.response.id", "ai.response.id", "llm.response.id")
_USER = (
    "user.id",
    "enduser.id",
    "langfuse.user.id",
    "ai.telemetry.metadata.userId",
    "traceloop.association.properties.user_id",
    "gen_ai.user.id",
    "llm.user",
)
_CONVERSATION = (
    "gen_ai.conversation.id",
    "session.id",
    "langfuse.session.id",
    "ai.telemetry.metadata.sessionId",
    "traceloop.association.properties.session_id",
    "traceloop.association.properties.conversation_id",
)
_REQUEST = (
    "gen_ai.request.",
    "gen_ai.input.",
    "gen_ai.prompt",
    "gen_ai.system_instructions",
    "gen_ai.tool.definitions",
    "llm.input_messages.",
    "llm.invocation_parameters",
    "llm.prompt",
    "llm.request.",
    "llm.tools",
    "ai.prompt",
    "ai.settings.",
    "ai.schema",
    "ai.value",
    "input.",
    "langfuse.observation.input",
    "langfuse.observation.model.parameters",
    "mlflow.spanInputs",
    "traceloop.entity.input",
)
_REQUEST_EVENTS = (
    "gen_ai.system.message",
    "gen_ai.user.message",
    "gen_ai.assistant.message",
    "gen_ai.tool.message",
    "gen_ai.content.prompt",
)
_FIRST_TOKEN_S = (
    "gen_ai.response.time_to_first_chunk",
    "gen_ai.server.time_to_first_token",
    "gen_ai.client.operation.time_to_first_chunk",
)


class Reading(NamedTuple):
    """What a span says.

    Attributes:
        span: the span.
        kind: what it is.
        call: what is recorded of it; None where it is no call of a model.
    """

    span: Span
    kind: Kind
    call: "Call | None"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a model as the importer writes it."""

    exchange: Exchange
    told: Told


def read(span: Span, id_key: bytes, at_us: int) -> Reading:
    """Return what a span says.

    Args:
        span: the span.
        id_key: the org's, for ids of users that are none.
        at_us: when it was received, for spans without a time.
    """
    kind = kind_of(span)
    if kind not in CALLS:
        return Reading(span, kind, None)
    told = _told(span, id_key)
    return Reading(span, kind, Call(_exchange(span, kind, told, at_us), told))


def without_content(call: Call) -> Call:
    """Return a call of which only what bills is kept: its content does not fit a frame."""
    bare = replace(
        call.exchange.source, request=b'{"too_large":true}', response=b'{"too_large":true}'
    )
    exchange = replace(call.exchange, source=bare, choices=[], message=None, error="")
    return Call(replace(exchange, warnings=[*exchange.warnings, "content_too_large"]), call.told)


def source_id(trace: str, span: str) -> str:
    """Return what every id of a span's run is derived from."""
    return f"otlp/{trace}/{span}"


def _exchange(span: Span, kind: Kind, told: Told, at_us: int) -> Exchange:
    attributes = span.attributes
    asked = _asked(attributes)
    model = text(attributes, *_ANSWERED) or asked
    choices, finish = messages.answered(span)
    status, code = _outcome(span)
    source = _source(span, told)
    booked_us = told.ended_us if told.ended_us is not None else at_us
    usage = usage_of(
        attributes, kind is Kind.EMBEDDING, price_id(attributes), (model, asked), booked_us
    )
    return Exchange(
        source=source,
        form=FORM,
        model=model,
        request_model=asked or model,
        streaming=source.streaming,
        status=status,
        finish_reason=_finish_reason(attributes) or finish,
        error_code=code,
        error=_error(span)[:MAX_ERROR_CHARS] if status != "completed" else "",
        response_id=text(attributes, *_RESPONSE_ID),
        choices=choices,
        chunks=[],
        usage=usage,
        message=messages.asked(span),
        warnings=[] if told.ended_us is not None else ["no_time"],
    )


def _asked(attributes: Attributes) -> str:
    """Return the model asked for; a call that failed has it in OpenInference's parameters alone."""
    if named := text(attributes, *_ASKED):
        return named
    parameters = parsed(attributes.get("llm.invocation_parameters"))
    return text(parameters, "model") if isinstance(parameters, dict) else ""


def _source(span: Span, told: Told) -> Source:
    attributes = span.attributes
    request, response = _bodies(span)
    conversation = text(attributes, *_CONVERSATION)
    return Source(
        id=source_id(span.trace, span.id),
        file=conversation if len(conversation.encode()) <= MAX_NAME_BYTES else "",
        n=0,
        provider=provider_of(attributes),
        method=text(attributes, "http.request.method"),
        host=text(attributes, "server.address"),
        path=text(attributes, "url.path"),
        status=http_status(attributes),
        streaming=_streaming(attributes) or told.ttft_us is not None,
        framing="",
        content_type="",
        request_content_type="application/json",
        request=request,
        response=response,
        response_bytes=None,
    )


def _streaming(attributes: Attributes) -> bool:
    said = first(attributes, "gen_ai.request.stream", "gen_ai.is_streaming", "llm.is_streaming")
    return said in (True, "true", "True") or operation_of(attributes) == "doStream"


def _bodies(span: Span) -> tuple[bytes, bytes]:
    """Return a span cut in two: what was asked, and everything else."""
    attributes = span.attributes.items()
    asked = {name: value for name, value in attributes if name.startswith(_REQUEST)}
    events = [event for event in span.events if event.name in _REQUEST_EVENTS]
    rest = {
        "name": span.name,
        "kind": span.kind,
        "scope": span.scope,
        "start_ns": span.start_ns,
        "end_ns": span.end_ns,
        "status": {"code": span.status, "message": span.message},
        "attributes": {name: value for name, value in attributes if name not in asked},
        "events": _listed(event for event in span.events if event.name not in _REQUEST_EVENTS),
        "resource": dict(span.resource),
    }
    return _json({"attributes": asked, "events": _listed(events)}), _json(rest)


def _listed(events: Iterable[Happened]) -> list[dict[str, Any]]:
    return [
        {"name": event.name, "at_ns": event.at_ns, "attributes": dict(event.attributes)}
        for event in events
    ]


def _json(value: Mapping[str, Any]) -> bytes:
    """Return JSON that does not depend on the order in which attributes came."""
    encoded = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return encoded.encode("utf-8", "replace")


def _told(span: Span, id_key: bytes) -> Told:
    attributes = span.attributes
    began = _micros(span.start_ns)
    ended = _micros(span.end_ns)
    ended = began if ended is None else ended
    total = ended - began if began is not None and ended is not None else None
    user, replaced = _user(attributes, id_key)
    return Told(
        began_us=began,
        ended_us=ended,
        ttft_us=_ttft_us(span, began),
        total_us=total if total is not None and total >= 0 else None,
        user=user,
        place=2 * (began if began is not None else ended or 0),
        describes=_describes(attributes, span.resource),
        trace={
            "correlation_id": span.trace,
            "traceparent": f"00-{span.trace}-{span.id}-01",
        },
        replaced=replaced,
    )


def _micros(nanos: int) -> int | None:
    micros = nanos // 1000
    return micros if 0 < micros < _MAX_US else None


def _user(attributes: Attributes, id_key: bytes) -> tuple[str, dict[str, str]]:
    given = plain(first(attributes, *_USER))
    if not given or len(given.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        return "", {}
    stored = client_id(given, id_key, "user")
    return stored, {} if stored == given else {"user": given}


def _describes(attributes: Attributes, resource: Attributes) -> dict[str, Any]:
    """Return region and versions in their shapes; what they were stands in the response."""
    region = text(attributes, "cloud.region", "aws.region") or text(resource, "cloud.region")
    named = text(attributes, "langfuse.observation.prompt.name", "langfuse.prompt.name")
    version = first(attributes, "langfuse.observation.prompt.version", "langfuse.prompt.version")
    prompt = f"{named}@{plain(version)}" if named and version is not None else named
    return {
        "region": shaped(region),
        "versions": {"prompt": shaped(prompt)} if prompt else {},
    }


def _ttft_us(span: Span, began_us: int | None) -> int | None:
    attributes = span.attributes
    seconds = first(attributes, *_FIRST_TOKEN_S)
    if (found := _scaled(seconds, 1_000_000)) is not None:
        return found
    if (found := _scaled(attributes.get("ai.response.msToFirstChunk"), 1000)) is not None:
        return found
    at_us = _time_of(attributes.get("langfuse.observation.completion_start_time"))
    return at_us - began_us if at_us and began_us and at_us >= began_us else None


def _scaled(value: Any, factor: int) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Of a day at most: more is another unit, or no time at all.
    return round(value * factor) if 0 <= value * factor <= 86_400_000_000 else None


def _time_of(value: Any) -> int | None:
    said = parsed(value)
    try:
        at = datetime.fromisoformat(said) if isinstance(said, str) else None
    except ValueError:
        return None
    if at is None or at.tzinfo is None:
        return None
    return int(at.astimezone(UTC).timestamp() * 1_000_000)


def _outcome(span: Span) -> tuple[str, str]:
    """Return the terminal status and the error code."""
    kind = plain(span.attributes.get("error.type"))
    status = http_status(span.attributes)
    if span.status != ERROR and not kind and status < 400:
        return "completed", ""
    if "cancel" in kind.lower():
        return "cancelled", "cancelled"
    if status >= 400:
        return "failed", f"http_{status}"
    return "failed", shaped(kind) or "provider_error"


def _error(span: Span) -> str:
    """Return what went wrong: the status's message, else the exception's."""
    raised = (e.attributes for e in span.events if e.name == "exception")
    return span.message or next((plain(found.get("exception.message")) for found in raised), "")


def _finish_reason(attributes: Attributes) -> str:
    said = parsed(first(attributes, "gen_ai.response.finish_reasons", "ai.response.finishReason"))
    if isinstance(said, list):
        said = next((one for one in said if one), "")
    return plain(said or first(attributes, "gen_ai.response.finish_reason", "llm.finish_reason"))
