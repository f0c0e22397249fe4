"""Which calls of a trace repeat others."""

from itertools import permutations

from serve.otel.lineage import MAX_DEPTH, covered


def test_only_the_leaf_of_a_chain_of_calls_is_left() -> None:
    parents = {"a": "", "b": "a", "tool": "b", "c": "tool"}
    assert covered(parents, dict.fromkeys("abc", "call")) == {"a", "b"}


def test_a_call_beside_another_is_a_leaf_too() -> None:
    parents = {"agent": "", "a": "agent", "b": "agent"}
    assert covered(parents, {"a": "call", "b": "call"}) == set()


def test_an_embedding_below_a_call_does_not_stand_for_it() -> None:
    assert covered({"a": "", "e": "a"}, {"a": "call", "e": "embedding"}) == set()


def test_a_parent_that_is_not_known_yet_hides_what_is_above() -> None:
    booked = {"a": "call", "c": "call"}
    assert covered({"a": "", "c": "b"}, booked) == set()
    assert covered({"a": "", "c": "b", "b": "a"}, booked) == {"a"}


def test_loops_and_long_chains_end() -> None:
    for first, second in permutations("ab"):
        assert covered({first: second, second: first}, {"a": "call"}) == set()
    chain = {str(n): str(n + 1) for n in range(MAX_DEPTH * 4)}
    assert covered(chain, {"0": "call", str(MAX_DEPTH * 2): "call"}) == set()
