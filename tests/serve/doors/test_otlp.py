"""`POST /v1/traces` as exporters send it, and what is answered."""

import gzip
import json
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from serve.importer.found import Views
from tests.serve.doors.door import Answer, Door, eventually, new_key
from tests.serve.otel.made import as_protobuf, payload, span
from turnlog.apikeys import Role

JSON, PROTOBUF = "application/json", "application/x-protobuf"
CALL = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 5}


@pytest.fixture(scope="module")
def key(door: Door) -> str:
    org = f"otlp-{uuid4().hex[:12]}"
    made = new_key(door.config, org, Role.PRODUCER)
    # Patiently: a stack that has just started has no tables yet.
    Views(door.config, org).runs(["none"])
    eventually(lambda: export(door, made, b"{}").status == 200)
    return made


def export(
    door: Door,
    key: str,
    body: bytes,
    media: str = JSON,
    path: str = "/v1/traces",
    headers: Mapping[str, str] | None = None,
) -> Answer:
    return door.ask("POST", path, key, body, {"Content-Type": media, **(headers or {})})


def fresh(*spans: Any) -> dict[str, Any]:
    """Return a payload of spans of a new trace."""
    trace = uuid4().hex
    return payload(*({**one, "traceId": trace} for one in spans))


def test_the_answer_comes_in_the_media_type_of_the_request(door: Door, key: str) -> None:
    given = fresh(span(CALL), span({}, 2))
    binary = export(door, key, as_protobuf(given), PROTOBUF)
    assert (binary.status, binary.headers["Content-Type"]) == (200, PROTOBUF)
    assert not ExportTraceServiceResponse.FromString(binary.body).HasField("partial_success")
    assert binary.headers["Turnlog-Results"] == "not_recorded=1, recorded=1"
    again = export(door, key, json.dumps(given).encode())
    assert (again.status, again.json) == (200, {})
    assert again.headers["Turnlog-Results"] == "duplicate=1, not_recorded=1"


@pytest.mark.parametrize("media", ["application/protobuf", f"{JSON}; charset=utf-8"])
def test_other_names_of_the_media_types_are_known(door: Door, key: str, media: str) -> None:
    given = fresh(span(CALL))
    body = json.dumps(given).encode() if media.startswith(JSON) else as_protobuf(given)
    answer = export(door, key, body, media)
    assert (answer.status, answer.headers["Turnlog-Results"]) == (200, "recorded=1")


def test_a_bad_span_is_counted_and_its_neighbours_are_taken(door: Door, key: str) -> None:
    given = fresh(span(CALL), span(CALL, 2))
    given["resourceSpans"][0]["scopeSpans"][0]["spans"].append({"traceId": 42})
    answer = export(door, key, json.dumps(given).encode(), path="/v1/traces?detail=1")
    assert answer.json["partialSuccess"] == {
        "rejectedSpans": "1",
        "errorMessage": "rejected: bad_trace_id=1",
    }
    assert [one["outcome"] for one in answer.json["turnlog"]["spans"]] == [
        "recorded",
        "recorded",
        "rejected",
    ]
    broken = as_protobuf(fresh(span(CALL | {"x": "XYZZY"}))).replace(b"XYZZY", b"\xff" * 5)
    partial = ExportTraceServiceResponse.FromString(export(door, key, broken, PROTOBUF).body)
    assert partial.partial_success.rejected_spans == 1
    assert partial.partial_success.error_message == "rejected: not_a_span=1"


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_bodies_are_inflated(door: Door, key: str, encoding: str) -> None:
    body = as_protobuf(fresh(span(CALL)))
    sent = gzip.compress(body) if encoding == "gzip" else body
    answer = export(door, key, sent, PROTOBUF, headers={"Content-Encoding": encoding})
    assert answer.headers["Turnlog-Results"] == "recorded=1"


@pytest.mark.parametrize(
    ("body", "media", "status"),
    [
        (b"no json", JSON, 400),
        (b'{"a":' * 50_000, JSON, 400),
        (b"\xff\xff", PROTOBUF, 400),
        (b"{}", "text/plain", 415),
        (b"", JSON, 400),
        (b"", PROTOBUF, 200),
    ],
)
def test_a_body_that_is_none_is_refused(
    door: Door, key: str, body: bytes, media: str, status: int
) -> None:
    answer = export(door, key, body, media)
    assert answer.status == status
    if status == 400:
        assert answer.headers["Content-Type"].startswith(media)


def test_a_bomb_is_refused_at_its_inflated_size(door: Door, key: str) -> None:
    bomb = gzip.compress(bytes(64 << 20))
    answer = export(door, key, bomb, PROTOBUF, headers={"Content-Encoding": "gzip"})
    assert answer.status == 413


def test_who_may_not_write_may_not_export(door: Door, key: str) -> None:
    viewer = new_key(door.config, f"otlp-{uuid4().hex[:12]}", Role.VIEWER)
    eventually(lambda: export(door, viewer, b"{}").status == 403)
    assert door.ask("POST", "/v1/traces", None, b"{}").status == 401
