"""Searching a stored tree for what must not be in it, without the code under test.

What a page says of its nodes is not believed: besides the places of the stored nodes their values
are compared with those of every node on the way to what was erased.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import NamedTuple

from tests.attack.second.derive import bits, child
from tests.turnlog.keys.helpers import Store, runs
from turnlog.errors import Erased, KeyUnavailable
from turnlog.keys.index import Subject
from turnlog.keys.rows import LINK, MAX_ENTRIES
from turnlog.keys.tree import StoredTree
from turnlog.keys.walk import LEAF_BITS

DAYS = (17, 18, 19)
LEVELS = (1, 11, 12, 22, 32, 33)
SUBJECTS = runs(7)

Outcome = bytes | type[Exception]


class Path(NamedTuple):
    """What is known of one key before anything is erased.

    Attributes:
        leaf: its leaf.
        places: the places on its path, in bits, from the first bit of the day to the leaf.
        nodes: the nodes on its path, from the day to the leaf.
    """

    leaf: bytes
    places: frozenset[str]
    nodes: frozenset[bytes]


Known = Mapping[bytes, Path]


def copied(store: Store) -> Store:
    """Return a store with the same tree, to be changed by itself."""
    copy = Store(17, 17)
    copy.sealer, copy.rows, copy.index_key = store.sealer, dict(store.rows), store.index_key
    return copy


def known(store: Store, subjects: Iterable[Subject] = SUBJECTS) -> Known:
    """Return the path of each subject on each minted day, by index."""
    tree = store.tree()
    days = {node.path[0]: node.node for node in tree.cover() if node.bits == 8}
    found = {}
    for subject, day in product(subjects, days):
        index = store.index(subject, day)
        nodes = frozenset(path_nodes(days[day], index))
        places = frozenset(bits(index)[:depth] for depth in range(LEAF_BITS + 1))
        found[index] = Path(tree.derive(index, LEAF_BITS), places, nodes)
    return found


def path_nodes(day_node: bytes, index: bytes) -> Iterator[bytes]:
    """Give every node from a day to a leaf, both included."""
    node = day_node
    yield node
    for bit in bits(index[1:]):
        node = child(node, bit)
        yield node


def derived(tree: StoredTree, index: bytes) -> Outcome:
    """Return the leaf, or the class of what is raised instead."""
    try:
        return tree.derive(index, LEAF_BITS)
    except (Erased, KeyUnavailable) as error:
        return type(error)


def check(store: Store, before: Known, erased: Iterable[bytes]) -> None:
    """Check what must hold after any puncture.

    Live leaves are as they were. Of the stored nodes exactly one lies above each live leaf and none
    above an erased one. Nothing that any page holds is a node of the path to an erased leaf.
    """
    tree, gone = store.tree(), tuple(erased)
    for index, path in before.items():
        assert derived(tree, index) == (Erased if index.startswith(gone) else path.leaf)
    places = {bits(node.path)[: node.bits] for node in tree.cover()}
    secrets = secrets_of(tree)
    for index, path in before.items():
        is_erased = index.startswith(gone)
        assert len(places & path.places) == (not is_erased)
        assert len(secrets & path.nodes) == (not is_erased)


def secrets_of(tree: StoredTree) -> set[bytes]:
    """Return every node and page key in the pages that open from the head, whatever its place."""
    found: set[bytes] = set()
    waiting = [(b"", tree.head.page_key)]
    while waiting:
        prefix, page_key = waiting.pop()
        entries = tree.page(prefix, page_key)
        assert len(entries) <= MAX_ENTRIES
        found.update(entries.values())
        waiting += [(prefix + bytes((v,)), key) for (n, v), key in entries.items() if n == LINK]
    return found
