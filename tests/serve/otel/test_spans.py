"""Spans out of the two forms of OTLP, however they are written and whatever else is in them."""

import base64
import json
from typing import Any

import pytest

from serve.otel.spans import Refused, Span, read_json, read_protobuf
from serve.otel.values import MAX_DEPTH, TOO_DEEP, value_of, whole
from tests.serve.otel.made import TRACE, as_protobuf, event, payload, span, spans_of
from turnlog.errors import DecodeError, TooLarge

GIVEN = {
    "gen_ai.operation.name": "chat",
    "gen_ai.usage.input_tokens": 12,
    "share": 0.5,
    "flag": True,
    "list": ["a", 1],
}


def one(given: Any) -> Any:
    (found,) = spans_of(given)
    return found


def test_both_forms_give_the_same_spans() -> None:
    given = payload(
        span(GIVEN, events=[event("gen_ai.choice", index=0)], status={"code": 2, "message": "no"}),
        span({}, number=2, parent=1),
    )
    from_json = spans_of(given)
    assert from_json == read_protobuf(as_protobuf(given))
    first, second = from_json
    assert isinstance(first, Span)
    assert isinstance(second, Span)
    assert first.attributes == GIVEN
    assert (first.status, first.message, first.scope) == (2, "no", "test")
    assert second.parent == first.id


@pytest.mark.parametrize("body", ["{}", '{"resourceSpans": []}', '{"resource_spans": null}'])
def test_a_request_without_spans_is_one(body: str) -> None:
    assert read_json(body.encode()) == []


@pytest.mark.parametrize("body", ["[]", "1"])
def test_json_that_is_no_export_of_spans_is_refused(body: str) -> None:
    with pytest.raises(DecodeError):
        read_json(body.encode())


@pytest.mark.parametrize(
    "low_high", [5, "5", {"low": 5, "high": 0}, {"low": 5, "high": 0, "unsigned": True}]
)
def test_integers_are_read_however_they_are_written(low_high: Any) -> None:
    assert whole(low_high) == 5


@pytest.mark.parametrize(
    ("given", "number"),
    [
        ({"low": -1, "high": -1, "unsigned": False}, -1),
        ({"low": 466848096, "high": 406528574, "unsigned": True}, 1746026930686364000),
        ("-7", -7),
        (3.0, 3),
        (3.5, None),
        (True, None),
        ("", None),
        ("1e3", None),
        ("9" * 10_000, None),
        ({"low": "1", "high": 0}, None),
        ({}, None),
        ([1], None),
    ],
)
def test_what_is_no_integer_is_none(given: Any, number: int | None) -> None:
    assert whole(given) == number


@pytest.mark.parametrize(
    "trace",
    [
        TRACE,
        TRACE.upper(),
        base64.b64encode(bytes.fromhex(TRACE)).decode(),
        {"type": "Buffer", "data": list(bytes.fromhex(TRACE))},
        list(bytes.fromhex(TRACE)),
    ],
)
def test_ids_are_read_however_they_are_written(trace: Any) -> None:
    found = one(payload(span({}, traceId=trace)))
    assert found.trace == TRACE


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"traceId": None}, "bad_trace_id"),
        ({"traceId": "0" * 32}, "bad_trace_id"),
        ({"traceId": "zz" * 16}, "bad_trace_id"),
        ({"traceId": TRACE[:-2]}, "bad_trace_id"),
        ({"traceId": 42}, "bad_trace_id"),
        ({"traceId": {"type": "Buffer", "data": [256] * 16}}, "bad_trace_id"),
        ({"spanId": ""}, "bad_span_id"),
        ({"spanId": "00" * 8}, "bad_span_id"),
        ({"spanId": "é" * 16}, "bad_span_id"),
        ({"parentSpanId": "abc"}, "bad_parent_span_id"),
        ({"attributes": {"a": 1}}, "bad_attributes"),
        ({"attributes": "a"}, "bad_attributes"),
    ],
)
def test_a_bad_span_is_refused_and_its_neighbours_are_not(change: Any, reason: str) -> None:
    before, bad, after = spans_of(
        payload(span({}, number=1), span({}, number=2) | change, span({}, number=3))
    )
    assert isinstance(before, Span)
    assert isinstance(bad, Refused)
    assert bad.reason == reason
    assert isinstance(after, Span)


@pytest.mark.parametrize("parent", [None, "", {"type": "Buffer", "data": []}, "00" * 8])
def test_a_root_has_no_parent_however_that_is_written(parent: Any) -> None:
    assert one(payload(span({}, parentSpanId=parent))).parent == ""


def test_a_span_is_not_its_own_parent() -> None:
    assert one(payload(span({}, number=1, parent=1))).parent == ""


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ({}, 0),
        ({"resourceSpans": []}, 0),
        ({"resourceSpans": None}, 0),
        ({"resourceSpans": {}}, 1),
        ({"resourceSpans": [None, 1, {}]}, 2),
        ({"resourceSpans": [{"scopeSpans": [None, {"spans": None}, {"spans": [None]}]}]}, 2),
        ({"scopeSpans": [{"spans": [span({})]}]}, 1),
        ({"resource_spans": [{"scope_spans": [{"spans": [span({})]}]}]}, 1),
    ],
)
def test_what_is_no_span_is_refused_one_by_one(body: Any, count: int) -> None:
    assert len(spans_of(body)) == count


@pytest.mark.parametrize("body", [b"", b"[]", b"1", b"{", b"\xff", b'{"a":' * 100_000])
def test_a_body_that_is_no_json_object_is_refused_whole(body: bytes) -> None:
    with pytest.raises(DecodeError):
        read_json(body)


@pytest.mark.parametrize("body", [b"\x0a\xff", b"\x0b", b"\xff" * 20, b"\x0a\x05abc"])
def test_a_body_that_is_no_protobuf_is_refused_whole(body: bytes) -> None:
    with pytest.raises(DecodeError):
        read_protobuf(body)


def test_one_span_with_bytes_that_are_no_text_costs_no_other() -> None:
    whole_body = as_protobuf(payload(span({}, number=1), span({"a": "XYZZY"}, number=2)))
    found = read_protobuf(whole_body.replace(b"XYZZY", b"\xff\xfe\xff\xfe\xff"))
    assert isinstance(found[0], Span)
    assert found[1] == Refused("not_a_span")


def test_a_field_of_the_wrong_wire_type_is_passed_over() -> None:
    # Field 5 of a span, its name, as a varint: what no one wrote is not read.
    raw = bytes.fromhex("0a10" + TRACE + "1208") + bytes(7) + b"\x01" + b"\x28\x07"
    scoped = b"\x12" + bytes((len(raw),)) + raw
    resource = b"\x12" + bytes((len(scoped),)) + scoped
    (found,) = read_protobuf(b"\x0a" + bytes((len(resource),)) + resource)
    assert isinstance(found, Span)
    assert found.name == ""


def test_deep_values_are_cut_and_cost_no_stack() -> None:
    deep: dict[str, Any] = {"stringValue": "end"}
    for _ in range(300):
        deep = {"arrayValue": {"values": [deep]}}
    found, depth = value_of(deep), 0
    while isinstance(found, list):
        found, depth = found[0], depth + 1
    assert (found, depth) == (TOO_DEEP, MAX_DEPTH)


def field(number: int, value: bytes) -> bytes:
    """Return a field of protobuf that has a length."""
    size, length = len(value), bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes((number << 3 | 2, *length, size)) + value


def test_protobuf_that_nests_deeper_than_its_parser_follows_costs_one_span() -> None:
    deep = field(1, b"end")
    for _ in range(500):
        deep = field(5, field(1, deep))
    bad = field(1, bytes.fromhex(TRACE)) + field(2, bytes((1,) * 8))
    bad += field(9, field(1, b"a") + field(2, deep))
    good = field(1, bytes.fromhex(TRACE)) + field(2, bytes((2,) * 8))
    found = read_protobuf(field(1, field(2, field(2, bad) + field(2, good))))
    assert found[0] == Refused("not_a_span")
    assert isinstance(found[1], Span)


def test_a_request_of_too_many_spans_is_refused_before_they_are_read() -> None:
    given = b'{"scopeSpans": [{"spans": [' + b"{}," * 30_000 + b"{}]}]}"
    with pytest.raises(TooLarge):
        read_json(given)
    with pytest.raises(TooLarge):
        read_protobuf(field(1, field(2, field(2, b"") * 30_000)))
    with pytest.raises(DecodeError):
        read_protobuf(b"\x7a\x01\xff" * 250_000 + b"\xff")


def test_a_hundred_thousand_attributes_are_read() -> None:
    found = one(payload(span({f"a.{n}": n for n in range(100_000)})))
    assert len(found.attributes) == 100_000


def test_lone_surrogates_and_nan_cost_no_span() -> None:
    body = json.dumps(payload(span({"a": "\ud800"}, name="\udfff"))).encode()
    (found,) = read_json(body)
    assert isinstance(found, Span)
    assert found.attributes["a"].encode()
    assert found.name.encode()
    given = payload(span({}, attributes=[{"key": "x", "value": {"doubleValue": "NaN"}}]))
    assert str(one(given).attributes["x"]) == "nan"
