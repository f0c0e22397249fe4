"""The short way through a usual chunk says what the long way says of it."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from turnlog.providers import chat
from turnlog.providers.framing import Piece
from turnlog.providers.reading import MAX_CHOICES, Reading

ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, "", "x", 0, 1, -1, True, 1.5, [], {}, {"error": "e"}, "error", "stop"]
)


def mostly(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(usual, usual, usual, ODD)


def fields(always: dict[str, Any], sometimes: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {name: mostly(value) for name, value in always.items()},
        optional={name: mostly(value) for name, value in sometimes.items()},
    )


TEXT = st.sampled_from(["a", "Yes, ", "\ud83d", "é", ""])
DELTA = fields({"content": TEXT}, {"role": st.just("assistant"), "refusal": st.none()})
PLAIN = st.fixed_dictionaries({"content": TEXT})
CHOICE = fields(
    {"index": st.sampled_from([0, 1, MAX_CHOICES]), "delta": st.one_of(PLAIN, PLAIN, DELTA)},
    {"finish_reason": st.none(), "logprobs": st.none(), "error": ODD, "text": TEXT},
)
CHUNK = fields(
    {"id": st.just("c1"), "model": st.just("m"), "choices": st.lists(CHOICE, max_size=2)},
    {
        "usage": st.sampled_from([None, {}, {"total_tokens": 1}]),
        "service_tier": st.just("default"),
        "error": st.none(),
        "x_groq": st.none(),
    },
)


@given(chunks=st.lists(CHUNK, min_size=1, max_size=4), event=st.sampled_from(["", "", "error"]))
def test_both_ways_say_the_same(chunks: list[dict[str, Any]], event: str) -> None:
    short, long = Reading(), Reading()
    for chunk in chunks:
        piece = Piece(json.dumps(chunk), chunk, event)
        chat.read([piece], short)
        chat._body(piece, long)
    assert short == long


def test_a_usual_chunk_takes_the_short_way() -> None:
    choice = {"index": 0, "delta": {"content": "x"}, "logprobs": None, "finish_reason": None}
    chunk = {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    reading = Reading(response_id="c", model="m")
    assert chat._is_usual(Piece("", chunk), reading)
    assert not chat._is_usual(Piece("", {**chunk, "usage": {}}), reading)
