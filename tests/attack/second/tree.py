"""Section 3 of keys.md: derive, mint and puncture, over a tree read whole."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.attack.second.derive import bits, child, walk
from tests.attack.second.pages import (
    LINK,
    Entries,
    Head,
    Place,
    digest,
    head_row_key,
    open_head,
    open_page,
    page_row_key,
    seal_head,
    seal_page,
)

Rows = dict[str, bytes]
Changes = list[tuple[str, bytes | None]]
"""Rows in the order in which they are written; no value is a tombstone."""


class Erased(Exception):
    """An authenticated page has no entry for the key."""


class NotMinted(Exception):
    """The day lies beyond what is minted."""


@dataclass
class Page:
    """A page and, by the byte they continue, the pages below it."""

    prefix: bytes
    key: bytes = field(repr=False)
    nodes: Entries = field(repr=False)
    below: "dict[int, Page]" = field(default_factory=dict)
    changed: bool = False


@dataclass
class Tree:
    """One tree, read whole, and what is needed to write it."""

    at: Place
    k_org: bytes = field(repr=False)
    signer: Ed25519PrivateKey = field(repr=False)
    head: Head
    head_digest: bytes
    top: Page


def read(at: Place, k_org: bytes, signer: Ed25519PrivateKey, rows: Rows) -> Tree:
    value = rows[head_row_key(at)]
    head = open_head(at, k_org, signer.public_key(), value)
    return Tree(at, k_org, signer, head, digest(value), read_page(at, head.page_key, b"", rows))


def read_page(at: Place, key: bytes, prefix: bytes, rows: Rows) -> Page:
    entries = open_page(at, key, prefix, rows)
    page = Page(prefix, key, {k: v for k, v in entries.items() if k[0] != LINK})
    for (n, byte), page_key in entries.items():
        if n == LINK:
            page.below[byte] = read_page(at, page_key, prefix + bytes([byte]), rows)
    return page


def pages(page: Page) -> Iterator[Page]:
    """A page and all below it."""
    yield page
    for lower in page.below.values():
        yield from pages(lower)


def nodes(tree: Tree) -> dict[str, bytes]:
    """Every node that is stored, by its path in bits, the day's eight included."""
    return {
        bits(page.prefix) + f"{v:08b}"[:n]: node
        for page in pages(tree.top)
        for (n, v), node in page.nodes.items()
    }


def derive(tree: Tree, path: bytes) -> bytes:
    """The node of a prefix, or the leaf of a whole index."""
    if path[0] > tree.head.minted_through:
        raise NotMinted
    page = tree.top
    for depth, byte in enumerate(path):
        for n, v in page.nodes:
            if f"{byte:08b}"[:n] == f"{v:08b}"[:n]:
                return walk(page.nodes[n, v], bits(path[depth:])[n:])
        if byte not in page.below:
            raise Erased
        page = page.below[byte]
    raise Erased  # the prefix itself was split: no node of it is left


def erase(page: Page, rest: bytes) -> bool:
    """Take everything that begins with `rest` out of a page; whether there was any."""
    byte = rest[0]
    if len(rest) == 1 and byte in page.below:
        del page.below[byte]
        page.changed = True
        return True
    if byte not in page.below:
        node = split(page, byte)
        if node is None:
            return False
        page.changed = True
        if len(rest) == 1:
            return True
        page.below[byte] = Page(page.prefix + rest[:1], b"", {(0, 0): node})
    page.changed |= erase(page.below[byte], rest[1:])
    return page.changed


def split(page: Page, byte: int) -> bytes | None:
    """Replace the node that covers a byte by those of its siblings; that byte's node."""
    for n, v in list(page.nodes):
        if f"{byte:08b}"[:n] == f"{v:08b}"[:n]:
            node = page.nodes.pop((n, v))
            for depth in range(n, 8):
                bit = f"{byte:08b}"[depth]
                other = f"{byte:08b}"[:depth] + "10"[int(bit)] + "0" * (7 - depth)
                page.nodes[depth + 1, int(other, 2)] = child(node, "10"[int(bit)])
                node = child(node, bit)
            return node
    return None


def puncture(tree: Tree, prefixes: list[bytes]) -> Changes:
    """Erase prefixes; what changes, in the order in which it is to be written."""
    before = {page.key for page in pages(tree.top)}
    for prefix in prefixes:
        erase(tree.top, prefix)
    return write(tree, before) if tree.top.changed else []


def mint(tree: Tree, days: dict[int, bytes]) -> Changes:
    """Add the nodes of days, which begin right after the last one minted."""
    before = {page.key for page in pages(tree.top)}
    tree.top.nodes.update({(8, day): node for day, node in days.items()})
    tree.top.changed = True
    tree.head = replace(tree.head, minted_through=max(days))
    return write(tree, before)


def write(tree: Tree, before: set[bytes]) -> Changes:
    gen, rows = tree.head.gen + 1, Changes()
    for page in sorted(pages(tree.top), key=lambda page: -len(page.prefix)):
        if page.changed:
            page.key, page.changed = os.urandom(32), False
            rows.append((page_row_key(tree.at, page.key), seal(tree.at, page, gen)))
    tree.head = replace(tree.head, gen=gen, prev=tree.head_digest, page_key=tree.top.key)
    value = seal_head(tree.at, tree.k_org, tree.signer, os.urandom(12), tree.head)
    tree.head_digest = digest(value)
    gone = before - {page.key for page in pages(tree.top)} - {b""}
    dead: Changes = [(page_row_key(tree.at, key), None) for key in gone]
    return [*rows, (head_row_key(tree.at), value), *dead]


def seal(at: Place, page: Page, gen: int) -> bytes:
    links = {(LINK, byte): lower.key for byte, lower in page.below.items()}
    return seal_page(at, page.key, page.prefix, gen, os.urandom(12), {**page.nodes, **links})


def create(
    at: Place, k_org: bytes, signer: Ed25519PrivateKey, index_key: bytes, days: dict[int, bytes]
) -> tuple[Tree, Changes]:
    """A new tree with its first days: gen 1, prev zeros."""
    empty = Head(1, 0, bytes(32), b"", index_key, 0)
    tree = Tree(at, k_org, signer, empty, bytes(32), Page(b"", b"", {}))
    return tree, mint(tree, days)


def apply(rows: Rows, changes: Changes) -> None:
    for key, value in changes:
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = value
