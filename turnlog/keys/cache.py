"""A bounded cache of tree nodes, and deriving keys through it."""

import threading
import time
from collections.abc import Callable
from typing import Protocol

from turnlog.keys.frames import DataKey
from turnlog.keys.index import (
    CONVERSATION_BYTES,
    RUN_BYTES,
    USER_BYTES,
    Locator,
    Subject,
    index_of,
)
from turnlog.keys.walk import LEAF_BITS, dek_of, walk

NODE_SECONDS = 60.0
"""No node is remembered for longer: what was erased is forgotten within this time."""

NODES = 16_384
"""About 6 MB. A gateway with 200 open runs touches some 600 nodes at a time."""

_LEVELS = (USER_BYTES, CONVERSATION_BYTES, RUN_BYTES)


class KeySource(Protocol):
    """Where data keys come from: a grant at a producer, a `KeyReader` at a reader."""

    def data_key(self, locator: Locator, subject: Subject) -> DataKey:
        """Return the key of a subject.

        Raises:
            Erased: it was destroyed.
            KeyUnavailable: it cannot be derived now; a retry may work.
            NoTree: its tree never was.
        """
        ...


class Covers(Protocol):
    """One head's view of one tree."""

    def covering(self, index: bytes) -> tuple[int, bytes]:
        """Return depth in bits and value of the live node that covers an index."""
        ...


class NodeCache:
    """Nodes by place, the oldest out first, none older than `seconds`.

    By age and not by use: a node lives for a minute at most, and keeping an order of use took a
    lock and 1 µs of every look.

    Nodes are immutable bytes, so what is served cannot be changed by who got it. Safe to use from
    several threads.
    """

    def __init__(
        self,
        capacity: int = NODES,
        seconds: float = NODE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.capacity = capacity
        self.seconds = seconds
        self.clock = clock
        self._nodes: dict[bytes, tuple[float, bytes]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, place: bytes) -> bytes | None:
        """Return the node at a place, None where none is remembered."""
        found = self._nodes.get(place)
        return found[1] if found is not None and found[0] > self.clock() else None

    def put(self, place: bytes, node: bytes) -> None:
        """Remember a node."""
        with self._lock:
            self._nodes.pop(place, None)
            self._nodes[place] = (self.clock() + self.seconds, node)
            if len(self._nodes) > self.capacity:
                del self._nodes[next(iter(self._nodes))]

    def drop(self, scope: bytes) -> None:
        """Forget every node whose place begins with a scope."""
        with self._lock:
            for place in [place for place in self._nodes if place.startswith(scope)]:
                del self._nodes[place]

    def forget(self) -> None:
        """Drop the nodes that are too old to be served, whether anyone asks for them or not."""
        now = self.clock()
        with self._lock:
            for place in [place for place, (end, _) in self._nodes.items() if end <= now]:
                del self._nodes[place]


def scope_of(org: str, tree: bytes) -> bytes:
    """Return how the places of a tree's nodes begin, whatever the head."""
    return f"{org}/{tree.hex()}/".encode()


class Deriver:
    """Derives the keys of one tree as one head or grant has it.

    Args:
        tree: tree id.
        version: generation of the head.
        index_key: the tree's.
        covers: what the head has.
        cache: of nodes.
        org: the org's id; a cache that several orgs share keeps them apart by it.

    Attributes:
        tree: tree id.
        index_key: the tree's.
    """

    __slots__ = ("_cache", "_covers", "_scope", "index_key", "tree")

    def __init__(
        self,
        tree: bytes,
        version: int,
        index_key: bytes,
        covers: Covers,
        cache: NodeCache,
        org: str = "",
    ) -> None:
        self.tree = tree
        self.index_key = index_key
        self._covers = covers
        self._cache = cache
        # The version keeps a node of an older head from ever answering for a newer one.
        self._scope = scope_of(org, tree) + version.to_bytes(8, "big")

    def data_key(self, locator: Locator, subject: Subject) -> DataKey:
        """Return the key of a subject.

        Raises:
            Erased: it was destroyed.
            KeyUnavailable: it cannot be derived now.
        """
        index = index_of(self.index_key, locator.day, locator.gen, subject)
        return DataKey(dek_of(self.leaf(index), self.tree, index, subject))

    def leaf(self, index: bytes) -> bytes:
        """Return the leaf at an index, walking from the nearest node that is at hand."""
        bits, node = self._nearest(index)
        for level in _LEVELS:
            if bits < level * 8:
                node = walk(node, index, bits, level * 8)
                bits = level * 8
                self._cache.put(self._scope + index[:level], node)
        return walk(node, index, bits, LEAF_BITS)

    def _nearest(self, index: bytes) -> tuple[int, bytes]:
        for level in reversed(_LEVELS):
            node = self._cache.get(self._scope + index[:level])
            if node is not None:
                return level * 8, node
        return self._covers.covering(index)
