"""Erasing by arithmetic: the node above an erased prefix gives way to the nodes beside it.

Pages are never overwritten. What changes is written anew under fresh page keys from the deepest
page up to the head, and old pages are removed last: stopped after any row, either the old head
still opens the whole old tree or the new one opens the whole new tree.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from turnlog.errors import KeyUnavailable, UsageError
from turnlog.keys.index import INDEX_BYTES
from turnlog.keys.mint import Sealer
from turnlog.keys.rows import LINK, HeadLabel, Row, page_row_key, seal_head, seal_page
from turnlog.keys.tree import StoredTree, entry_of
from turnlog.keys.walk import child

Entry = tuple[int, int]
# Covers the whole byte: only while a page is built, never stored.
WHOLE = (0, 0)


class Punctured(NamedTuple):
    """What a puncture changes.

    Attributes:
        rows: to be written in this order: new pages, deepest first, the head, removals.
        nodes_destroyed: stored nodes that no row holds any more.
    """

    rows: list[Row]
    nodes_destroyed: int


def puncture(stored: StoredTree, prefixes: Iterable[bytes], sealer: Sealer) -> Punctured:
    """Return the rows after which no key under any of the prefixes can be derived.

    Args:
        stored: the tree as it is.
        prefixes: index prefixes of 1 to 33 bytes.
        sealer: of the org.

    Returns:
        No rows where all of it was erased before.

    Raises:
        UsageError: a prefix is empty or too long.
        KeyUnavailable: a page that must change is missing or does not open, or a day is not minted.
    """
    targets = sorted(set(prefixes))
    for prefix in targets:
        _check(stored, prefix)
    change = _Change(stored, sealer)
    page_key = change.page(b"", stored.head.page_key, None, targets)
    if page_key is None:
        return Punctured([], 0)
    return Punctured(change.rows(page_key), change.nodes_destroyed)


def _check(stored: StoredTree, prefix: bytes) -> None:
    if not 1 <= len(prefix) <= INDEX_BYTES:
        raise UsageError(f"a prefix has 1 to {INDEX_BYTES} bytes, this has {len(prefix)}")
    if prefix[0] > stored.head.minted_through:
        raise KeyUnavailable(f"day {prefix[0]} of tree {stored.tree.hex()} is not minted")


class _Change:
    """One pass over the pages that the prefixes reach."""

    def __init__(self, stored: StoredTree, sealer: Sealer) -> None:
        self.stored = stored
        self.sealer = sealer
        self.gen = stored.head.gen + 1
        self.written: list[Row] = []
        self.removed: list[Row] = []
        self.nodes_destroyed = 0

    def page(
        self, prefix: bytes, page_key: bytes | None, node: bytes | None, targets: list[bytes]
    ) -> bytes | None:
        """Puncture one page; return the key of the page that replaces it, None if unchanged.

        Args:
            prefix: index bytes above the page.
            page_key: of the stored page, None for a page that begins as one node.
            node: that node, which covers the page's whole byte.
            targets: prefixes to erase, longer than `prefix`, sorted.
        """
        entries = {WHOLE: node} if node else self.stored.page(prefix, page_key or b"")
        changed = node is not None
        for byte, group in _by_byte(targets, len(prefix)):
            changed |= self._byte(prefix + bytes((byte,)), entries, group)
        if not changed:
            return None
        if page_key:
            self._remove(page_key)
        fresh = self.sealer.key()
        org, tree = self.stored.org, self.stored.tree
        self.written.append(seal_page(org, tree, prefix, self.gen, fresh, entries))
        return fresh

    def _byte(self, below: bytes, entries: dict[Entry, bytes], targets: list[bytes]) -> bool:
        byte, whole = below[-1], targets[0] == below
        found = WHOLE if WHOLE in entries else entry_of(entries, byte)
        if found is None:
            return False
        if found[0] == LINK:
            return self._link(below, entries, [] if whole else targets)
        node = _split(entries, found, byte)
        self.nodes_destroyed += found != WHOLE
        if not whole:
            entries[LINK, byte] = self.page(below, None, node, targets) or b""
        return True

    def _link(self, below: bytes, entries: dict[Entry, bytes], targets: list[bytes]) -> bool:
        at = (LINK, below[-1])
        if not targets:
            self._drop(below, entries.pop(at))
            return True
        fresh = self.page(below, entries[at], None, targets)
        if fresh is not None:
            entries[at] = fresh
        return fresh is not None

    def _drop(self, prefix: bytes, page_key: bytes) -> None:
        """Remove a page and all below it; a page that does not open hides what is below it."""
        self._remove(page_key)
        try:
            entries = self.stored.page(prefix, page_key)
        except KeyUnavailable:
            return
        for (n, v), value in entries.items():
            if n == LINK:
                self._drop(prefix + bytes((v,)), value)
            else:
                self.nodes_destroyed += 1

    def _remove(self, page_key: bytes) -> None:
        self.removed.append((page_row_key(self.stored.org, self.stored.tree, page_key), None))

    def rows(self, page_key: bytes) -> list[Row]:
        """Return everything in the order in which it has to be written."""
        stored, head = self.stored, self.stored.head
        label = HeadLabel(self.sealer.wrap_version, self.gen, head.digest)
        secrets = page_key, head.index_key, head.minted_through
        sealed = seal_head(
            stored.org, stored.tree, label, secrets, self.sealer.org_key, self.sealer.signer
        )
        return [*self.written, sealed, *self.removed]


def _by_byte(targets: list[bytes], depth: int) -> Iterator[tuple[int, list[bytes]]]:
    """Group sorted prefixes by their byte at a depth."""
    groups: dict[int, list[bytes]] = {}
    for target in targets:
        groups.setdefault(target[depth], []).append(target)
    yield from groups.items()


def _split(entries: dict[Entry, bytes], found: Entry, byte: int) -> bytes:
    """Replace the node that covers a byte by the nodes beside the byte; return the byte's node."""
    n, _ = found
    node = entries.pop(found)
    for depth in range(n, 8):
        bit = byte >> (7 - depth) & 1
        sibling = (byte & (0xFF00 >> depth)) | ((1 - bit) << (7 - depth))
        entries[depth + 1, sibling & 0xFF] = child(node, 1 - bit)
        node = child(node, bit)
    return node
