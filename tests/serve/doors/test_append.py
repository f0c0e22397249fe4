"""`POST /v1/events` on a live server: every form, and every answer an event may get."""

import gzip
import io
import json
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fastavro
import pytest
import zstandard

from serve.conversation_api import read_conversation
from serve.runs_api import run_content, run_summary
from serve.views import wait_for
from tests.serve.doors.door import Answer, Door, new_key
from turnlog.apikeys import Role
from turnlog.config import Config
from turnlog.events import TYPES
from turnlog.ids import new_id
from turnlog.keeper_client import create

ORG = "append-door"


@pytest.fixture(scope="module")
def key(door: Door, stack: Config) -> str:
    create(stack, ORG, "side")
    made = new_key(stack, ORG, Role.PRODUCER)
    until = time.monotonic() + 30
    while door.ask("POST", "/v1/events", made, []).status == 401:
        assert time.monotonic() < until
    return made


def turn(text: str = "Hello", **fields: Any) -> dict[str, Any]:
    fields.setdefault("conversation", "talk-" + uuid.uuid4().hex)
    return {"type": "turn.appended", "content": {"text": text}, **fields}


def post(door: Door, key: str, body: Any, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return door.ask("POST", "/v1/events", key, body, named)


def results(answer: Answer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer.json["results"]
    return found


def outcomes(answer: Answer) -> list[tuple[int, str]]:
    return [(result["status"], result["outcome"]) for result in results(answer)]


def texts(stack: Config, conversation: str) -> list[Any]:
    assert not wait_for(stack, ["conversations"])
    return [row["text"] for row in read_conversation(stack, ORG, conversation).turns]


def test_a_batch_is_accepted_and_read_back(door: Door, key: str, stack: Config) -> None:
    events = [turn("one", conversation="batch"), turn("two\0 \ud83d", conversation="batch")]
    answer = post(door, key, {"events": events})
    assert answer.status == 200
    assert outcomes(answer) == [(201, "accepted")] * 2
    assert all(r["durable"] == "broker" and r["position"] for r in results(answer))
    assert texts(stack, "batch") == ["one", "two\0 �"]


def test_an_identical_retry_is_a_duplicate_and_other_content_a_conflict(
    door: Door, key: str
) -> None:
    first = turn(id="retry-1", conversation="retried")
    (accepted,) = results(post(door, key, [first]))
    (again,) = results(post(door, key, [first]))
    assert again == {**accepted, "status": 200, "outcome": "duplicate"}
    other = first | {"content": {"text": "another"}}
    answer = post(door, key, [other, first | {"user": "someone"}])
    assert answer.status == 207
    assert outcomes(answer) == [(409, "conflict")] * 2
    # The time of another try is not another event.
    assert outcomes(post(door, key, [first | {"time": "2026-11-30T12:00:00Z"}])) == [
        (200, "duplicate")
    ]


def test_one_bad_event_fails_no_other(door: Door, key: str) -> None:
    first = turn(id="mixed")
    events = [
        first,
        first,
        first | {"content": {"text": "other"}},
        turn(org="foreign"),
        {"type": "run.exploded"},
        turn(user="half \ud83d"),
        turn("x" * (9 << 20)),
        turn("y" * 1_000_000),
        17,
        turn("\0"),
    ]
    answer = post(door, key, events)
    assert answer.status == 207
    assert outcomes(answer) == [
        (201, "accepted"),
        (200, "duplicate"),
        (409, "conflict"),
        (400, "invalid"),
        (400, "invalid"),
        (400, "invalid"),
        (413, "invalid"),
        (201, "accepted"),
        (400, "invalid"),
        (201, "accepted"),
    ]
    fields = [result.get("field") for result in results(answer)]
    assert fields[3:7] == ["org", "type", "user", "content"]
    assert [result["index"] for result in results(answer)] == list(range(10))


def test_one_event_alone_is_answered_by_the_status(door: Door, key: str) -> None:
    event = turn(id="alone", conversation="alone")
    statuses = [
        post(door, key, body).status
        for body in (event, event, event | {"user": "me"}, event | {"time": "never"})
    ]
    assert statuses == [201, 200, 409, 400]


def test_compressed_bodies(door: Door, key: str) -> None:
    raw = json.dumps([turn()]).encode()
    for encoding, body in (
        ("gzip", gzip.compress(raw)),
        ("zstd", zstandard.ZstdCompressor().compress(raw)),
    ):
        answer = post(door, key, body, Content_Type="application/json", Content_Encoding=encoding)
        assert outcomes(answer) == [(201, "accepted")]


def test_cloudevents_are_one_by_source_and_id(door: Door, key: str, stack: Config) -> None:
    event = {
        "specversion": "1.0",
        "id": "1",
        "source": "/gateway/a",
        "type": "turnlog.turn.appended",
        "data": {"conversation": "clouds", "content": {"text": "Hello"}},
    }
    structured = "application/cloudevents+json"
    assert post(door, key, event, Content_Type=structured).status == 201
    headers = {f"ce_{name}": str(event[name]) for name in ("specversion", "id", "source", "type")}
    assert post(door, key, event["data"], **headers).status == 200
    elsewhere = event | {"source": "/gateway/b"}
    batch = post(door, key, [event, elsewhere], Content_Type="application/cloudevents-batch+json")
    assert outcomes(batch) == [(200, "duplicate"), (201, "accepted")]
    assert texts(stack, "clouds") == ["Hello"] * 2


def test_an_avro_container(door: Door, key: str) -> None:
    kind = TYPES["usage.recorded"]
    filled = {field.name: field.default for field in kind.fields} | {"occurred_at_us": 5}
    filled |= {"event_id": uuid.uuid4().bytes, "run": new_id("run"), "org": ORG}
    counted = filled | {"input_uncached": 7, "quality": "measured"}
    foreign = counted | {"org": "another"}
    out = io.BytesIO()
    fastavro.writer(out, kind.schema, [counted, counted, foreign])
    answer = post(door, key, out.getvalue(), Content_Type="application/vnd.apache.avro")
    assert outcomes(answer) == [(201, "accepted"), (200, "duplicate"), (400, "invalid")]


def test_a_gateway_that_counts_for_itself(door: Door, key: str, stack: Config) -> None:
    run = new_id("run")
    numbered = {"run": run, "writer_epoch": 1}
    events = [
        {
            "type": "run.created",
            **numbered,
            "user": "u1",
            "conversation": "counted",
            "provider": "openai",
            "content": {"request": {"model": "gpt-5"}},
        },
        {"type": "run.started", **numbered, "seq": 1, "ttft_us": 1000},
        {
            "type": "chunk.batch",
            **numbered,
            "seq": 0,
            "content": {"chunks": [{"text": "Hello"}]},
        },
        {
            "type": "run.completed",
            **numbered,
            "seq": 2,
            "finish_reason": "stop",
            "content": {"response": "Hello", "output": [{"index": 0, "text": "Hello"}]},
        },
        {"type": "usage.recorded", **numbered, "input_uncached": 3, "output_text": 1},
    ]
    answer = post(door, key, events[:2])
    assert outcomes(answer) == [(201, "accepted")] * 2, answer.body
    # Another batch: the run's key is found again.
    assert outcomes(post(door, key, events[2:])) == [(201, "accepted")] * 3
    assert outcomes(post(door, key, events)) == [(200, "duplicate")] * 5
    other = events[3] | {"user": "u2"}
    assert results(post(door, key, [other]))[0]["field"] == "user"
    assert not wait_for(stack, ["runs", "usage", "packs", "locator"])
    summary = run_summary(stack, ORG, run)
    assert summary["status"] == "completed"
    assert summary["output"] == [{"index": 0, "text": "Hello"}]
    assert summary["usage"]["input_uncached"] == 3
    assert run_content(stack, ORG, run, "request") == b'{"model":"gpt-5"}'


def test_events_of_a_run_that_never_began_name_it(door: Door, key: str) -> None:
    end = {"type": "run.completed", "run": "nobody", "writer_epoch": 1, "seq": 1}
    (result,) = results(post(door, key, [end | {"content": {"response": "x"}}]))
    assert (result["status"], result["field"]) == (400, "run")


def test_a_project_that_the_key_is_not_bound_to_is_refused(door: Door, key: str) -> None:
    (result,) = results(post(door, key, [turn(project="side")]))
    assert (result["status"], result["field"]) == (400, "project")


def test_concurrent_identical_requests_are_one_event(door: Door, key: str, stack: Config) -> None:
    event = turn("once", id="concurrent", conversation="concurrent")
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: post(door, key, [event]), range(8)))
    found = [outcomes(answer)[0] for answer in answers]
    assert found.count((201, "accepted")) == 1
    assert found.count((200, "duplicate")) == 7
    assert texts(stack, "concurrent") == ["once"]


def asked(conversation: str) -> list[dict[str, Any]]:
    """Return a first turn, one that comes too late, and one under nobody."""
    return [
        turn("one", conversation=conversation, expected_last_seq=0),
        turn("two", conversation=conversation, expected_last_seq=0),
        turn("three", conversation=conversation, parent_turn="nobody"),
    ]


def test_an_append_that_asks_is_answered_by_its_conversation(door: Door, key: str) -> None:
    # On a machine that is busy the fold takes longer than the door waits: `pending`, asked anew.
    for conversation in (f"asked-{n}" for n in range(10)):
        answer = post(door, key, asked(conversation))
        if (202, "pending") not in outcomes(answer):
            break
    assert outcomes(answer) == [(201, "accepted"), (409, "conflict"), (409, "conflict")]
    one, two, three = results(answer)
    assert (one["turn_seq"], two["last_seq"]) == (1, 1)
    assert (two["field"], three["field"]) == ("expected_last_seq", "parent_turn")
    second = turn("two", conversation=conversation, expected_last_seq=1, parent_turn=None)
    assert post(door, key, second).status in (201, 202)


def test_what_cannot_be_read_is_a_problem(door: Door, key: str) -> None:
    for body, status in ((b"{", 400), (b'{"events": 3}', 400), (b"[NaN]", 400)):
        answer = post(door, key, body, Content_Type="application/json")
        assert answer.status == status
        assert answer.headers["Content-Type"].startswith("application/problem+json")
    assert post(door, key, b"a,b", Content_Type="text/csv").status == 415


def test_the_answers_hold_no_content(door: Door, key: str) -> None:
    events = [turn("canary-7", user=["canary-7"]), turn("canary-7", canary=1)]
    assert b"canary-7" not in post(door, key, events).body
