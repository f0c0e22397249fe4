"""Attack 9: names that could be taken for one another, and index parts that collide."""

import os
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.turnlog.keys.helpers import ORG, RUN, TREE, Store
from turnlog.errors import Erased
from turnlog.keys import DataKey
from turnlog.keys.index import PART_BYTES, Subject, index_of, part_of
from turnlog.keys.walk import dek_of

INDEX_KEY = os.urandom(32)
ids = st.text(st.characters(codec="utf-8"), max_size=64)
subjects = st.builds(Subject, st.just(ORG), ids, ids, ids, st.sampled_from("oqtd"))
# Bytes of the formats around them, separators, combining forms, the longest UTF-8.
ODD = ["", "\0", "a\0", "\0a", "a\0c", "c\0a", "/", "é", "e\u0301", "\U0010ffff", "a" * 64, "o"]


def index(subject: Subject) -> bytes:
    return index_of(INDEX_KEY, 17, 0, subject)


def shared(a: Subject, b: Subject) -> int:
    return len(os.path.commonprefix([index(a), index(b)]))


def short(index_key: bytes, kind: bytes, value: str) -> bytes:
    """A part of which 8 bits tell anything: what a test build has."""
    return part_of(index_key, kind, value)[:1].ljust(PART_BYTES, b"\0")


def short_index(index_key: bytes, subject: Subject) -> bytes:
    """The index of a subject of which each part has 8 bits that tell anything."""
    path = index_of(index_key, 17, 0, subject, short)
    # The run's part is never cached, so that `index_of` takes no other one for it.
    return path[:23] + bytes(PART_BYTES - 1) + path[32:]


def key(store: Store, subject: Subject) -> DataKey:
    """The key of a subject in a tree with short parts."""
    path = short_index(store.index_key, subject)
    return DataKey(dek_of(store.leaf(path), TREE, path, subject))


def test_9_a_run_without_a_conversation_is_not_in_the_conversation_of_that_name() -> None:
    alone = Subject(ORG, "user_7", "", "x", "o")
    inside = Subject(ORG, "user_7", "x", "x", "o")
    assert shared(alone, inside) == 12
    store = Store(17, 17)
    store.puncture(store.index(inside)[:22])
    with pytest.raises(Erased):
        store.leaf(store.index(inside))
    assert store.leaf(store.index(alone))


def test_9_erasing_a_run_without_a_conversation_leaves_the_conversation_of_that_name() -> None:
    alone = Subject(ORG, "user_7", "", "x", "o")
    inside = Subject(ORG, "user_7", "x", "run_2", "o")
    store = Store(17, 17)
    store.puncture(store.index(alone)[:22])
    with pytest.raises(Erased):
        store.leaf(store.index(alone))
    assert store.leaf(store.index(inside))


def test_9_a_run_a_turn_and_an_artefact_of_one_id_are_three_subjects() -> None:
    kinds = [RUN._replace(kind=kind) for kind in "otd"]
    assert [shared(a, b) for a, b in combinations(kinds, 2)] == [22, 22, 22]
    assert shared(RUN, RUN._replace(kind="q")) == 32


def test_9_nobody_is_not_a_user_and_all_of_nobodys_subjects_share_a_place() -> None:
    nobody = RUN._replace(user="")
    assert shared(nobody, nobody._replace(conversation="conv_4")) == 12
    for name in ("a", "u", "nobody", "\0", " "):
        assert shared(nobody, RUN._replace(user=name)) == 1
    store = Store(17, 17)
    store.puncture(store.index(nobody)[:11])
    with pytest.raises(Erased):
        store.leaf(store.index(nobody._replace(id="run_2")))
    assert store.leaf(store.index(RUN))


@given(st.lists(subjects, min_size=2, max_size=6, unique=True))
def test_9_different_subjects_have_different_places(found: list[Subject]) -> None:
    assert len({index(subject) for subject in found}) == len(found)


def test_9_odd_ids_in_every_field_are_all_different() -> None:
    found = [
        Subject(ORG, user, conversation, name, "o")
        for user in ODD
        for conversation in ODD
        for name in ODD
    ]
    assert len({index(subject) for subject in found}) == len(found)
    # Without the help of the index: the ids in the last derivation alone tell them apart.
    assert len({dek_of(bytes(32), TREE, bytes(33), subject) for subject in found}) == len(found)


@settings(max_examples=50)
@given(st.lists(subjects, min_size=2, max_size=6, unique=True))
def test_9_with_parts_of_8_bits_keys_still_differ(found: list[Subject]) -> None:
    leaf = os.urandom(32)
    keys = [dek_of(leaf, TREE, short_index(INDEX_KEY, s), s) for s in found]
    assert all(a != b for a, b in combinations(keys, 2))


@pytest.mark.parametrize("level", [11, 22, 32])
def test_9_with_parts_of_8_bits_what_shares_the_place_is_reported_erased_and_nothing_else(
    level: int,
) -> None:
    store = Store(17, 17)
    field = {11: "user", 22: "conversation", 32: "id"}[level]
    prefix = short_index(store.index_key, RUN)[:level]
    named = [RUN._replace(**{field: f"name_{n}"}) for n in range(2000)]
    at = {s: short_index(store.index_key, s) for s in (RUN, *named)}
    colliding = [subject for subject, path in at.items() if path.startswith(prefix)][:3]
    keys = {subject: key(store, subject).commit for subject in (*colliding, *named[:40])}
    assert len(set(keys.values())) == len(keys)
    store.puncture(prefix)
    over_erased = set()
    for subject, commit in keys.items():
        try:
            assert key(store, subject).commit == commit
        except Erased:
            over_erased.add(subject)
    assert over_erased == {subject for subject in keys if at[subject].startswith(prefix)}
    assert len(over_erased) >= 3
