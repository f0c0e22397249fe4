"""The bench of the key tree counts the HMACs that it compares with; its times are not asserted."""

from itertools import islice

from bench import keys_tree
from bench.keys_tree import HMACS_A_RUN, PATH, measure


def test_the_path_prints_what_it_measured() -> None:
    found = measure(10)
    assert found.path == PATH
    assert found.events_per_s > 0 and found.raw_events_per_s > 0 and found.ratio > 0


def test_the_count_is_that_of_the_shortest_way_to_both_keys() -> None:
    letters = [f"{ord(letter):08b}" for letter in "oq"]
    shared = next(n for n in range(8) if letters[0][n] != letters[1][n])
    steps = 8 * 10 + shared + 2 * (8 - shared)
    assert steps + 1 + 2 * 3 == HMACS_A_RUN


def test_the_conversations_node_is_at_hand_before_the_clock_runs() -> None:
    deriver = keys_tree._deriver()
    keys_tree._derive(deriver, list(islice(keys_tree._subjects(), 3)))
    levels = sorted(len(place) for place in deriver._cache._nodes)
    # A user, a conversation, and the runs `before`, 0, 1 and 2.
    assert [length - levels[0] for length in levels] == [0, 11, 21, 21, 21, 21]
