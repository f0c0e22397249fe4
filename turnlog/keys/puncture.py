"""Erasing by arithmetic: the node above an erased prefix gives way to the nodes beside it.

Pages are never overwritten. What changes is written anew under fresh page keys from the deepest
page up to the head, and old pages are removed last: stopped after any row, either the old head
still opens the whole old tree or the new one opens the whole new tree.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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


class Share(NamedTuple):
    """What one of several prefixes did to a change that they share.

    A page that several of them change is counted once, for the first of them in bytewise order; so
    the shares of a change add up to it, and one that is zero had nothing left to erase: all of it
    was erased before, or by another prefix of the same change that contains it.

    Attributes:
        rows: new pages, and for the first of all the head; removals are not counted.
        nodes_destroyed: stored nodes that no row holds any more.
    """

    rows: int = 0
    nodes_destroyed: int = 0


class Punctured(NamedTuple):
    """What a puncture changes.

    Attributes:
        rows: to be written in this order: new pages, deepest first, the head, removals.
        nodes_destroyed: stored nodes that no row holds any more.
        shares: what each prefix did; a prefix that is not in it did nothing.
    """

    rows: list[Row]
    nodes_destroyed: int
    shares: Mapping[bytes, Share]


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
        return Punctured([], 0, {})
    rows, shares = change.rows(page_key), change.shares()
    return Punctured(rows, sum(share.nodes_destroyed for share in shares.values()), shares)


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
        # For whom each of `written` was written first, and whose nodes are gone.
        self._caused: list[bytes] = []
        self._destroyed: dict[bytes, int] = {}

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
        causes = []
        for byte, group in _by_byte(targets, len(prefix)):
            cause = self._byte(prefix + bytes((byte,)), entries, group)
            causes += [cause] if cause else []
        if not causes:
            return None
        if page_key:
            self._remove(page_key)
        fresh = self.sealer.key()
        org, tree = self.stored.org, self.stored.tree
        self.written.append(seal_page(org, tree, prefix, self.gen, fresh, entries))
        self._caused.append(causes[0])
        return fresh

    def _byte(
        self, below: bytes, entries: dict[Entry, bytes], targets: list[bytes]
    ) -> bytes | None:
        """Puncture one byte of a page; return the first target that changed something, if any."""
        byte, whole = below[-1], targets[0] == below
        found = WHOLE if WHOLE in entries else entry_of(entries, byte)
        if found is None:
            return None
        if found[0] == LINK:
            return self._link(below, entries, targets, whole)
        node = _split(entries, found, byte)
        self._destroy(targets[0], found != WHOLE)
        if not whole:
            entries[LINK, byte] = self.page(below, None, node, targets) or b""
        return targets[0]

    def _link(
        self, below: bytes, entries: dict[Entry, bytes], targets: list[bytes], whole: bool
    ) -> bytes | None:
        at = (LINK, below[-1])
        if whole:
            self._drop(below, entries.pop(at), targets[0])
            return targets[0]
        fresh = self.page(below, entries[at], None, targets)
        if fresh is None:
            return None
        entries[at] = fresh
        return self._caused[-1]

    def _destroy(self, target: bytes, nodes: int) -> None:
        self._destroyed[target] = self._destroyed.get(target, 0) + nodes

    def _drop(self, prefix: bytes, page_key: bytes, target: bytes) -> None:
        """Remove a page and all below it; a page that does not open hides what is below it."""
        self._remove(page_key)
        try:
            entries = self.stored.page(prefix, page_key)
        except KeyUnavailable:
            return
        for (n, v), value in entries.items():
            if n == LINK:
                self._drop(prefix + bytes((v,)), value, target)
            else:
                self._destroy(target, 1)

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

    def shares(self) -> dict[bytes, Share]:
        """Return what each prefix did; the head is counted for whom the first page was written."""
        rows = Counter(self._caused)
        rows[self._caused[-1]] += 1
        return {
            target: Share(rows[target], self._destroyed.get(target, 0))
            for target in sorted({*rows, *self._destroyed})
        }


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
