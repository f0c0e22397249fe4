"""Kafka records: everything in them comes from the body."""

import uuid
from typing import Any

import pytest

from turnlog.errors import UsageError
from turnlog.events import TYPES, Record, decode, key_of, record
from turnlog.ids import event_id

ID = event_id("acme", "run_1", "run.created", "1/0")
BODY = {"org": "acme", "event_id": ID, "occurred_at_us": 1}
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_headers_are_the_required_ones_of_cloud_events() -> None:
    made = record("run.created", {**BODY, "run": "run_1"})
    assert made.headers == [
        ("ce_specversion", b"1.0"),
        ("ce_id", str(uuid.UUID(bytes=ID)).encode()),
        ("ce_source", b"/turnlog/acme"),
        ("ce_type", b"turnlog.run.created"),
        ("content-type", b"application/avro"),
    ]
    assert (made.topic, made.key, made.partition_by) == (
        "turnlog.runs",
        b"acme/run_1",
        b"acme/run_1",
    )


def test_a_trace_context_is_a_header_only_where_there_is_one() -> None:
    traced = record("run.created", {**BODY, "run": "run_1", "traceparent": TRACE})
    assert traced.headers[-1] == ("traceparent", TRACE.encode())
    odd = record("run.created", {**BODY, "run": "run_1", "traceparent": "not a trace"})
    assert len(odd.headers) == 5


KEYS = [
    ("run.created", {"conversation": "c1", "run": "r1"}, b"acme/c1", b"acme/c1"),
    ("chunk.batch", {"run": "r1"}, b"acme/r1", b"acme/r1"),
    ("turn.appended", {"conversation": "c1", "turn": "t1"}, b"acme/c1", b"acme/c1"),
    ("usage.recorded", {"run": "r1"}, b"acme/r1", b"acme/r1"),
    ("append.refused", {"conversation": "c1"}, b"acme/c1", b"acme/c1"),
    ("directory.entry", {"kind": "project", "id": "p1"}, b"acme/project/p1", b"acme"),
    ("billing.alert", {"cap": "month"}, b"acme", b"acme"),
    ("audit.recorded", {"actor": "a1"}, b"acme", b"acme"),
    ("key.erased", {"request": "e1"}, b"acme/e1", b"acme/e1"),
    ("pack.added", {"object": "s3://b/k"}, b"acme/s3://b/k", b"acme"),
]


@pytest.mark.parametrize(("name", "own", "key", "by"), KEYS)
def test_keys_follow_the_topic(name: str, own: dict[str, Any], key: bytes, by: bytes) -> None:
    made = record(name, {**BODY, **own})
    assert isinstance(made, Record)
    assert (made.topic, made.key, made.partition_by) == (TYPES[name].topic, key, by)
    assert key_of(name, decode(made.value).body) == key


def test_a_ledger_mark_belongs_to_no_org() -> None:
    body = {**BODY, "org": "", "producer_id": "p1", "producer_epoch": 4}
    made = record("ledger.mark", {**body, "topic": "turnlog.runs", "partition": 5})
    assert made.key == b"p1/turnlog.runs/5/4"
    assert ("ce_source", b"/turnlog") in made.headers


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("run.created", {}, "a conversation or a run"),
        ("run.created", {"org": "", "run": "r1"}, "needs org"),
        ("pack.added", {"org": ""}, "needs org"),
    ],
)
def test_what_the_key_needs_must_be_there(name: str, change: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        record(name, {**BODY, **change})
