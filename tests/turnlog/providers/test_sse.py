"""The event stream parser, against the rules and examples of the WHATWG HTML standard."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnlog.providers.sse import Decoder, ServerSentEvent, events


def data(body: bytes) -> list[str]:
    return [event.data for event in events(body)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end_of_the_standard_ends_a_line(end: bytes) -> None:
    body = end.join((b"event: delta", b"data: one", b"data: two", b"id: 7", b"", b""))
    assert events(body) == [ServerSentEvent("delta", "one\ntwo", "7", True)]


def test_separators_that_are_no_line_ends_stay_in_the_data() -> None:
    text = "a\u2028b\u2029c\u0085d\x0be\x0cf"
    assert data(f"data: {text}\n\n".encode()) == [text]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b": a comment\n\ndata: x\n\n", ["x"]),
        (b"data\n\ndata\ndata\n\n", ["", "\n"]),
        (b"data:test\n\ndata: test\n\n", ["test", "test"]),
        (b"data:  two spaces\n\n", [" two spaces"]),
        (b"event: nothing\n\ndata: x\n\n", ["x"]),
        (b"unknown: field\ndata: x\n\n", ["x"]),
        (b"\xef\xbb\xbfdata: after a mark\n\n", ["after a mark"]),
        (b"data: \xff\xfe\n\n", ["\ufffd\ufffd"]),
        (b"\n\n\n", []),
        (b"", []),
    ],
)
def test_fields_comments_marks_and_odd_bytes(body: bytes, found: list[str]) -> None:
    assert data(body) == found


def test_an_id_with_a_nul_is_ignored_and_an_id_lasts_until_the_next() -> None:
    found = events(b"id: 1\ndata: a\n\nid: 2\x003\ndata: b\n\n")
    assert [(event.id, event.data) for event in found] == [("1", "a"), ("1", "b")]


def test_an_event_without_its_blank_line_is_kept_and_marked() -> None:
    assert events(b"data: a\n\ndata: [DONE]") == [
        ServerSentEvent("", "a", "", True),
        ServerSentEvent("", "[DONE]", "", False),
    ]


BODIES = st.lists(
    st.sampled_from(
        [b"data: x", b"event: e", b": c", b"id: 1", "data: é😀".encode(), b"\r", b"\n", b"\r\n"]
    )
).map(b"".join)


@given(BODIES, st.lists(st.integers(0, 200)))
@example(b"\xef\xbb\xbfdata: x\r\n\r\n", [1, 2, 12])
@example(b"data: x\r\n\r\n", [8, 10])
def test_cuts_between_any_bytes_change_nothing(body: bytes, cuts: list[int]) -> None:
    decoder = Decoder()
    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    found = []
    for start, end in zip(places, places[1:], strict=False):
        found += decoder.feed(body[start:end])
    last = decoder.end()
    assert found + ([last] if last else []) == events(body)


USUAL = st.lists(
    st.sampled_from(
        [b"data: x\n\n", "event: d\ndata: é\n\n".encode(), b"data: \xff\n\n", b"event: e\n\n"]
        + [b"data: a\ndata: b\n\n", b"id: 7\ndata: x\n\n", b"data:x\n\n", b"\n", b"data: open\n"]
    )
)


@given(st.lists(USUAL.map(b"".join), max_size=4))
def test_whole_events_in_one_go_are_read_as_byte_for_byte(chunks: list[bytes]) -> None:
    fast, slow = Decoder(), Decoder()
    for chunk in chunks:
        whole = fast.feed(chunk)
        assert whole == [event for byte in chunk for event in slow.feed(bytes((byte,)))]
    assert fast.end() == slow.end()
