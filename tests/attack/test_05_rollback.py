"""Attack 5: rows removed from the topic, removed rows brought back, and the old head with all."""

import random
from collections.abc import Iterator
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.attack.reading import SUBJECTS, check, derived, known
from tests.turnlog.keys.helpers import ORG, RUN, TREE, Store
from turnlog.errors import Erased, KeyUnavailable
from turnlog.keys.heads import Floor, Heads
from turnlog.keys.rows import head_row_key
from turnlog.keys.tree import StoredTree

ROW = head_row_key(ORG, TREE)


class Attacked:
    """A store after some punctures, with every row that was ever in it."""

    def __init__(self) -> None:
        self.store = Store(17, 17)
        self.before = known(self.store)
        self.seen = dict(self.store.rows)
        self.heads = [self.store.head_value]
        self.erased: set[bytes] = set()
        for n, level in ((0, 32), (2, 33), (4, 22), (0, 12)):
            prefix = self.store.index(SUBJECTS[n])[:level]
            self.store.puncture(prefix)
            self.erased.add(prefix)
            self.seen |= self.store.rows
            self.heads.append(self.store.head_value)

    def check_outcomes(self, tree: StoredTree) -> None:
        """Live: the key or `KeyUnavailable`. Erased: never a key."""
        for index, path in self.before.items():
            allowed = Erased if index.startswith(tuple(self.erased)) else path.leaf
            assert derived(tree, index) in (allowed, KeyUnavailable)


@pytest.fixture(scope="module")
def attacked() -> Iterator[Attacked]:
    made = Attacked()
    rows = dict(made.store.rows)
    yield made
    assert made.store.rows == rows


def test_5_without_any_one_page_no_live_key_is_erased_and_no_erased_one_lives(
    attacked: Attacked,
) -> None:
    store = attacked.store
    hidden = 0
    for row_key in [key for key in store.rows if key != ROW]:
        rows = {key: value for key, value in store.rows.items() if key != row_key}
        tree = StoredTree(ORG, TREE, store.tree().head, rows)
        attacked.check_outcomes(tree)
        hidden += any(derived(tree, index) is KeyUnavailable for index in attacked.before)
    assert hidden > 20


def test_5_with_any_removed_rows_brought_back_nothing_changes(attacked: Attacked) -> None:
    store = attacked.store
    removed = {key: value for key, value in attacked.seen.items() if key not in store.rows}
    assert len(removed) > 30
    rows = dict(store.rows)
    for row_key, value in removed.items():
        store.rows = {**rows, row_key: value}
        attacked.check_outcomes(store.tree())
    store.rows = {**removed, **rows}
    check(store, attacked.before, attacked.erased)
    store.rows = rows


def test_5_a_removed_row_in_the_place_of_any_page_is_not_opened(attacked: Attacked) -> None:
    store = attacked.store
    pages = [key for key in store.rows if key != ROW]
    removed = [value for key, value in attacked.seen.items() if key not in store.rows]
    for row_key, value in zip(pages, removed, strict=False):
        rows = {**store.rows, row_key: value}
        attacked.check_outcomes(StoredTree(ORG, TREE, store.tree().head, rows))


@given(chance=st.randoms(use_true_random=False))
@settings(max_examples=25)
def test_5_with_any_mixture_of_rows_old_and_new_the_same_holds(
    attacked: Attacked, chance: random.Random
) -> None:
    head = attacked.store.tree().head
    pool = {**attacked.seen, **attacked.store.rows}
    kept = chance.sample(sorted(pool), chance.randrange(len(pool) + 1))
    # Some under the row keys of others, too.
    rows = {key: pool[chance.choice(kept) if chance.random() < 0.1 else key] for key in kept}
    attacked.check_outcomes(StoredTree(ORG, TREE, head, rows))


def refused(heads: Heads, value: bytes, live: bool) -> bool:
    """Tell whether a head is not served, however it was turned down."""
    try:
        heads.take(ROW, value, live)
        heads.value(ROW)
    except KeyUnavailable:
        return True
    return False


@pytest.mark.parametrize("live", [False, True])
def test_5_any_old_head_with_all_its_pages_is_refused_by_the_floor(
    attacked: Attacked, live: bool
) -> None:
    public = attacked.store.sealer.signer.public_key()
    newest = attacked.heads[-1]
    floor = Floor(len(attacked.heads), sha256(newest).digest())
    for old in attacked.heads[:-1]:
        assert refused(Heads(public, {ROW: floor}), old, live)
    assert not refused(Heads(public, {ROW: floor}), newest, live=False)


@pytest.mark.parametrize("live", [False, True])
def test_5_any_old_head_after_the_newest_stops_the_tree(attacked: Attacked, live: bool) -> None:
    for old in attacked.heads[:-1]:
        heads = Heads(attacked.store.sealer.signer.public_key())
        assert not refused(heads, attacked.heads[-1], live=False)
        assert refused(heads, old, live)
        assert ROW in heads.stopped()


def test_5_the_floor_that_a_reader_leaves_refuses_them_in_the_next_one(
    attacked: Attacked,
) -> None:
    public = attacked.store.sealer.signer.public_key()
    first = Heads(public)
    for value in attacked.heads:
        first.take(ROW, value, live=False)
    floors = first.floors()
    for old in attacked.heads[:-1]:
        assert refused(Heads(public, floors), old, live=False)
    assert not refused(Heads(public, floors), attacked.heads[-1], live=False)


def test_5_the_old_history_continued_by_the_keeper_itself_is_refused_at_the_floor(
    attacked: Attacked,
) -> None:
    # The old head with all its pages, in another store, and there other punctures up to the same
    # generation: signed, well formed, and not what was seen.
    fork, public = Store(17, 17), attacked.store.sealer.signer.public_key()
    fork.sealer, fork.rows = attacked.store.sealer, {**attacked.seen, ROW: attacked.heads[0]}
    for name in range(len(attacked.heads) - 1):
        fork.puncture(fork.index(RUN._replace(id=f"other_{name}"))[:32])
    assert fork.tree().head.gen == len(attacked.heads)
    floor = Floor(len(attacked.heads), sha256(attacked.heads[-1]).digest())
    assert refused(Heads(public, {ROW: floor}), fork.head_value, live=False)


def test_5_without_a_floor_the_old_rows_do_open_what_was_erased(attacked: Attacked) -> None:
    # Why floors are needed at all, and why a certificate waits until old heads are gone.
    store = attacked.store
    rows = dict(store.rows)
    store.rows = {**attacked.seen, ROW: attacked.heads[0]}
    assert known(store) == attacked.before
    store.rows = rows
