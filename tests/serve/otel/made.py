"""Spans made for one test each, as OTLP/JSON objects and as protobuf."""

from collections.abc import Mapping
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message

from serve.otel.reading import Call, Reading, read
from serve.otel.spans import Found, Span, read_json
from turnlog.providers.json_text import dumps

AT_US = 1_796_000_000_000_000
TRACE = "0af7651916cd43dd8448eb211c80319c"


def value(given: Any) -> dict[str, Any]:
    """Return an AnyValue."""
    if isinstance(given, bool):
        return {"boolValue": given}
    if isinstance(given, int):
        return {"intValue": str(given)}
    if isinstance(given, float):
        return {"doubleValue": given}
    if isinstance(given, list):
        return {"arrayValue": {"values": [value(item) for item in given]}}
    return {"stringValue": given}


def attributes(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": value(item)} for name, item in given.items()]


def span(given: Mapping[str, Any], number: int = 1, parent: int = 0, **more: Any) -> dict[str, Any]:
    """Return a span of OTLP/JSON with these attributes."""
    made = {
        "traceId": TRACE,
        "spanId": f"{number:016x}",
        "name": "chat",
        "startTimeUnixNano": str(AT_US * 1000),
        "endTimeUnixNano": str((AT_US + 1_500_000) * 1000),
        "attributes": attributes(given),
        **more,
    }
    return made | ({"parentSpanId": f"{parent:016x}"} if parent else {})


def event(name: str, **given: Any) -> dict[str, Any]:
    return {"name": name, "timeUnixNano": "1", "attributes": attributes(given)}


def payload(*spans: Any, scope: str = "test") -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"scope": {"name": scope}, "spans": list(spans)}]}]}


def as_protobuf(given: Mapping[str, Any]) -> bytes:
    """Return a payload in the binary form."""
    request = ExportTraceServiceRequest()
    for one in given["resourceSpans"]:
        resource = request.resource_spans.add()
        for scoped in one["scopeSpans"]:
            scope = resource.scope_spans.add()
            scope.scope.name = scoped["scope"]["name"]
            for item in scoped["spans"]:
                _fill(scope.spans.add(), item)
    return bytes(request.SerializeToString())


def _fill(made: Message, item: Mapping[str, Any]) -> None:
    made.trace_id = bytes.fromhex(item["traceId"])
    made.span_id = bytes.fromhex(item["spanId"])
    made.parent_span_id = bytes.fromhex(item.get("parentSpanId", ""))
    made.name = item["name"]
    made.start_time_unix_nano = int(item["startTimeUnixNano"])
    made.end_time_unix_nano = int(item["endTimeUnixNano"])
    status = item.get("status", {})
    made.status.code, made.status.message = status.get("code", 0), status.get("message", "")
    _fill_attributes(made.attributes, item["attributes"])
    for happened in item.get("events", ()):
        made_event = made.events.add()
        made_event.name, made_event.time_unix_nano = happened["name"], int(happened["timeUnixNano"])
        _fill_attributes(made_event.attributes, happened["attributes"])


def _fill_attributes(made: Any, given: list[dict[str, Any]]) -> None:
    for item in given:
        pair = made.add()
        pair.key = item["key"]
        _fill_value(pair.value, item["value"])


def _fill_value(made: Any, given: Mapping[str, Any]) -> None:
    ((kind, inner),) = given.items()
    if kind == "arrayValue":
        made.array_value.SetInParent()
        for item in inner["values"]:
            _fill_value(made.array_value.values.add(), item)
    elif kind == "intValue":
        made.int_value = int(inner)
    else:
        setattr(made, kind.replace("Value", "_value"), inner)


def spans_of(given: Any) -> list[Found]:
    return read_json(dumps(given).encode())


def reading(given: Mapping[str, Any], *events: Any, **more: Any) -> Reading:
    """Return what a span of these attributes says."""
    (found,) = spans_of(payload(span(given, events=list(events), **more)))
    assert isinstance(found, Span)
    return read(found, bytes(32), AT_US)


def call(given: Mapping[str, Any], *events: Any, **more: Any) -> Call:
    """Return the call that a span of these attributes is."""
    found = reading(given, *events, **more).call
    assert found is not None
    return found


def used(given: Mapping[str, Any]) -> dict[str, int]:
    """Return the classes that a call with these attributes used."""
    usage = call({"gen_ai.operation.name": "chat", **given}).exchange.usage
    assert usage.quality == "measured", usage
    return {name: count for name, count in usage.classes.items() if count}
