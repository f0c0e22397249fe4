from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processors.digest import row_hash
from processors.packs import Claims, Span, canonical
from tests.sinks.packs.events import bodies
from turnlog.events import Event, decode, encode, without_frame

spans = st.builds(
    lambda org, partition, first, more: Span(org, "turnlog.runs", partition, first, first + more),
    st.sampled_from(["acme", "beta"]),
    st.integers(0, 1),
    st.integers(0, 40),
    st.integers(0, 12),
)


def coordinates(span: Span) -> set[tuple[str, str, int, int]]:
    return {(*span[:3], offset) for offset in range(span.first, span.last + 1)}


@given(st.lists(spans))
def test_each_coordinate_is_owned_by_the_first_span_that_lists_it(listed: list[Span]) -> None:
    claims = Claims()
    seen: set[tuple[str, str, int, int]] = set()
    for span in listed:
        owned = [place for part in claims.claim(span) for place in coordinates(part)]
        assert sorted(owned) == sorted(coordinates(span) - seen)
        seen |= coordinates(span)
    for place in seen:
        assert place in claims
    for span in listed:
        assert (("acme", "turnlog.usage", span.partition, span.first)) not in claims
        assert ((*span[:3], 60)) not in claims


@given(st.lists(spans), st.lists(spans))
def test_folding_a_manifest_twice_claims_nothing_more(some: list[Span], more: list[Span]) -> None:
    claims = Claims()
    claims.claim_all([*some, *more])
    assert claims.claim_all([*more, *some]) == []


def row(body: dict[str, Any]) -> dict[str, Any]:
    found = canonical(decode(encode("run.completed", body)))
    assert found is not None
    return found[2]


@settings(max_examples=30, deadline=None)
@given(bodies())
def test_the_row_is_the_same_with_and_without_the_frame(body: dict[str, Any]) -> None:
    value = encode("run.completed", body)
    assert canonical(decode(value)) == canonical(decode(without_frame(value)))


BODY = {
    "org": "acme",
    "conversation": "conv",
    "run": "run_1",
    "event_id": bytes(range(16)),
    "occurred_at_us": 5,
    "model": "gpt-5",
    "versions": {"prompt": "v3"},
    "content_mac": b"m" * 32,
}


def test_keys_are_the_stream_and_the_event() -> None:
    found = canonical(decode(encode("run.completed", BODY)))
    assert found and found[:2] == (b"acme/conv", bytes(range(16)))


def test_every_fact_of_the_event_changes_the_row() -> None:
    changes = {
        "model": "gpt-6",
        "versions": {"prompt": "v4"},
        "content_mac": b"n" * 32,
        "occurred_at_us": 6,
        "ttft_us": 1,
        "user": "u",
    }
    hashes = {row_hash(row(BODY | {name: value})) for name, value in changes.items()}
    assert len(hashes | {row_hash(row(BODY))}) == len(changes) + 1


def test_what_depends_on_where_and_how_it_was_written_is_left_out() -> None:
    again = {
        "frame": b"other nonce",
        "key_tree": b"t" * 16,
        "key_day": 9,
        "key_gen": 1,
        "producer_id": "p",
        "producer_epoch": 2,
        "producer_seq": 3,
        "may_repeat": True,
    }
    assert row(BODY | again) == row(BODY)


def test_the_time_of_an_import_is_left_out() -> None:
    assert "occurred_at_us" in row(BODY)
    imported = BODY | {"time_basis": "import"}
    assert row(imported) == row(imported | {"occurred_at_us": 99})


def test_a_field_that_a_later_version_adds_changes_no_row() -> None:
    event = decode(encode("run.completed", BODY))
    nothing: list[object] = ["", 0, None, {}, [], False]
    for empty in nothing:
        assert canonical(Event(event.type, event.body | {"added": empty})) == canonical(event)


@pytest.mark.parametrize("name", ["org", "conversation", "run", "turn", "user"])
@pytest.mark.parametrize("value", ["what was said", "a/b", "ä", "x" * 65])
def test_an_event_whose_ids_are_none_is_refused(name: str, value: str) -> None:
    event = decode(encode("run.completed", BODY))
    assert canonical(event) is not None
    assert canonical(Event(event.type, event.body | {name: value})) is None
    assert canonical(Event(event.type, event.body | {"org": ""})) is None
