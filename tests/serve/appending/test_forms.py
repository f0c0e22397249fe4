"""The forms of a request: which events they hold, and why they cannot be read."""

import base64
import io
import json
from typing import Any

import fastavro
import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve.appending import Answer
from serve.appending.batch import Given
from serve.appending.forms import (
    CLOUDEVENT,
    CLOUDEVENTS,
    JSON,
    MAX_EVENTS,
    Request,
    Unreadable,
    read_request,
)
from turnlog.events import TYPES, encode
from turnlog.keys.content import pack

AVRO = "application/avro"
TURN = {"type": "turn.appended", "conversation": "talk", "content": {"text": "Hello"}}
CE = {
    "specversion": "1.0",
    "id": "1",
    "source": "/gw/a",
    "type": "turnlog.turn.appended",
    "data": {"conversation": "talk", "content": {"text": "Hello"}},
}


def read(media_type: str, data: bytes, headers: dict[str, str] | None = None) -> Request:
    found = read_request(media_type, headers or {}, data, json.loads)
    assert isinstance(found, Request), found
    return found


def unreadable(media_type: str, data: bytes) -> int:
    found = read_request(media_type, {}, data, json.loads)
    assert isinstance(found, Unreadable)
    return found.status


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize("batch", [[TURN, TURN], {"events": [TURN, TURN]}])
def test_a_json_batch(batch: Any) -> None:
    assert read(JSON, dumped(batch)) == Request([Given(TURN), Given(TURN)], alone=False)


def test_one_json_event_is_answered_by_the_status() -> None:
    assert read(JSON, dumped(TURN)) == Request([Given(TURN)], alone=True)
    assert read("", dumped(TURN)).alone


def test_what_is_no_batch_cannot_be_read() -> None:
    assert unreadable(JSON, b"7") == 400
    assert unreadable(JSON, dumped({"events": 7})) == 400
    assert unreadable(JSON, dumped({"events": [], "org": "x"})) == 400
    assert unreadable(JSON, dumped([TURN] * (MAX_EVENTS + 1))) == 413
    assert unreadable("text/csv", b"a,b") == 415


def test_a_structured_cloudevent() -> None:
    expected = Given(
        CE["data"] | {"id": "1", "type": CE["type"]},  # type: ignore[operator]
        "/gw/a",
    )
    assert read(CLOUDEVENT, dumped(CE)) == Request([expected], alone=True)
    assert read(CLOUDEVENTS, dumped([CE])) == Request([expected], alone=False)


def test_a_binary_cloudevent() -> None:
    headers = {
        "ce-specversion": "1.0",
        "ce-id": "a%20b",
        "ce-source": "/gw/a",
        "ce-type": "turnlog.turn.appended",
        "ce-time": "2026-11-30T12:00:00Z",
        "ce-traceparent": "00-aa-bb-01",
    }
    (event,) = read(JSON, dumped(CE["data"]), headers).events
    assert isinstance(event, Given)
    assert event.value["id"] == "a b"
    assert event.value["time"] == "2026-11-30T12:00:00Z"
    assert event.value["traceparent"] == "00-aa-bb-01"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"specversion": "0.3"}, "specversion"),
        ({"id": ""}, "id"),
        ({"source": 7}, "source"),
        ({"source": "half \ud83d"}, "source"),
        ({"source": "x" * 1025}, "source"),
        ({"type": None}, "type"),
        ({"data": "text"}, "data"),
        ({"data": {"id": "2"}}, "data.id"),
        ({"data_base64": "%"}, "data_base64"),
        ({"data_base64": "aGVsbG8="}, "data"),
    ],
)
def test_one_wrong_cloudevent_leaves_the_others(change: dict[str, Any], field: str) -> None:
    bad, good = read(CLOUDEVENTS, dumped([CE | change, CE])).events
    assert isinstance(bad, Answer)
    assert (bad.status, bad.field) == (400, field)
    assert isinstance(good, Given)


def body(**fields: Any) -> dict[str, Any]:
    filled = {field.name: field.default for field in TYPES["turn.appended"].fields}
    return {**filled, "org": "acme", "event_id": bytes(16), "occurred_at_us": 5, **fields}


def container(*bodies: dict[str, Any], codec: str = "null") -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, TYPES["turn.appended"].schema, bodies, codec=codec)
    return out.getvalue()


def test_an_avro_container() -> None:
    turn = body(conversation="talk", role="user", frame=pack({"text": "Hello"}))
    found = read(AVRO, container(turn, turn))
    said = {"time": 5, "org": "acme", "role": "user"}
    assert found.events == [Given(TURN | said)] * 2
    assert not found.alone


def test_one_avro_object_also_as_data_of_a_cloudevent() -> None:
    turn = body(conversation="talk", role="user", frame=pack({"text": "Hello"}))
    raw = encode("turn.appended", turn)
    assert read(AVRO, raw).alone
    attributes = {name: CE[name] for name in ("specversion", "id", "source", "type")}
    structured = attributes | {"data_base64": base64.b64encode(raw).decode()}
    (event,) = read(CLOUDEVENT, dumped(structured)).events
    headers = {f"ce-{name}": str(value) for name, value in attributes.items()}
    assert read("avro/binary", raw, headers).events == [event]
    assert isinstance(event, Given)
    assert event.value["content"] == {"text": "Hello"}
    assert event.source == "/gw/a"


def test_a_container_of_a_foreign_schema_is_refused() -> None:
    out = io.BytesIO()
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    fastavro.writer(out, schema, [{"a": 1}])
    assert unreadable(AVRO, out.getvalue()) == 400


def test_hostile_containers_are_refused() -> None:
    good = container(body(conversation="talk", role="user"))
    assert unreadable(AVRO, good[:-20]) == 400
    assert unreadable(AVRO, b"Obj\x01" + b"\xff" * 50) == 400
    assert unreadable(AVRO, b"") == 400
    assert unreadable(AVRO, container(body(), codec="deflate")) == 400


@pytest.mark.parametrize(
    "frame",
    [
        b"\x01\x01sealed",
        msgpack.packb({b"text": "x"}),
        msgpack.packb({"output": json.loads("[" * 300 + "]" * 300)}),
    ],
)
def test_a_frame_that_is_no_content_is_named(frame: bytes) -> None:
    (event,) = read(AVRO, container(body(conversation="talk", frame=frame))).events
    assert isinstance(event, Answer)
    assert event.field == "frame"


@settings(max_examples=150)
@given(st.data())
def test_damaged_containers_are_read_or_refused(data: st.DataObject) -> None:
    good = container(body(conversation="talk", role="user", frame=pack({"text": "Hello"})))
    at = data.draw(st.integers(0, len(good) - 1))
    put = data.draw(st.binary(max_size=4))
    found = read_request(AVRO, {}, good[:at] + put + good[at + len(put) :], json.loads)
    assert isinstance(found, Request | Unreadable)
