"""Chunk batches and the output that they add up to."""

from hypothesis import given, settings
from hypothesis import strategies as st

from turnlog.producer.output import PIECE_CHARS, Chunk, Output

texts = st.text(alphabet=st.characters(exclude_categories=()), max_size=20)
chunks = st.builds(
    Chunk,
    st.integers(0, 10**9),
    st.integers(0, 2),
    st.sampled_from(["text", "reasoning", "refusal", "tool_call"]),
    texts,
    st.integers(0, 1),
)


@settings(max_examples=50)
@given(st.lists(st.lists(chunks, max_size=8), max_size=6))
def test_offsets_are_continuous_over_batches(groups: list[list[Chunk]]) -> None:
    output, at, seq = Output(), 0, 0
    for group in groups:
        for batch in output.batches(group):
            assert batch.body["char_offset"] == at
            assert batch.body["first_seq"] == seq
            at += batch.body["chars"]
            seq += batch.body["chunks"]
            assert batch.body["last_seq"] == seq - 1
            assert sum(len(packed[3]) for packed in batch.content["chunks"]) == batch.body["chars"]
    assert at == output.chars == sum(len(chunk.text) for group in groups for chunk in group)


@settings(max_examples=50)
@given(st.lists(chunks, max_size=20))
def test_output_keeps_choices_and_kinds_apart(shown: list[Chunk]) -> None:
    output = Output()
    list(output.batches(shown))
    for choice in output.content().get("output", []):
        for kind in ("text", "reasoning", "refusal"):
            of_kind = [c.text for c in shown if (c.choice, c.kind) == (choice["index"], kind)]
            assert choice.get(kind, "") == "".join(of_kind)
        calls = {c.call for c in shown if (c.choice, c.kind) == (choice["index"], "tool_call")}
        assert len(choice.get("tool_calls", [])) == len(calls)


def test_tool_call_deltas_add_up_to_one_call() -> None:
    output = Output()
    first = Chunk(1, 0, "tool_call", '{"ci', 0, "call_1", "weather")
    list(output.batches([first, Chunk(2, 0, "tool_call", 'ty":1}', 0)]))
    (choice,) = output.content()["output"]
    assert choice["tool_calls"] == [{"id": "call_1", "name": "weather", "arguments": '{"city":1}'}]


def test_a_huge_chunk_is_cut_into_pieces_that_fit_frames() -> None:
    output = Output()
    text = "🙂" * (2 * PIECE_CHARS + 7)
    batches = list(output.batches([Chunk(5, 0, "text", text)]))
    assert [batch.body["chars"] for batch in batches] == [PIECE_CHARS, PIECE_CHARS, 7]
    assert output.content()["output"] == [{"index": 0, "text": text}]
    assert (output.chunks, output.pieces) == (3, 1)


def test_nothing_shown_is_no_content() -> None:
    output = Output()
    assert list(output.batches([])) == []
    assert output.content() == {}


def test_timeline_names_time_choice_and_offset_of_each_chunk() -> None:
    output = Output()
    list(output.batches([Chunk(10, 0, "text", "ab"), Chunk(20, 1, "text", "c")]))
    assert output.content()["timeline"] == [[10, 0, 0], [20, 1, 2]]
