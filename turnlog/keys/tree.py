"""Reading a stored key tree: from the head through the pages to the node that covers a path."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from turnlog.errors import Erased, KeyUnavailable
from turnlog.keys.index import INDEX_BYTES
from turnlog.keys.rows import LINK, Entries, Head, open_page, page_row_key
from turnlog.keys.walk import walk


class CoverNode(NamedTuple):
    """A live node that nothing above it opens any more.

    Attributes:
        bits: its depth.
        path: its index bytes, ceil(bits / 8) of them, unused low bits zero.
        node: 32 bytes.
    """

    bits: int
    path: bytes
    node: bytes

    def __repr__(self) -> str:
        return f"CoverNode({self.bits}, {self.path.hex()})"


class TreeSize(NamedTuple):
    """What a tree or a part of it is made of."""

    pages: int
    nodes: int
    links: int


@dataclass(frozen=True, slots=True)
class StoredTree:
    """A tree as one head has it.

    Attributes:
        org: the org's id.
        tree: tree id.
        head: opened.
        rows: the rows of `turnlog.keys` by row key; pages of this tree are looked up in it.
    """

    org: str
    tree: bytes
    head: Head
    rows: Mapping[bytes, bytes]

    def page(self, prefix: bytes, page_key: bytes) -> dict[tuple[int, int], bytes]:
        """Open one page.

        Raises:
            KeyUnavailable: its row is missing or does not open.
        """
        value = self.rows.get(page_row_key(self.org, self.tree, page_key))
        return open_page(self.org, self.tree, prefix, self.head.gen, page_key, value)

    def covering(self, index: bytes) -> tuple[int, bytes]:
        """Return depth in bits and value of the live node that covers an index.

        Raises:
            Erased: no live node does.
            KeyUnavailable: its day is not minted, or a page is missing or does not open.
        """
        page_key = self.head.page_key
        for depth in range(INDEX_BYTES):
            entries = self.page(index[:depth], page_key)
            found = entry_of(entries, index[depth])
            if found is None:
                raise self._nothing_at(index)
            n, _ = found
            if n != LINK:
                return depth * 8 + n, entries[found]
            page_key = entries[found]
        raise KeyUnavailable(f"tree {self.tree.hex()}: a page below the last byte")

    def _nothing_at(self, index: bytes) -> Erased | KeyUnavailable:
        if index[0] > self.head.minted_through:
            return KeyUnavailable(f"day {index[0]} of tree {self.tree.hex()} is not minted")
        return Erased("the key was erased")

    def derive(self, path: bytes, bits: int) -> bytes:
        """Return the node `bits` deep on a path.

        Raises:
            Erased: something on or under this path was erased, so that no live node covers it.
            KeyUnavailable: see `covering`.
        """
        depth, node = self.covering(path.ljust(INDEX_BYTES, b"\0"))
        if depth > bits:
            raise Erased("a part of what is under this node was erased")
        return walk(node, path, depth, bits)

    def cover(self, prefix: bytes = b"") -> Iterator[CoverNode]:
        """Give the live nodes that are stored under a prefix of whole bytes, in no order.

        A live node above the prefix is given as the node at the prefix itself.

        Raises:
            KeyUnavailable: a page is missing or does not open.
        """
        page_key = self.head.page_key
        for depth, byte in enumerate(prefix):
            entries = self.page(prefix[:depth], page_key)
            found = entry_of(entries, byte)
            if found is None:
                return
            if found[0] != LINK:
                bits = len(prefix) * 8
                yield CoverNode(
                    bits, prefix, walk(entries[found], prefix, depth * 8 + found[0], bits)
                )
                return
            page_key = entries[found]
        yield from self._under(prefix, page_key)

    def size(self, prefix: bytes = b"", page_key: bytes | None = None) -> TreeSize:
        """Count pages, live nodes and links from a page down, by default from the first.

        Raises:
            KeyUnavailable: a page is missing or does not open.
        """
        entries = self.page(prefix, page_key or self.head.page_key)
        below = [
            self.size(prefix + bytes((v,)), value) for (n, v), value in entries.items() if n == LINK
        ]
        return TreeSize(
            1 + sum(size.pages for size in below),
            len(entries) - len(below) + sum(size.nodes for size in below),
            len(below) + sum(size.links for size in below),
        )

    def _under(self, prefix: bytes, page_key: bytes) -> Iterator[CoverNode]:
        for (n, v), value in self.page(prefix, page_key).items():
            below = prefix + bytes((v,))
            if n == LINK:
                yield from self._under(below, value)
            else:
                yield CoverNode(len(prefix) * 8 + n, below, value)


def entry_of(entries: Entries, byte: int) -> tuple[int, int] | None:
    """Return the (n, v) of the entry that covers a byte, None where none does."""
    for n in range(8, 0, -1):
        at = (n, byte & (0xFF00 >> n))
        if at in entries:
            return at
    return (LINK, byte) if (LINK, byte) in entries else None
