import pytest

from tests.turnlog.keys.helpers import RUN, Store
from turnlog.errors import Erased, KeyUnavailable, UsageError
from turnlog.keys.mint import mint
from turnlog.keys.walk import LEAF_BITS


def test_a_new_tree_has_the_days_that_were_minted_and_no_others() -> None:
    store = Store(17, 19)
    for day in (17, 18, 19):
        assert len(store.leaf(store.index(day=day))) == 32
    with pytest.raises(Erased):
        store.leaf(store.index(day=16))
    with pytest.raises(KeyUnavailable, match="not minted"):
        store.leaf(store.index(day=20))


def test_minting_adds_days_and_leaves_the_others_alone() -> None:
    store = Store(17, 19)
    before = store.leaf(store.index(day=18))
    rows = store.mint(17, 22)
    assert [value is None for _, value in rows] == [False, False, True]
    head = store.tree().head
    assert (head.gen, head.minted_through) == (2, 22)
    assert store.leaf(store.index(day=18)) == before
    assert len(store.leaf(store.index(day=22))) == 32


def test_the_next_head_names_the_one_before() -> None:
    store = Store()
    digest = store.tree().head.digest
    store.mint(20, 20)
    assert store.tree().head.label.prev == digest


def test_a_day_is_never_minted_twice_also_after_it_was_erased() -> None:
    store = Store(17, 19)
    store.puncture(bytes((18,)))
    assert store.mint(17, 19) == []
    store.mint(17, 21)
    with pytest.raises(Erased):
        store.leaf(store.index(day=18))


def test_days_that_were_skipped_are_never_minted() -> None:
    store = Store(3, 5)
    store.mint(9, 12)
    assert store.mint(6, 12) == []
    with pytest.raises(Erased):
        store.leaf(store.index(day=7))
    assert len(store.leaf(store.index(day=9))) == 32


def test_the_whole_page_is_replaced_and_the_old_one_removed() -> None:
    store = Store(17, 17)
    store.mint(18, 31)
    assert len(store.rows) == 2
    assert store.tree().size() == (1, 15, 0)


@pytest.mark.parametrize(("first", "last"), [(0, 3), (5, 4), (30, 32)])
def test_what_is_no_day_of_a_month_is_refused(first: int, last: int) -> None:
    with pytest.raises(UsageError):
        Store(first, last)


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_a_mint_that_stops_after_any_row_leaves_every_key(kept: int) -> None:
    store = Store(17, 17)
    store.puncture(store.index(RUN._replace(id="gone"))[:32])
    leaf = store.leaf(store.index())
    store.apply(mint(store.tree(), 18, 20, store.sealer)[:kept])
    assert store.tree().derive(store.index(), LEAF_BITS) == leaf
    store.mint(18, 20)
    assert len(store.leaf(store.index(day=20))) == 32
