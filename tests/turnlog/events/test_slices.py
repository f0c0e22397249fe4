"""Slices of events: exact, undone exactly, and safe on any bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.turnlog.events.bodies import IDS, bodies, many
from turnlog.errors import DecodeError
from turnlog.events import (
    TYPES,
    decode,
    encode,
    key_prefixes,
    prefix,
    slice_frame,
    with_frame,
    without_frame,
)
from turnlog.events.pack import varint
from turnlog.ids import stream_key

KINDS = st.sampled_from(list(TYPES.values()))
FRAMES = st.sampled_from([0, 1, 63, 64, 8_191, 8_192, 100_000]).map(bytes)


@many
@given(st.data())
def test_a_frame_is_taken_out_and_put_back(data: st.DataObject) -> None:
    kind = data.draw(KINDS)
    body = {**data.draw(bodies(kind)), "frame": data.draw(FRAMES)}
    value = encode(kind.name, body)
    before, frame, after = slice_frame(value)
    assert frame == body["frame"]
    assert before + varint(len(frame)) + frame + after == value
    stripped = without_frame(value)
    assert stripped == encode(kind.name, {**body, "frame": b""})
    assert with_frame(stripped, frame) == value
    assert without_frame(stripped) == stripped


def test_a_second_frame_is_refused() -> None:
    value = encode(
        "chunk.batch", {"org": "o", "run": "r", "event_id": bytes(16), "occurred_at_us": 1}
    )
    with pytest.raises(DecodeError, match="already"):
        with_frame(with_frame(value, b"one"), b"two")


@many
@given(st.data())
def test_the_prefix_is_that_of_the_body(data: st.DataObject) -> None:
    kind = data.draw(KINDS)
    value = encode(kind.name, data.draw(bodies(kind)))
    body, found = decode(value).body, prefix(value)
    assert found[:3] == (body["org"], body["conversation"], body["run"])
    at = found.event_id_offset
    assert value[at : at + 16] == body["event_id"]


@many
@given(IDS, IDS | st.just(""), IDS, IDS)
def test_a_body_begins_as_its_key_says_and_no_other(
    org: str, conversation: str, run: str, other: str
) -> None:
    body = {"org": org, "conversation": conversation, "run": run}
    value = encode("run.started", {**body, "event_id": bytes(16), "occurred_at_us": 1})
    subject = conversation or run
    assert value[10:].startswith(key_prefixes(stream_key(org, conversation, run)))
    for wrong in (f"{other}/{subject}", f"{org}/{other}"):
        if wrong != f"{org}/{subject}":
            assert not value[10:].startswith(key_prefixes(wrong.encode()))


@pytest.mark.parametrize("key", [b"", b"o", b"o/", b"o/a/b", b"/"])
def test_keys_of_no_stream_are_refused(key: bytes) -> None:
    with pytest.raises(DecodeError):
        key_prefixes(key)


def test_a_tick_has_a_stream_key_of_no_org() -> None:
    tick = {"org": "", "run": "3", "event_id": bytes(16), "occurred_at_us": 1, "partition": 3}
    assert encode("finalizer.tick", tick)[10:].startswith(key_prefixes(b"/3"))


@many
@given(st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(b"\xc3\x01".__add__)))
def test_any_bytes_are_sliced_exactly_or_refused(value: bytes) -> None:
    try:
        before, frame, after = slice_frame(value)
    except DecodeError:
        return
    assert before + varint(len(frame)) + frame + after == value


@many
@given(st.binary(max_size=200))
def test_any_bytes_have_a_prefix_or_are_refused(tail: bytes) -> None:
    try:
        found = prefix(TYPES["run.created"].header + tail)
    except DecodeError:
        return
    assert found.event_id_offset <= 10 + len(tail)


@pytest.mark.parametrize(
    "length", [b"\x80\0", b"\x82\0", b"\1", b"\x81\1", b"\xff" * 9 + b"\1", b"\xff" * 20 + b"\1"]
)
def test_lengths_with_padding_or_below_zero_are_refused(length: bytes) -> None:
    value = TYPES["run.created"].header + length + b"a" * 100
    with pytest.raises(DecodeError):
        slice_frame(value)
    with pytest.raises(DecodeError):
        prefix(value)
    with pytest.raises(DecodeError):
        decode(value)
