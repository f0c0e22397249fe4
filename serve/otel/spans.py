"""The spans of an export request: each one read, or refused with a reason, on its own."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError as NotProtobuf  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message

from serve.otel import wire
from serve.otel.values import BadValue, attributes_of, id_of, nanos, pairs_of, whole
from turnlog.errors import DecodeError, TooLarge
from turnlog.providers.json_text import NotJson, loads, mend

TRACE_ID_BYTES, SPAN_ID_BYTES = 16, 8
MAX_SPANS = 20_000
"""Of one request: a collector sends 8,192 by default, and 20 MiB of empty spans are 600,000."""

ERROR = 2
"""Status code of a span that failed (opentelemetry-proto, `Status.StatusCode`)."""

_CODES = {"STATUS_CODE_UNSET": 0, "STATUS_CODE_OK": 1, "STATUS_CODE_ERROR": ERROR}


class Happened(NamedTuple):
    """An event within a span.

    Attributes:
        name: its name.
        at_ns: when, nanoseconds since 1970; 0 where it does not say.
        attributes: by name.
    """

    name: str
    at_ns: int
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Span:
    """A span that can be told from others.

    Attributes:
        trace: trace id, 32 hex digits.
        id: span id, 16 hex digits.
        parent: the parent's id, empty for a root.
        name: its name.
        kind: 0 to 5 as the protocol numbers them.
        start_ns: nanoseconds since 1970; 0 where it does not say.
        end_ns: see start_ns.
        attributes: by name.
        events: in order.
        status: 0 unset, 1 ok, 2 error.
        message: what the status says; content.
        scope: name of the instrumentation.
        resource: attributes of the resource.
    """

    trace: str
    id: str
    parent: str = ""
    name: str = ""
    kind: int = 0
    start_ns: int = 0
    end_ns: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)
    events: Sequence[Happened] = ()
    status: int = 0
    message: str = ""
    scope: str = ""
    resource: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Span({self.trace}/{self.id})"


class Refused(NamedTuple):
    """Something where a span should be, and why it is none; the ids as far as they can be read."""

    reason: str
    trace: str = ""
    id: str = ""


Found = Span | Refused


def read_json(body: bytes) -> list[Found]:
    """Return the spans of an OTLP/JSON body, in order.

    A bare `ResourceSpans` object is taken as a request of one.

    Raises:
        DecodeError: the body is no JSON object.
        TooLarge: it holds over 20,000 spans.
    """
    try:
        value = loads(body)
    except NotJson:
        raise DecodeError("the body is no JSON") from None
    if not isinstance(value, Mapping):
        raise DecodeError("the body is no JSON object")
    given = _either(value, "resourceSpans")
    if given is None and _either(value, "scopeSpans") is not None:
        given = [value]
    return _bounded(found for one in _listed(given) for found in _of_resource(one))


def _bounded(found: Iterable[Found]) -> list[Found]:
    """Return what was found.

    Raises:
        TooLarge: it is more than a request may have.
    """
    taken = list(islice(found, MAX_SPANS + 1))
    if len(taken) > MAX_SPANS:
        raise TooLarge(f"over {MAX_SPANS} spans in one request: send smaller batches")
    return taken


def _either(value: Mapping[str, Any], name: str) -> Any:
    """Return a field under its JSON name or its protobuf name, both of which are allowed."""
    snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
    return value.get(name, value.get(snake))


def _listed(value: Any) -> list[Any]:
    """Return a list as it is; anything else in its place stands as one item that is none."""
    if value is None:
        return []
    return value if isinstance(value, list) else [Refused("not_a_list")]


def _of_resource(value: Any) -> Iterator[Found]:
    if not isinstance(value, Mapping):
        yield value if isinstance(value, Refused) else Refused("not_an_object")
        return
    resource = _lenient(value.get("resource"))
    for scoped in _listed(_either(value, "scopeSpans")):
        if not isinstance(scoped, Mapping):
            yield scoped if isinstance(scoped, Refused) else Refused("not_an_object")
            continue
        scope = scoped.get("scope")
        name = scope.get("name") if isinstance(scope, Mapping) else ""
        for span in _listed(scoped.get("spans")):
            yield _of_object(span, name if isinstance(name, str) else "", resource)


def _lenient(value: Any) -> dict[str, Any]:
    """Return a resource's attributes; one that cannot be read costs no span."""
    try:
        return attributes_of(value.get("attributes")) if isinstance(value, Mapping) else {}
    except BadValue:
        return {}


def _of_object(value: Any, scope: str, resource: Mapping[str, Any]) -> Found:
    if not isinstance(value, Mapping):
        return value if isinstance(value, Refused) else Refused("not_an_object")
    try:
        trace, own, parent = _ids(
            _either(value, "traceId"), _either(value, "spanId"), _either(value, "parentSpanId")
        )
        return _made(value, trace, own, parent, scope, resource)
    except BadValue as error:
        return Refused(str(error), _shown(_either(value, "traceId"), TRACE_ID_BYTES))


def _ids(trace: Any, own: Any, parent: Any) -> tuple[str, str, str]:
    found = id_of(trace, TRACE_ID_BYTES, "bad_trace_id"), id_of(own, SPAN_ID_BYTES, "bad_span_id")
    if not found[0]:
        raise BadValue("bad_trace_id")
    if not found[1]:
        raise BadValue("bad_span_id")
    above = id_of(parent, SPAN_ID_BYTES, "bad_parent_span_id")
    # One that names itself has no parent that could be looked for.
    return *found, "" if above == found[1] else above


def _shown(value: Any, length: int) -> str:
    try:
        return id_of(value, length, "")
    except BadValue:
        return ""


def _made(
    value: Mapping[str, Any],
    trace: str,
    own: str,
    parent: str,
    scope: str,
    resource: Mapping[str, Any],
) -> Span:
    status = value.get("status")
    status = status if isinstance(status, Mapping) else {}
    code, message = status.get("code"), status.get("message")
    return Span(
        trace=trace,
        id=own,
        parent=parent,
        name=_text(value.get("name")),
        kind=whole(value.get("kind")) or 0,
        start_ns=nanos(_either(value, "startTimeUnixNano")),
        end_ns=nanos(_either(value, "endTimeUnixNano")),
        attributes=attributes_of(value.get("attributes")),
        events=[_happened(item) for item in _events(value.get("events"))],
        status=_CODES.get(code, 0) if isinstance(code, str) else whole(code) or 0,
        message=_text(message),
        scope=scope,
        resource=resource,
    )


def _text(value: Any) -> str:
    return mend(value) if isinstance(value, str) else ""


def _events(value: Any) -> list[Mapping[str, Any]]:
    items = value if isinstance(value, list) else []
    return [item for item in items if isinstance(item, Mapping)]


def _happened(value: Mapping[str, Any]) -> Happened:
    return Happened(
        _text(value.get("name")),
        nanos(_either(value, "timeUnixNano")),
        attributes_of(value.get("attributes")),
    )


def read_protobuf(body: bytes) -> list[Found]:
    """Return the spans of an OTLP protobuf body, in order.

    Where the whole does not parse, each span is parsed by itself, and those that do not are
    refused: one bad string costs no batch.

    Raises:
        DecodeError: the body is no protobuf message.
        TooLarge: it holds over 20,000 spans.
    """
    try:
        request = ExportTraceServiceRequest.FromString(body)
    except NotProtobuf:
        return _bounded(_salvaged(body))
    return _bounded(found for one in request.resource_spans for found in _of_message(one))


def _of_message(one: ResourceSpans) -> Iterator[Found]:
    resource = pairs_of(one.resource.attributes)
    for scoped in one.scope_spans:
        for span in scoped.spans:
            yield _of_span(span, scoped.scope.name, resource)


def _salvaged(body: bytes) -> Iterator[Found]:
    for raw in wire.spans(body):
        try:
            yield _of_span(Message.FromString(raw), "", {})
        except NotProtobuf:
            yield Refused("not_a_span")


def _of_span(span: Message, scope: str, resource: Mapping[str, Any]) -> Found:
    try:
        trace, own, parent = _ids(span.trace_id, span.span_id, span.parent_span_id)
    except BadValue as error:
        return Refused(str(error), _shown(span.trace_id, TRACE_ID_BYTES))
    return Span(
        trace=trace,
        id=own,
        parent=parent,
        name=span.name,
        kind=span.kind,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=pairs_of(span.attributes),
        events=[Happened(e.name, e.time_unix_nano, pairs_of(e.attributes)) for e in span.events],
        status=span.status.code,
        message=span.status.message,
        scope=scope,
        resource=resource,
    )
