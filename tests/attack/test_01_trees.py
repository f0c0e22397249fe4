"""Attack 1: trees that both implementations write and read, turn by turn."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.attack.crossing import PLACE, Both, as_second, nodes_of
from tests.attack.second import derive, pages, tree
from tests.turnlog.keys.helpers import ORG, RUN, SIGNER, TREE, Store, runs
from turnlog.keys.heads import Floor, Heads
from turnlog.keys.index import Subject, index_of
from turnlog.keys.rows import head_row_key
from turnlog.keys.walk import dek_of, node_commit, walk

LEVELS = (1, 11, 12, 22, 32, 33)
DAYS = (17, 18)
ROW = head_row_key(ORG, TREE)
SUBJECTS = [*runs(4), RUN._replace(kind="t"), RUN._replace(kind="d", id="conv_3")]

ids = st.text(st.characters(codec="utf-8"), max_size=20)
names = st.builds(Subject, st.just(ORG), ids, ids, ids, st.sampled_from("oqtd"))
keys_32 = st.binary(min_size=32, max_size=32)
steps = st.lists(
    st.tuples(
        st.booleans(),
        st.lists(
            st.tuples(st.sampled_from(SUBJECTS), st.sampled_from(DAYS), st.sampled_from(LEVELS)),
            min_size=1,
            max_size=3,
        ),
    ),
    min_size=1,
    max_size=5,
)


@given(names, keys_32, keys_32, st.integers(1, 31), st.integers(0, 255))
def test_1_any_subject_has_the_same_index_leaf_and_key_in_both(
    subject: Subject, index_key: bytes, node: bytes, day: int, gen: int
) -> None:
    path = index_of(index_key, day, gen, subject)
    other = as_second(subject, day, gen)
    assert path == derive.index(index_key, other)
    leaf = walk(node, path, 8, 264)
    assert leaf == derive.walk(node, derive.bits(path[1:]))
    assert dek_of(leaf, TREE, path, subject) == derive.dek(leaf, TREE, path, other)


@given(keys_32, st.binary(min_size=33, max_size=33), st.integers(8, 264))
def test_1_any_node_has_the_same_commitment_in_both(node: bytes, path: bytes, bits: int) -> None:
    expected = derive.node_commit(node, TREE, derive.bits(path)[:bits])
    assert node_commit(node, TREE, bits, path) == expected


@settings(max_examples=25)
@given(steps)
def test_1_a_tree_punctured_by_both_in_turns_is_one_tree_to_both(
    given_steps: list[tuple[bool, list[tuple[Subject, int, int]]]],
) -> None:
    store = Both(17, 18)
    for second, targets in given_steps:
        prefixes = {store.index(subject, day)[:level] for subject, day, level in targets}
        before, head = len(store.rows), store.head_value
        changes: list[tuple[bytes, bytes | None]] = (
            [(key.encode(), value) for key, value in store.puncture_by_second(*prefixes)]
            if second
            else store.puncture(*prefixes)
        )
        check_shape(store, changes, before)
        check_chain(store, head)
    check_same(store)


def check_shape(store: Both, changes: list[tuple[bytes, bytes | None]], rows_before: int) -> None:
    """Check the order of the rows, and that no row is left that the head does not lead to."""
    heads = [at for at, (key, _) in enumerate(changes) if key.endswith(b"/head")]
    removed = [at for at, (_, value) in enumerate(changes) if value is None]
    assert len(heads) == bool(changes)
    assert removed == list(range(len(changes) - len(removed), len(changes)))
    assert not changes or heads == [len(changes) - len(removed) - 1]
    new = sum(value is not None for _, value in changes) - len(heads)
    assert len(store.rows) == rows_before + new - len(removed)
    assert len(store.rows) == store.tree().size().pages + 1


def check_chain(store: Both, before: bytes) -> None:
    """Check that the head is the one before or follows it, as both compute that."""
    if store.head_value == before:
        return
    old = pages.open_head(PLACE, store.sealer.org_key, SIGNER.public_key(), before)
    assert store.read_by_second().head.prev == pages.digest(before)
    assert store.tree().head.gen == old.gen + 1
    heads = Heads(SIGNER.public_key(), {ROW: Floor(old.gen, pages.digest(before))})
    heads.take(ROW, before, live=False)
    heads.take(ROW, store.head_value, live=True)
    assert heads.value(ROW) == store.head_value


def check_same(store: Both) -> None:
    """Check that both read the same head, nodes and keys from the rows."""
    ours, theirs = store.tree().head, store.read_by_second().head
    assert (ours.gen, ours.minted_through) == (theirs.gen, theirs.minted_through)
    assert ours.label.prev == theirs.prev
    assert nodes_of(store) == tree.nodes(store.read_by_second())
    days = (*DAYS, 19)
    assert store.keys(SUBJECTS, days) == store.keys_by_second(SUBJECTS, days)


@pytest.mark.parametrize("level", LEVELS)
def test_1_both_implementations_puncture_to_the_same_nodes_and_as_many_rows(level: int) -> None:
    one, two = Both(17, 18), Both(17, 18)
    two.sealer, two.rows, two.index_key = one.sealer, dict(one.rows), one.index_key
    for prefix in (one.index(RUN._replace(id="another"))[:32], one.index()[:level]):
        by_product, by_second = one.puncture(prefix), two.puncture_by_second(prefix)
        assert len(by_product) == len(by_second)
        kinds = [[value is None for _, value in rows] for rows in (by_product, by_second)]
        assert kinds[0] == kinds[1]
        sizes = [sorted(len(value or b"") for _, value in rows) for rows in (by_product, by_second)]
        assert sizes[0] == sizes[1]
    assert nodes_of(one) == nodes_of(two)


def test_1_days_minted_by_one_are_keys_of_the_other() -> None:
    store = Both(17, 18)
    store.puncture_by_second(store.index()[:11])
    store.mint_by_second(19, 20)
    store.mint(21, 22)
    assert store.tree().head.gen == 4
    found = store.keys([RUN], range(17, 24))
    assert found == store.keys_by_second([RUN], range(17, 24))
    assert (found[0], found[-1]) == ("erased", "unavailable")
    assert len(set(found)) == 7


def test_1_a_tree_planted_by_the_second_implementation_is_one_of_the_product() -> None:
    store = Both(17, 17)
    days = {3: os.urandom(32), 4: os.urandom(32)}
    _, changes = tree.create(PLACE, store.sealer.org_key, SIGNER, os.urandom(32), days)
    store.rows = {}
    store.apply_second(changes)
    assert store.tree().head.gen == 1
    assert nodes_of(store) == {f"{day:08b}": node for day, node in days.items()}
    assert store.keys([RUN], [3, 4]) == store.keys_by_second([RUN], [3, 4])


def test_1_the_rows_of_one_have_the_keys_of_the_other() -> None:
    store = Store(17, 17)
    key = store.tree().head.page_key
    assert {pages.page_row_key(PLACE, key), pages.head_row_key(PLACE)} == {
        key.decode() for key in store.rows
    }
