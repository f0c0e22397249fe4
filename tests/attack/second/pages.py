"""Section 3 of keys.md: what a page and a head look like in the topic."""

import hashlib
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.attack.second.derive import lp, x

LINK = 255

Entries = dict[tuple[int, int], bytes]
"""(n, v) to a node, or to the page key of a child page where n is 255."""


class Unavailable(Exception):
    """A row is missing or does not open."""


@dataclass(frozen=True)
class Place:
    """One tree of one org."""

    org: str
    tree_id: bytes


@dataclass(frozen=True)
class Head:
    """A head, opened."""

    wrap_version: int
    gen: int
    prev: bytes
    page_key: bytes = field(repr=False)
    index_key: bytes = field(repr=False)
    minted_through: int


def page_row_key(at: Place, page_key: bytes) -> str:
    name = x(page_key, "turnlog/page-id/v1", b"", 16)
    return f"{at.org}/{at.tree_id.hex()}/{name.hex()}"


def page_aad(at: Place, prefix: bytes, gen: int) -> bytes:
    start = b"turnlog-page-v1\0" + lp(at.org) + at.tree_id
    return start + lp(prefix) + gen.to_bytes(8, "big")


def seal_page(
    at: Place, page_key: bytes, prefix: bytes, gen: int, nonce: bytes, entries: Entries
) -> bytes:
    plain = b"".join(sorted(bytes([n, v]) + secret for (n, v), secret in entries.items()))
    sealed = AESGCM(page_key).encrypt(nonce, plain, page_aad(at, prefix, gen))
    return b"\x01" + gen.to_bytes(8, "big") + nonce + sealed


def open_page(at: Place, page_key: bytes, prefix: bytes, rows: dict[str, bytes]) -> Entries:
    value = rows.get(page_row_key(at, page_key), b"")
    gen = int.from_bytes(value[1:9], "big")
    if value[:1] != b"\x01":
        raise Unavailable("no page")
    try:
        plain = AESGCM(page_key).decrypt(value[9:21], value[21:], page_aad(at, prefix, gen))
    except (InvalidTag, ValueError) as error:
        raise Unavailable("a page does not open") from error
    pieces = [plain[i : i + 34] for i in range(0, len(plain), 34)]
    return {(piece[0], piece[1]): piece[2:] for piece in pieces}


def head_row_key(at: Place) -> str:
    return f"{at.org}/{at.tree_id.hex()}/head"


def head_aad(at: Place, wrap_version: int, gen: int, prev: bytes) -> bytes:
    start = b"turnlog-head-v1\0" + lp(at.org) + at.tree_id
    return start + wrap_version.to_bytes(4, "big") + gen.to_bytes(8, "big") + prev


def seal_head(
    at: Place, k_org: bytes, signer: Ed25519PrivateKey, nonce: bytes, head: Head
) -> bytes:
    plain = head.page_key + head.index_key + bytes([head.minted_through])
    sealed = AESGCM(k_org).encrypt(
        nonce, plain, head_aad(at, head.wrap_version, head.gen, head.prev)
    )
    numbers = head.wrap_version.to_bytes(4, "big") + head.gen.to_bytes(8, "big")
    value = b"\x01" + numbers + head.prev + nonce + sealed
    return value + signer.sign(lp(head_row_key(at)) + value)


def open_head(at: Place, k_org: bytes, keeper: Ed25519PublicKey, value: bytes) -> Head:
    keeper.verify(value[-64:], lp(head_row_key(at)) + value[:-64])
    wrap, gen = int.from_bytes(value[1:5], "big"), int.from_bytes(value[5:13], "big")
    prev, nonce, sealed = value[13:45], value[45:57], value[57:-64]
    plain = AESGCM(k_org).decrypt(nonce, sealed, head_aad(at, wrap, gen, prev))
    return Head(wrap, gen, prev, plain[:32], plain[32:64], plain[64])


def digest(head_value: bytes) -> bytes:
    """What the next head names as `prev`."""
    return hashlib.sha256(head_value).digest()
