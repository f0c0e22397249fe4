import os
import threading

import pytest

from tests.turnlog.keys.helpers import RUN, TREE, Store
from turnlog.errors import Erased, KeyUnavailable
from turnlog.keys.cache import NODE_SECONDS, Deriver, NodeCache, scope_of
from turnlog.keys.index import Locator
from turnlog.keys.tree import StoredTree
from turnlog.keys.walk import LEAF_BITS

LOCATOR = Locator(TREE, 17, 0)


class Clock:
    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


class Counted:
    """A tree that counts how often its pages were asked."""

    def __init__(self, tree: StoredTree) -> None:
        self.tree = tree
        self.asked = 0

    def covering(self, index: bytes) -> tuple[int, bytes]:
        self.asked += 1
        return self.tree.covering(index)


def deriver(store: Store, cache: NodeCache) -> tuple[Deriver, Counted]:
    tree = store.tree()
    counted = Counted(tree)
    return Deriver(TREE, tree.head.gen, tree.head.index_key, counted, cache), counted


def test_a_cached_walk_gives_the_same_leaf() -> None:
    store = Store()
    found, _ = deriver(store, NodeCache())
    for subject in (RUN, RUN._replace(kind="q"), RUN._replace(id="b"), RUN._replace(user="")):
        index = store.index(subject)
        assert found.leaf(index) == found.leaf(index) == store.leaf(index)


def test_both_keys_of_a_run_ask_the_pages_once() -> None:
    found, counted = deriver(Store(), NodeCache())
    keys = [found.data_key(LOCATOR, RUN._replace(kind=kind)).dek_id for kind in "oq"]
    assert counted.asked == 1
    assert keys[0] != keys[1]


def test_a_node_is_forgotten_after_a_minute() -> None:
    clock = Clock()
    found, counted = deriver(Store(), NodeCache(clock=clock))
    found.data_key(LOCATOR, RUN)
    clock.at += NODE_SECONDS - 1
    found.data_key(LOCATOR, RUN)
    assert counted.asked == 1
    clock.at += 1
    found.data_key(LOCATOR, RUN)
    assert counted.asked == 2


def test_the_cache_is_bounded_and_lets_go_of_the_oldest() -> None:
    cache = NodeCache(capacity=3)
    for place in (b"a", b"b", b"c"):
        cache.put(place, place * 32)
    assert cache.get(b"a") == b"a" * 32
    cache.put(b"d", b"d" * 32)
    assert len(cache) == 3
    assert cache.get(b"a") is None
    assert cache.get(b"b") and cache.get(b"c") and cache.get(b"d")


def test_a_new_head_is_never_answered_from_the_nodes_of_the_old_one() -> None:
    store, cache = Store(), NodeCache()
    before, _ = deriver(store, cache)
    before.data_key(LOCATOR, RUN)
    store.puncture(store.index()[:32])
    after, _ = deriver(store, cache)
    with pytest.raises(Erased):
        after.data_key(LOCATOR, RUN)
    assert after.leaf(store.index(RUN._replace(id="b"))) == store.leaf(
        store.index(RUN._replace(id="b"))
    )


def test_a_dropped_tree_leaves_the_others_cached() -> None:
    cache = NodeCache()
    one, other = os.urandom(16), os.urandom(16)
    cache.put(one + b"x", bytes(32))
    cache.put(other + b"x", bytes(32))
    cache.drop(one)
    assert cache.get(one + b"x") is None
    assert cache.get(other + b"x") == bytes(32)


def test_a_punctured_place_is_erased_and_an_unminted_day_is_not() -> None:
    store = Store(17, 17)
    store.puncture(store.index()[:22])
    found, _ = deriver(store, NodeCache())
    with pytest.raises(Erased):
        found.data_key(LOCATOR, RUN)
    with pytest.raises(KeyUnavailable):
        found.data_key(LOCATOR._replace(day=18), RUN)


def test_threads_share_a_cache() -> None:
    store, cache = Store(), NodeCache(capacity=50)
    found, _ = deriver(store, cache)
    indexes = [store.index(RUN._replace(id=str(n), conversation=str(n % 7))) for n in range(40)]
    tree = store.tree()
    wanted = {index: tree.derive(index, LEAF_BITS) for index in indexes}
    wrong: list[bytes] = []

    def work() -> None:
        wrong.extend(index for index in indexes * 3 if found.leaf(index) != wanted[index])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(cache) <= 50


def test_orgs_that_share_a_cache_never_share_a_node() -> None:
    store, other, cache = Store(), Store(), NodeCache()
    tree, foreign = store.tree(), other.tree()
    one = Deriver(TREE, 1, tree.head.index_key, tree, cache, "one")
    # The same tree id, generation and index: all that differs is the org.
    two = Deriver(TREE, 1, tree.head.index_key, foreign, cache, "two")
    index = store.index()
    assert one.leaf(index) != two.leaf(index)
    assert two.leaf(index) == foreign.derive(index, LEAF_BITS)
    cache.drop(scope_of("one", TREE))
    assert len(cache) == 3


def test_what_is_too_old_leaves_memory_without_being_asked_for() -> None:
    clock = Clock()
    cache = NodeCache(clock=clock)
    cache.put(b"a", bytes(32))
    clock.at += NODE_SECONDS / 2
    cache.put(b"b", bytes(32))
    clock.at += NODE_SECONDS / 2
    cache.forget()
    assert len(cache) == 1
    assert cache.get(b"b") == bytes(32)
