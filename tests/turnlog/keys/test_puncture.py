"""Attack tests 2 to 5 of keys.md section 6, each named after its number."""

import random
from hashlib import sha256
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.turnlog.keys.helpers import ORG, RUN, TREE, Store, runs
from turnlog.errors import Erased, KeyUnavailable, UsageError
from turnlog.keys.heads import Floor, Heads
from turnlog.keys.index import Subject
from turnlog.keys.puncture import puncture
from turnlog.keys.rows import LINK, Row, head_row_key
from turnlog.keys.tree import StoredTree
from turnlog.keys.walk import LEAF_BITS, masked, walk

DAYS = (17, 18, 19)
LEVELS = (1, 11, 12, 22, 32, 33)
SUBJECTS = runs(7)


def leaves(store: Store, subjects: list[Subject] = SUBJECTS) -> dict[bytes, bytes]:
    """Return the leaf of each subject on each day, by index."""
    tree = store.tree()
    indexes = [store.index(subject, day) for subject, day in product(subjects, DAYS)]
    return {index: tree.derive(index, LEAF_BITS) for index in indexes}


def check(store: Store, before: dict[bytes, bytes], erased: set[bytes]) -> None:
    """Check that live keys are unchanged, and that neither leaf nor ancestor of others is left."""
    tree, gone = store.tree(), tuple(erased)
    for index, leaf in before.items():
        assert derived(tree, index) == (Erased if index.startswith(gone) else leaf)
    paths = {(node.bits, node.path) for node in tree.cover()}
    for index in before:
        ancestors = {(bits, masked(index, bits)) for bits in range(1, LEAF_BITS + 1)}
        assert len(ancestors & paths) == (not index.startswith(gone))


punctures = st.lists(
    st.lists(
        st.tuples(
            st.integers(0, len(SUBJECTS) - 1), st.sampled_from(DAYS), st.sampled_from(LEVELS)
        ),
        min_size=1,
        max_size=4,
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=20, deadline=None)
@given(punctures)
def test_2_any_sequence_of_punctures_erases_exactly_its_prefixes(
    batches: list[list[tuple[int, int, int]]],
) -> None:
    store = Store(17, 19)
    before = leaves(store)
    erased: set[bytes] = set()
    for batch in batches:
        prefixes = {store.index(SUBJECTS[n], day)[:level] for n, day, level in batch}
        rows = store.puncture(*prefixes)
        already = all(any(p.startswith(e) for e in erased) for p in prefixes)
        assert (rows == []) == already
        erased |= prefixes
    check(store, before, erased)
    assert all(len(value) <= 21 + 34 * 256 + 16 for value in store.rows.values())


def test_2_a_puncture_repeated_changes_nothing() -> None:
    store = Store()
    prefix = store.index()[:32]
    assert store.puncture(prefix)
    assert store.puncture(prefix) == []
    assert store.puncture(prefix + b"o", prefix + b"q") == []


def test_2_both_keys_of_a_run_are_one_prefix_and_two_punctures() -> None:
    for prefixes in ([32], [33]):
        store = Store()
        before = leaves(store, [RUN, RUN._replace(kind="q"), RUN._replace(id="run_2")])
        erased = {store.index()[: prefixes[0]]}
        store.puncture(*erased)
        check(store, before, erased)


def test_2_a_prefix_of_a_prefix_swallows_it() -> None:
    store = Store()
    before = leaves(store)
    index = store.index(SUBJECTS[0])
    erased = {index[:11], index[:22], index[:32], index}
    store.puncture(*erased)
    check(store, before, {index[:11]})


def test_2_a_thousand_requests_of_one_conversation_are_one_change() -> None:
    store = Store(17, 17)
    subjects = [RUN._replace(id=f"run_{n}", kind="q") for n in range(1000)]
    outputs = [subject._replace(kind="o") for subject in subjects[:20]]
    before = {store.index(subject): store.leaf(store.index(subject)) for subject in outputs}
    rows = store.puncture(*(store.index(subject) for subject in subjects))
    assert sum(key == head_row_key(ORG, TREE) for key, _ in rows) == 1
    assert all(store.leaf(index) == leaf for index, leaf in before.items())
    for subject in random.Random(1).sample(subjects, 20):
        with pytest.raises(Erased):
            store.leaf(store.index(subject))


def test_2_an_emptied_page_keeps_its_link() -> None:
    store = Store(17, 17)
    index = store.index()
    # All 256 values of the byte below the user, one after the other.
    store.puncture(*(index[:11] + bytes((gen,)) for gen in range(256)))
    with pytest.raises(Erased):
        store.leaf(index)
    tree = store.tree()
    assert tree.size().pages == 12
    assert list(tree.cover(index[:11])) == []


def test_2_erasing_a_run_writes_33_rows_and_removes_what_it_replaces() -> None:
    store = Store(17, 17)
    rows = store.puncture(store.index()[:32])
    assert sum(value is not None for _, value in rows) == 33
    assert sum(value is None for _, value in rows) == 1
    again = store.puncture(store.index(RUN._replace(id="run_2"))[:32])
    assert sum(value is not None for _, value in again) <= 33
    # Nothing that cannot be reached is left behind.
    assert len(store.rows) == store.tree().size().pages + 1


def test_2_a_user_swallows_the_pages_of_his_erased_runs() -> None:
    store = Store(17, 17)
    for name in ("run_1", "run_2", "run_3"):
        store.puncture(store.index(RUN._replace(id=name))[:32])
    store.puncture(store.index()[:11])
    assert len(store.rows) == store.tree().size().pages + 1
    assert store.tree().size().pages == 11


def test_2_no_stored_node_leads_to_an_erased_leaf_wherever_it_claims_to_sit() -> None:
    store = Store(17, 17)
    index = store.index()
    leaf = store.leaf(index)
    store.puncture(index[:32])
    for node in store.tree().cover():
        assert walk(node.node, index, node.bits, LEAF_BITS) != leaf


def batches(store: Store) -> list[set[bytes]]:
    one, two = store.index(SUBJECTS[0]), store.index(SUBJECTS[4], 18)
    return [{one[:32]}, {one[:22], two}, {one[:12]}, {one[:11], two[:1]}]


def test_3_stopped_after_any_row_every_live_key_derives_and_a_retry_completes() -> None:
    store = Store(17, 19)
    before = leaves(store, SUBJECTS[:6])
    erased: set[bytes] = set()
    for batch in batches(store):
        rows = store.punctured(*batch)
        intact = dict(store.rows)
        head_at = next(at for at, (key, _) in enumerate(rows) if key.endswith(b"/head"))
        stops = {0, 1, head_at - 1, head_at, head_at + 1, head_at + 2, len(rows) - 1, len(rows)}
        for kept in sorted(stops & set(range(len(rows) + 1))):
            store.rows = dict(intact)
            store.apply(rows[:kept])
            done = kept > head_at
            check(store, before, erased | (batch if done else set()))
            store.puncture(*batch)
            check(store, before, erased | batch)
        erased |= batch


def test_3_with_the_head_written_first_it_must_fail() -> None:
    store = Store(17, 19)
    live = store.index(SUBJECTS[2])
    rows = store.punctured(store.index(SUBJECTS[0])[:32])
    head_first = sorted(rows, key=lambda row: not row[0].endswith(b"/head"))
    store.apply(head_first[:2])
    with pytest.raises(KeyUnavailable):
        store.leaf(live)


def test_4_a_run_and_then_its_user_applied_to_a_fresh_store_erase_the_user() -> None:
    store = Store(17, 19)
    before = leaves(store)
    fresh = Store(17, 19)
    fresh.sealer, fresh.rows = store.sealer, dict(store.rows)
    user = store.index(SUBJECTS[0])[:11]
    changes: list[Row] = []
    for prefix in (store.index(SUBJECTS[0])[:32], user):
        changes += store.puncture(prefix)
    fresh.apply(changes)
    check(fresh, before, {user})


def test_5_a_missing_page_never_makes_a_live_key_erased_or_an_erased_one_live() -> None:
    store = Store(17, 17)
    before = {store.index(subject): store.leaf(store.index(subject)) for subject in SUBJECTS}
    erased = store.index(SUBJECTS[0])[:32]
    store.puncture(erased)
    for row_key in list(store.rows):
        if row_key.endswith(b"/head"):
            continue
        value = store.rows.pop(row_key)
        tree = store.tree()
        for index, leaf in before.items():
            outcome = derived(tree, index)
            if index.startswith(erased):
                assert outcome in (Erased, KeyUnavailable)
            else:
                assert outcome in (leaf, KeyUnavailable)
        store.rows[row_key] = value


def test_5_a_removed_row_brought_back_changes_nothing() -> None:
    store = Store(17, 17)
    before = {store.index(subject): store.leaf(store.index(subject)) for subject in SUBJECTS}
    seen = dict(store.rows)
    erased = set()
    for subject in (SUBJECTS[0], SUBJECTS[4]):
        erased.add(store.index(subject)[:32])
        store.puncture(store.index(subject)[:32])
        for row_key, value in seen.items():
            store.rows.setdefault(row_key, value)
        seen |= store.rows
    check(store, before, erased)


def derived(tree: StoredTree, index: bytes) -> bytes | type[Exception]:
    try:
        return tree.derive(index, LEAF_BITS)
    except (Erased, KeyUnavailable) as error:
        return type(error)


def test_5_the_old_head_with_all_its_pages_is_refused_by_the_floor() -> None:
    store = Store(17, 17)
    row_key, old = head_row_key(ORG, TREE), store.head_value
    store.puncture(store.index()[:32])
    floor = Floor(2, sha256(store.head_value).digest())
    public = store.sealer.signer.public_key()
    heads = Heads(public, {row_key: floor})
    with pytest.raises(KeyUnavailable, match="generation 1 after 2"):
        heads.take(row_key, old, live=False)
    with pytest.raises(KeyUnavailable, match="stopped"):
        heads.value(row_key)


def test_a_day_that_is_not_minted_cannot_be_punctured() -> None:
    store = Store(17, 17)
    with pytest.raises(KeyUnavailable, match="not minted"):
        store.puncture(bytes((18,)))


@pytest.mark.parametrize("prefix", [b"", bytes(34)])
def test_a_prefix_of_no_length_or_too_long_is_refused(prefix: bytes) -> None:
    with pytest.raises(UsageError):
        Store(17, 17).puncture(prefix)


def test_a_page_that_does_not_open_stops_the_puncture() -> None:
    store = Store(17, 17)
    store.puncture(store.index()[:32])
    tree = store.tree()
    link = tree.page(b"", tree.head.page_key)[LINK, 17]
    assert link
    for row_key in list(store.rows):
        if not row_key.endswith(b"/head"):
            store.rows[row_key] = store.rows[row_key][:-1] + b"\0"
    with pytest.raises(KeyUnavailable):
        puncture(store.tree(), [store.index(RUN._replace(id="run_2"))[:32]], store.sealer)


def test_the_cover_of_a_day_is_what_is_alive_of_it() -> None:
    store = Store(17, 18)
    assert [(n.bits, n.path) for n in store.tree().cover(b"\x12")] == [(8, b"\x12")]
    store.puncture(store.index()[:32])
    cover = list(store.tree().cover(b"\x11"))
    assert len(cover) == 248
    inside = store.index(RUN._replace(id="run_2"))
    [(bits, node)] = [(n.bits, n.node) for n in cover if masked(inside, n.bits) == n.path]
    assert walk(node, inside, bits, LEAF_BITS) == store.leaf(inside)
    assert list(store.tree().cover(store.index()[:32])) == []
