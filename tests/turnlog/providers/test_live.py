"""Reading a response while it comes gives what reading it whole gives, wherever it is cut."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.provider import CHECKOUT_SAMPLES, SHARED
from tests.provider.made import made
from tests.provider.recordings import exchanges
from tests.turnlog.providers.lines import AT_US, DONE, delta, line, stream
from turnlog.providers import Chunk, Exchange, Source, read_source, understand
from turnlog.providers.live import Live

GEMINI = {"candidates": [{"content": {"parts": [{"text": 'a "]}\\ \u00fc'}]}}]}
OLLAMA = {"message": {"role": "assistant", "content": "Hi"}, "done": False}
ODD = [
    stream("chat", delta("\ud83d"), delta("\ude00 ok"), delta(finish="stop"), end=DONE),
    stream("chat", delta("\ud83d"), delta("x", 1)),
    stream("", *([{"no": "form"}] * 25), delta("late")),
    stream("chat", {"type": "message_start", "message": {}}, delta("proposed wins"), end=DONE),
    line("chat", json.dumps(delta("pretty"), indent=1)),
    line("chat", delta("whole"), streaming=True),
    line("gemini", [GEMINI, GEMINI], streaming=True),
    line("gemini", json.dumps([GEMINI, GEMINI], indent=2)[:-30], streaming=True),
    line("", "\n".join(map(json.dumps, (delta("a"), delta("b")))), streaming=True),
    line("", json.dumps(delta("a")) + "\r\n", streaming=True),
    line("chat", "<html>no</html>", status=502),
    line("chat", ": ping\r\rdata: " + json.dumps(delta("cr")) + "\r\r"),
    line("chat", '\ufeffdata: {"choices": []}\n\n' + DONE),
    line("chat", ""),
]


def sources() -> Iterator[Source]:
    yield from map(read_source, ODD)
    yield from exchanges(CHECKOUT_SAMPLES)
    yield from (source for _, _, source in made())


def shown(source: Source, cuts: list[int]) -> list[Chunk]:
    """What a live reader shows of a response that comes in pieces of these sizes, in turns."""
    return seen(source, cuts)[0]


def seen(source: Source, cuts: list[int]) -> tuple[list[Chunk], Exchange | None]:
    """What a live reader shows, and what it says of the whole where it was a stream of events."""
    live, body, at, found = Live(source), source.response, 0, list[Chunk]()
    while at < len(body):
        size = cuts[at % len(cuts)]
        found += live.feed(body[at : at + size])
        at += size
    found += live.end()
    return found, live.exchange(source, at_us=AT_US)


def unnamed(source: Source) -> Source:
    """The same as a server sends it: no word of its framing but the content type."""
    return replace(source, framing="")


@pytest.mark.parametrize("source", list(sources()), ids=lambda source: source.id)
@settings(max_examples=12)
@given(cuts=st.lists(st.integers(1, 5000), min_size=1, max_size=7))
def test_what_is_shown_is_what_the_whole_body_says(source: Source, cuts: list[int]) -> None:
    source = unnamed(source)
    chunks, exchange = seen(source, cuts)
    whole = understand(source, at_us=AT_US)
    assert chunks == whole.chunks
    assert exchange in (None, whole)


@pytest.mark.skipif(not SHARED.exists(), reason="the recordings beside the checkout are not there")
def test_recorded_streams_are_shown_as_they_are_read() -> None:
    for number, source in islice(enumerate(exchanges(SHARED / "streams.jsonl")), 0, None, 4):
        named = unnamed(source)
        cuts = [1 + number % 7] if len(source.response) < 10_000 else [1 + number * 37 % 4096]
        chunks, exchange = seen(named, cuts)
        whole = understand(named, at_us=AT_US)
        assert chunks == whole.chunks, source.id
        assert exchange in (None, whole), source.id


def test_a_stream_of_events_is_read_once() -> None:
    source = read_source(stream("chat", delta("one"), delta(finish="stop"), end=DONE))
    assert seen(source, [7])[1] == understand(source, at_us=AT_US)
    assert seen(read_source(line("chat", delta("whole"))), [7])[1] is None


def test_pieces_come_with_the_bytes_that_complete_them() -> None:
    source = read_source(stream("chat", delta("one"), delta("two")))
    live = Live(source)
    first, second = source.response.split(b"\n\n")[:2]
    assert [chunk.text for chunk in live.feed(first + b"\n")] == []
    assert [chunk.text for chunk in live.feed(b"\n" + second[:-1])] == ["one"]
    assert [chunk.text for chunk in live.feed(second[-1:] + b"\n\n")] == ["two"]
    assert not live.finished


def test_lines_come_at_once_where_the_server_calls_them_so() -> None:
    body = json.dumps(delta("one")) + "\n"
    source = read_source(line("", body))
    assert Live(source).feed(source.response) == []
    called = replace(source, content_type="application/x-ndjson")
    assert [chunk.text for chunk in Live(called).feed(source.response)] == ["one"]
