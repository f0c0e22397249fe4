"""One event as its sender gives it: what is taken, and which field is named where it is not."""

import base64
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve.appending import Answer, Scope
from serve.appending.catalogue import KINDS
from serve.appending.given import MAX_EVENT_BYTES, Draft, read_event
from serve.appending.identity import identified, said_of
from turnlog.events import TYPES, encode

NOW_US = 1_764_500_000_000_000
SCOPE = Scope("acme", "", ("default", "side"), b"i" * 32, NOW_US)
TURN: dict[str, Any] = {
    "type": "turn.appended",
    "conversation": "talk",
    "content": {"text": "Hello"},
}
END: dict[str, Any] = {"type": "run.completed", "run": "r1", "writer_epoch": 1, "seq": 2}
USED: dict[str, Any] = {"type": "usage.recorded", "run": "r1", "writer_epoch": 1, "seq": 2}


def read(given: Any, scope: Scope = SCOPE) -> Draft:
    draft = read_event(given, 0, scope)
    assert isinstance(draft, Draft), draft
    return draft


def wrong(given: Any, scope: Scope = SCOPE) -> Answer:
    answer = read_event(given, 0, scope)
    assert isinstance(answer, Answer), answer
    return answer


def test_a_turn_is_read() -> None:
    draft = read(TURN | {"id": "m1", "time": "2026-11-30T12:00:00.5+01:00", "user": "me@x.org"})
    assert draft.body["org"] == "acme"
    assert draft.body["role"] == "user"
    at = datetime(2026, 11, 30, 11, tzinfo=UTC)
    assert draft.body["occurred_at_us"] == int(at.timestamp()) * 1_000_000 + 500_000
    assert draft.body["user"].startswith("x_")
    assert draft.content == {"text": "Hello", "source": {"user": "me@x.org"}}
    assert (draft.id, draft.natural, draft.timed) == ("m1", "m1", True)


def test_a_time_that_is_left_out_is_the_arrival() -> None:
    draft = read(TURN)
    assert draft.body["occurred_at_us"] == NOW_US
    assert not draft.timed


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (5, ""),
        ([], ""),
        ({}, "type"),
        ({"type": 7}, "type"),
        ({"type": "run.exploded"}, "type"),
        ({"type": "audit.recorded"}, "type"),
        ({"type": "turn.edited"}, "type"),
        (TURN | {"org": "another"}, "org"),
        (TURN | {"org": 7}, "org"),
        (TURN | {"id": ""}, "id"),
        (TURN | {"id": 7}, "id"),
        (TURN | {"id": "x" * 1025}, "id"),
        (TURN | {"id": "half \ud83d"}, "id"),
        (TURN | {"time": "yesterday"}, "time"),
        (TURN | {"time": "2026-11-30T12:00:00"}, "time"),
        (TURN | {"time": -1}, "time"),
        (TURN | {"time": 1.5}, "time"),
        (TURN | {"time": True}, "time"),
        (TURN | {"conversation": ""}, "conversation"),
        (TURN | {"conversation": 3}, "conversation"),
        (TURN | {"conversation": "half \ud83d"}, "conversation"),
        (TURN | {"user": ["a"]}, "user"),
        (TURN | {"project": "a b"}, "project"),
        (TURN | {"role": "king"}, "role"),
        (TURN | {"expected_last_seq": "3"}, "expected_last_seq"),
        (TURN | {"expected_last_seq": 1 << 63}, "expected_last_seq"),
        (TURN | {"event_id": "x"}, "event_id"),
        (TURN | {"frame": "x"}, "frame"),
        (TURN | {"import_seq": 1}, "import_seq"),
        (TURN | {"run": "r1"}, "run"),
        (TURN | {"a\nb": 1}, "other"),
        (TURN | {"content": "Hello"}, "content"),
        (TURN | {"content": {}}, "content.text"),
        (TURN | {"content": {"text": 7}}, "content.text"),
        (TURN | {"content": {"text": "a", "tex": "b"}}, "content.tex"),
        (TURN | {"content": {"text": "a", "raw": {"$base64": "%"}}}, "content.raw"),
        (TURN | {"answer_run": "r1"}, "content.text"),
        (END | {"provisional": True}, "provisional"),
        (END | {"writer_epoch": 0}, "writer_epoch"),
        (END | {"writer_epoch": True}, "writer_epoch"),
        (END | {"writer_epoch": (1 << 63) - 1}, "writer_epoch"),
        *((USED | {"cost_nano_usd": cost}, "cost_nano_usd") for cost in (-1, 10**15 + 1)),
        *((USED | {"output_text": count}, "output_text") for count in (-1, 2**40 + 1)),
        (END | {"seq": -1}, "seq"),
        ({"type": "run.completed", "run": "r1", "writer_epoch": 1}, "seq"),
        ({"type": "run.completed", "writer_epoch": 1, "seq": 1}, "run"),
        (END | {"versions": {"prompt": 3}}, "versions"),
        (END | {"shed": [{"first": 1}]}, "shed"),
        (END | {"ttft_us": 1 << 70}, "ttft_us"),
        (END | {"http_status": 1 << 40}, "http_status"),
        ({"type": "usage.recorded", "run": "r1", "input_uncached": -1}, "input_uncached"),
        ({"type": "usage.recorded", "run": "r1", "quality": "sure"}, "quality"),
        ({"type": "usage.recorded", "run": "r1", "sign": 2}, "sign"),
        ({"type": "usage.recorded", "run": "r1", "usage": [1]}, "usage"),
        ({"type": "usage.recorded"}, "conversation"),
        ({"type": "usage.corrected", "run": "r1", "corrects": "nobody"}, "corrects"),
        ({"type": "task.outcome", "run": "r1", "outcome": "great"}, "outcome"),
        ({"type": "task.outcome", "run": "r1", "content": {"text": "x"}}, "content.text"),
    ],
)
def test_what_is_wrong_is_named(given: Any, field: str) -> None:
    answer = wrong(given)
    assert (answer.status, answer.outcome, answer.field) == (400, "invalid", field)
    assert answer.detail


def test_values_are_never_quoted() -> None:
    for name in ("conversation", "role", "time", "id", "user"):
        answer = wrong(TURN | {name: {"secret": "canary"}})
        assert "canary" not in str(answer)


def test_the_turn_of_an_answer_has_no_content_whatever_its_names_are() -> None:
    draft = read(TURN | {"content": None, "answer_run": "r 1", "user": "me@x.org"})
    assert draft.content is None
    assert draft.body["role"] == "assistant"
    assert draft.body["run"] == draft.body["answer_run"] != "r 1"


def test_a_whole_number_may_be_written_with_a_point() -> None:
    assert read(END | {"http_status": 200.0}).body["http_status"] == 200
    assert wrong(END | {"http_status": 200.5}).field == "http_status"


def test_content_keeps_what_it_is() -> None:
    draft = read(TURN | {"content": {"text": "a\0b \ud83d", "raw": {"$base64": "AAE="}}})
    assert draft.content == {"text": "a\0b \ud83d", "raw": b"\0\1"}


def test_bytes_of_a_run_come_as_text_json_or_base64() -> None:
    def response(value: Any) -> Any:
        content = read(END | {"content": {"response": value}}).content
        assert content is not None
        return content["response"]

    assert response("é") == "é".encode()
    assert response({"a": [1, "\ud83d"]}) == rb'{"a":[1,"\ud83d"]}'
    assert response([1, {"b": 2}]) == b'[1,{"b":2}]'
    assert [response(value) for value in (7, True, 1.5)] == [b"7", b"true", b"1.5"]
    assert response({"$base64": base64.b64encode(b"\xff").decode()}) == b"\xff"


def test_content_over_the_bound_is_too_large() -> None:
    answer = wrong(TURN | {"id": "big", "content": {"text": "x" * (MAX_EVENT_BYTES + 1)}})
    assert (answer.status, answer.field, answer.id) == (413, "content", "big")
    # Four bytes a character at most: as long, but not as many bytes.
    read(TURN | {"content": {"text": "x" * (MAX_EVENT_BYTES // 2)}})


def test_a_bound_credential_writes_for_its_project_alone() -> None:
    bound = SCOPE._replace(project="side")
    assert read(TURN | {"project": "side"}, bound).body["project"] == "side"
    assert wrong(TURN | {"project": "default"}, bound).field == "project"


def test_chunks_say_how_many_they_are() -> None:
    pieces = [{"text": "Bon"}, [7, 0, "text", "jour"]]
    call = {"kind": "tool_call", "text": "{}", "id": "c1", "name": "look"}
    given = {"type": "chunk.batch", "run": "r1", "writer_epoch": 1, "seq": 0, "first_seq": 4}
    draft = read(given | {"content": {"chunks": [*pieces, call]}})
    assert draft.content == {
        "chunks": [
            [0, 0, "text", "Bon"],
            [7, 0, "text", "jour"],
            [0, 0, "tool_call", "{}", 0, "c1", "look"],
        ]
    }
    assert draft.body["chars"] == 9
    assert draft.body["chunks"] == 3
    assert draft.body["last_seq"] == 6


def test_usage_is_priced_as_a_run_of_ours_is() -> None:
    given = {"type": "usage.recorded", "run": "r1", "provider": "openai", "model": "gpt-4o-mini"}
    block = {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010}
    said = read(given | {"usage": block}).body
    assert (said["quality"], said["input_uncached"], said["output_text"]) == ("measured", 1000, 10)
    assert said["cost_nano_usd"] > 0
    counted = read(given | {"input_uncached": 1000, "output_text": 10}).body
    assert counted["cost_nano_usd"] == said["cost_nano_usd"]
    assert read(given | {"output_text": 10, "cost_nano_usd": 5}).body["cost_nano_usd"] == 5
    assert read(given).body["quality"] == "unknown"


def test_the_catalogue_offers_no_word_of_our_own_parts() -> None:
    ours = {"event_id", "frame", "content_mac", "producer_id", "producer_seq", "may_repeat"}
    ours |= {"key_tree", "key_day", "key_gen", "time_basis", "provisional", "import_seq", "org"}
    for kind in KINDS.values():
        assert not kind.fields & ours
        known = {field.name for field in TYPES[kind.type].fields} | {"usage"}
        assert kind.fields <= known


TEXTS = st.text(st.characters(exclude_categories=[]), max_size=8) | st.sampled_from(
    ["r1", "turn.appended", "1", "2026-11-30T12:00:00Z"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200)
@given(st.sampled_from(sorted(KINDS)), st.data())
def test_whatever_a_sender_says_is_an_event_or_an_answer(type_: str, data: st.DataObject) -> None:
    kind = KINDS[type_]
    names = sorted({*kind.fields, "id", "time", "content", "org"})
    given: dict[str, Any] = data.draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=3))
    given |= {name: 1 if name in ("writer_epoch", "seq") else "r1" for name in kind.needs}
    content = {name: data.draw(VALUES | TEXTS) for name in kind.content}
    draft = read_event({**given, "type": type_, "content": content}, 0, SCOPE)
    if isinstance(draft, Answer):
        assert draft.status in (400, 413)
        return
    identified(draft, SCOPE)
    assert len(said_of(draft, b"")) == 16
    encode(type_, draft.body)
