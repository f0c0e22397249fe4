"""Attack 2: any sequence of punctures erases exactly its prefixes and known no way back."""

import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.attack.reading import DAYS, LEVELS, SUBJECTS, Known, check, copied, known, secrets_of
from tests.turnlog.keys.helpers import ORG, RUN, TREE, Store
from turnlog.errors import Erased
from turnlog.keys.rows import head_row_key
from turnlog.keys.walk import LEAF_BITS, walk

Target = tuple[int, int, int]
"""Which subject, which day, how many bytes of its index."""

targets = st.tuples(
    st.integers(0, len(SUBJECTS) - 1), st.sampled_from(DAYS), st.sampled_from(LEVELS)
)
punctures = st.lists(st.lists(targets, min_size=1, max_size=4), min_size=1, max_size=5)


@cache
def three_days() -> tuple[Store, Known]:
    """Return a tree that every example begins with, and all keys of it."""
    store = Store(17, 19)
    return store, known(store)


@settings(max_examples=25)
@given(punctures)
def test_2_any_sequence_of_punctures_erases_exactly_its_prefixes(
    batches: list[list[Target]],
) -> None:
    planted, before = three_days()
    store = copied(planted)
    erased: set[bytes] = set()
    for batch in batches:
        prefixes = {store.index(SUBJECTS[n], day)[:level] for n, day, level in batch}
        rows = store.puncture(*prefixes)
        already = all(any(p.startswith(e) for e in erased) for p in prefixes)
        assert (rows == []) == already
        erased |= prefixes
        # Nothing that the head does not lead to is left behind.
        assert len(store.rows) == store.tree().size().pages + 1
    check(store, before, erased)


@settings(max_examples=10)
@given(st.lists(targets, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_2_the_order_and_the_batches_make_no_difference(
    given_targets: list[Target], chance: random.Random
) -> None:
    one, two = map(copied, [three_days()[0]] * 2)
    prefixes = [one.index(SUBJECTS[n], day)[:level] for n, day, level in given_targets]
    one.puncture(*prefixes)
    for prefix in chance.sample(prefixes, len(prefixes)):
        two.puncture(prefix)
    assert sorted(one.tree().cover()) == sorted(two.tree().cover())


def test_2_a_puncture_repeated_changes_nothing() -> None:
    store = Store()
    prefix = store.index()[:32]
    assert store.puncture(prefix)
    assert store.puncture(prefix) == []
    assert store.puncture(prefix + b"o", prefix + b"q") == []


@pytest.mark.parametrize("level", [32, 33])
def test_2_both_keys_of_a_run_are_one_prefix_and_each_is_one(level: int) -> None:
    store = Store()
    before = known(store, [RUN, RUN._replace(kind="q"), RUN._replace(id="run_2")])
    erased = {store.index()[:level]}
    store.puncture(*erased)
    check(store, before, erased)


@pytest.mark.parametrize("level", LEVELS)
def test_2_a_later_generation_of_the_user_lives_unless_user_or_day_went(level: int) -> None:
    store = Store()
    later = store.index(gen=1)
    leaf = store.leaf(later)
    store.puncture(store.index()[:level])
    if level < 12:
        with pytest.raises(Erased):
            store.leaf(later)
    else:
        assert store.leaf(later) == leaf


def test_2_a_prefix_of_a_prefix_swallows_it() -> None:
    planted, before = three_days()
    store = copied(planted)
    index = store.index(SUBJECTS[0])
    erased = {index[:11], index[:22], index[:32], index}
    store.puncture(*erased)
    check(store, before, {index[:11]})


def test_2_a_thousand_requests_of_one_conversation_are_one_change() -> None:
    store = Store(17, 17)
    requests = [RUN._replace(id=f"run_{n}", kind="q") for n in range(1000)]
    outputs = [subject._replace(kind="o") for subject in requests[:20]]
    before = known(store, [*requests[:20], *outputs])
    erased = {store.index(subject) for subject in requests}
    rows = store.puncture(*erased)
    assert sum(key == head_row_key(ORG, TREE) for key, _ in rows) == 1
    assert store.tree().head.gen == 2
    check(store, before, erased)


def test_2_an_emptied_page_keeps_its_link() -> None:
    store = Store(17, 17)
    index = store.index()
    # All 256 values of the byte below the user, one after the other.
    for gen in range(256):
        store.puncture(index[:11] + bytes((gen,)))
    with pytest.raises(Erased):
        store.leaf(index)
    tree = store.tree()
    assert tree.size().pages == 12
    assert list(tree.cover(index[:11])) == []


def test_2_a_page_has_at_most_256_entries_however_it_was_torn() -> None:
    store = Store(17, 17)
    user = store.index()[:11]
    # One run in every generation: each byte of that page becomes a link.
    store.puncture(*(user + bytes((gen,)) + bytes(20) for gen in range(256)))
    tree = store.tree()
    assert tree.size().links == 11 + 256 * 20
    secrets_of(tree)


def test_2_erasing_a_run_writes_33_rows_and_removes_what_it_replaces() -> None:
    store = Store(17, 17)
    rows = store.puncture(store.index()[:32])
    assert sum(value is not None for _, value in rows) == 33
    assert sum(value is None for _, value in rows) == 1
    for name in ("run_2", "run_3"):
        again = store.puncture(store.index(RUN._replace(id=name))[:32])
        assert sum(value is not None for _, value in again) <= 33
        assert sum(value is None for _, value in again) >= 22
        assert len(store.rows) == store.tree().size().pages + 1


def test_2_a_user_swallows_the_pages_of_his_erased_runs() -> None:
    store = Store(17, 17)
    for name in ("run_1", "run_2", "run_3"):
        store.puncture(store.index(RUN._replace(id=name))[:32])
    store.puncture(store.index()[:11])
    assert len(store.rows) == store.tree().size().pages + 1
    assert store.tree().size().pages == 11


def test_2_no_page_key_outlives_the_head_that_led_to_it() -> None:
    store = Store(17, 17)
    tree = store.tree()
    seen = {tree.head.page_key}
    for name in ("run_1", "run_2"):
        index = store.index(RUN._replace(id=name))
        store.puncture(index[:32])
        tree = store.tree()
        path, page_key = [tree.head.page_key], tree.head.page_key
        for depth in range(31):
            page_key = tree.page(index[:depth], page_key)[255, index[depth]]
            path.append(page_key)
        # Every page on the way to what was erased is a new one under a new key.
        assert seen.isdisjoint(path)
        seen |= secrets_of(tree) | {tree.head.page_key}


def test_2_no_stored_node_leads_to_an_erased_leaf_wherever_it_claims_to_sit() -> None:
    store = Store(17, 17)
    index = store.index()
    leaf = store.leaf(index)
    store.puncture(index[:32])
    for node in store.tree().cover():
        assert walk(node.node, index, node.bits, LEAF_BITS) != leaf
