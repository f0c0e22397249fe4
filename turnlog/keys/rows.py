"""Rows of `turnlog.keys`: pages, heads, the rows of a month, of an org's id key and wrapping key.

A page is ciphertext under a random key that stands only in its parent page, and is written once.
A head is sealed under the org's key and signed by the keeper, and so are the smaller rows. Layouts
are in `docs/keys.md`; all numbers are big-endian.
"""

import hmac
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from turnlog.errors import KeyUnavailable
from turnlog.keys.expand import KEY_BYTES, expand, lp

# A row to write: its key and its value, None to remove it.
Row = tuple[bytes, bytes | None]
# What a page holds: (n, v) to a node, n = 1..8, or to the key of a child page, n = LINK.
Entries = Mapping[tuple[int, int], bytes]

LINK = 255
MAX_ENTRIES = 256
ZERO_DIGEST = bytes(32)
_ENTRY_BYTES = 34
_NONCE_BYTES = 12
_SIGNATURE_BYTES = 64
_VERSION = b"\1"

_head_struct = struct.Struct(">BIQ32s12s")
_page_struct = struct.Struct(">BQ12s")
_wrapping_struct = struct.Struct(">BI")
_u32 = struct.Struct(">I").pack
_u64 = struct.Struct(">Q").pack


# -- row keys ------------------------------------------------------------------------------------


def head_row_key(org: str, tree: bytes) -> bytes:
    """Return the row key of a tree's head."""
    return f"{org}/{tree.hex()}/head".encode()


def page_row_key(org: str, tree: bytes, page_key: bytes) -> bytes:
    """Return the row key of a page; it tells nothing of where the page sits."""
    page_id = expand(page_key, b"turnlog/page-id/v1", b"", 16)
    return f"{org}/{tree.hex()}/{page_id.hex()}".encode()


def month_row_key(org: str, project: str, retention_class: str, month: str) -> bytes:
    """Return the key of the row that names a month's tree (month as YYYY-MM)."""
    return f"{org}/{project}/{retention_class}/{month}".encode()


def id_row_key(org: str) -> bytes:
    """Return the key of the row that holds the org's id key."""
    return f"{org}/id".encode()


def wrapping_row_key(org: str, version: int) -> bytes:
    """Return the key of the row that holds one version of the org's wrapping key."""
    return f"{org}/kek/{version}".encode()


# -- signatures ----------------------------------------------------------------------------------


def row_name(row_key: bytes) -> str:
    """Return a row's key for a message; who wrote it may have written anything."""
    return row_key.decode(errors="replace")


def sign(signer: Ed25519PrivateKey, row_key: bytes, body: bytes) -> bytes:
    """Return a row's value: its body and the keeper's signature over row key and body."""
    return body + signer.sign(lp(row_key) + body)


def verified(public: Ed25519PublicKey, row_key: bytes, value: bytes) -> bytes:
    """Return the body of a signed row.

    Raises:
        KeyUnavailable: the keeper did not sign this value for this row.
    """
    body = value[:-_SIGNATURE_BYTES]
    try:
        public.verify(value[-_SIGNATURE_BYTES:], lp(row_key) + body)
    except InvalidSignature:
        raise KeyUnavailable(f"row {row_name(row_key)}: not signed by the keeper") from None
    if body[:1] != _VERSION:
        raise KeyUnavailable(f"row {row_name(row_key)}: a version that is not known here")
    return body


# -- heads ---------------------------------------------------------------------------------------


class HeadLabel(NamedTuple):
    """What a head says in clear.

    Attributes:
        wrap_version: version of the org's wrapping key that seals it.
        gen: 1 for the first head of a tree, one more for each change.
        prev: SHA-256 of the whole previous value, zeros for the first.
    """

    wrap_version: int
    gen: int
    prev: bytes


@dataclass(frozen=True, slots=True)
class Head:
    """An opened head.

    Attributes:
        label: what stands in clear.
        page_key: key of the page of the empty prefix.
        index_key: the tree's, 32 bytes.
        minted_through: the last day of the month that was minted, 0 for none.
        digest: SHA-256 of the whole value, the `prev` of the next head.
    """

    label: HeadLabel
    page_key: bytes = field(repr=False)
    index_key: bytes = field(repr=False)
    minted_through: int
    digest: bytes

    @property
    def gen(self) -> int:
        """The head's generation."""
        return self.label.gen


def seal_head(
    org: str,
    tree: bytes,
    label: HeadLabel,
    secrets: tuple[bytes, bytes, int],
    org_key: bytes,
    signer: Ed25519PrivateKey,
) -> Row:
    """Return the row of a head.

    Args:
        org: the org's id.
        tree: tree id.
        label: what stands in clear.
        secrets: page key of the empty prefix, index key, minted_through.
        org_key: the org's wrapping key of the label's version.
        signer: the keeper's.
    """
    page_key, index_key, minted_through = secrets
    plaintext = page_key + index_key + bytes((minted_through,))
    context = b"turnlog-head-v1\0" + lp(org.encode()) + tree
    row_key = head_row_key(org, tree)
    return row_key, sign(signer, row_key, _seal_labelled(label, plaintext, context, org_key))


def _seal_labelled(label: HeadLabel, plaintext: bytes, context: bytes, org_key: bytes) -> bytes:
    nonce = os.urandom(_NONCE_BYTES)
    sealed = AESGCM(org_key).encrypt(nonce, plaintext, context + _label_bytes(label))
    return _head_struct.pack(1, *label, nonce) + sealed


def _label_bytes(label: HeadLabel) -> bytes:
    return _u32(label.wrap_version) + _u64(label.gen) + label.prev


def read_label(row_key: bytes, value: bytes, public: Ed25519PublicKey) -> HeadLabel:
    """Return what a head (or an id key's row) says in clear, after checking its signature.

    Raises:
        KeyUnavailable: not signed by the keeper, or not such a row.
    """
    body = verified(public, row_key, value)
    if len(body) < _head_struct.size:
        raise KeyUnavailable(f"row {row_name(row_key)}: cut short")
    _, wrap_version, gen, prev, _ = _head_struct.unpack_from(body)
    return HeadLabel(wrap_version, gen, prev)


def open_head(
    org: str, tree: bytes, value: bytes, org_key: bytes, public: Ed25519PublicKey
) -> Head:
    """Open the head of a tree.

    Args:
        org: the org's id.
        tree: tree id.
        value: the row's.
        org_key: the org's wrapping key of the version that the head names.
        public: the keeper's public key.

    Raises:
        KeyUnavailable: not signed by the keeper, or not sealed under this key for this tree.
    """
    row_key = head_row_key(org, tree)
    label = read_label(row_key, value, public)
    context = b"turnlog-head-v1\0" + lp(org.encode()) + tree
    secrets = _open_labelled(row_key, label, value, context, org_key)
    if len(secrets) != 2 * KEY_BYTES + 1:
        raise KeyUnavailable(f"row {row_name(row_key)}: not what a head holds")
    page_key, index_key = secrets[:32], secrets[32:64]
    return Head(label, page_key, index_key, secrets[64], sha256(value).digest())


def _open_labelled(
    row_key: bytes, label: HeadLabel, value: bytes, context: bytes, org_key: bytes
) -> bytes:
    nonce = value[_head_struct.size - _NONCE_BYTES : _head_struct.size]
    sealed = value[_head_struct.size : -_SIGNATURE_BYTES]
    try:
        return AESGCM(org_key).decrypt(nonce, sealed, context + _label_bytes(label))
    except (InvalidTag, ValueError):
        raise KeyUnavailable(f"row {row_name(row_key)}: does not open") from None


# -- id keys, months, wrapping keys --------------------------------------------------------------


def seal_id_key(
    org: str, label: HeadLabel, id_key: bytes, org_key: bytes, signer: Ed25519PrivateKey
) -> Row:
    """Return the row of an org's id key: laid out like a head, with no tree."""
    row_key, context = id_row_key(org), b"turnlog-id-v1\0" + lp(org.encode())
    return row_key, sign(signer, row_key, _seal_labelled(label, id_key, context, org_key))


def open_id_key(org: str, value: bytes, org_key: bytes, public: Ed25519PublicKey) -> bytes:
    """Return an org's id key, 32 bytes.

    Raises:
        KeyUnavailable: not signed by the keeper, or not sealed under this key for this org.
    """
    row_key, context = id_row_key(org), b"turnlog-id-v1\0" + lp(org.encode())
    label = read_label(row_key, value, public)
    return _open_labelled(row_key, label, value, context, org_key)


def month_row(row_key: bytes, tree: bytes, signer: Ed25519PrivateKey) -> Row:
    """Return the row that names the tree of a month."""
    return row_key, sign(signer, row_key, _VERSION + tree)


def read_month(row_key: bytes, value: bytes, public: Ed25519PublicKey) -> bytes:
    """Return the tree id in a month's row.

    Raises:
        KeyUnavailable: not signed by the keeper, or not such a row.
    """
    body = verified(public, row_key, value)
    if len(body) != 17:
        raise KeyUnavailable(f"row {row_name(row_key)}: not what a month's row holds")
    return body[1:]


class WrappedKey(NamedTuple):
    """An org's wrapping key as it is stored.

    Attributes:
        version: 1 for the first.
        kms: name of the key that wraps it.
        blob: what that key's owner returned.
    """

    version: int
    kms: str
    blob: bytes


def wrapping_row(org: str, wrapped: WrappedKey, signer: Ed25519PrivateKey) -> Row:
    """Return the row of an org's wrapping key: `01 | u32be version | LP(kms) | LP(blob) | sig`."""
    row_key = wrapping_row_key(org, wrapped.version)
    body = _wrapping_struct.pack(1, wrapped.version) + lp(wrapped.kms.encode()) + lp(wrapped.blob)
    return row_key, sign(signer, row_key, body)


def read_wrapping(row_key: bytes, value: bytes, public: Ed25519PublicKey) -> WrappedKey:
    """Return an org's wrapping key as it is stored.

    Raises:
        KeyUnavailable: not signed by the keeper, or not such a row.
    """
    body = verified(public, row_key, value)
    return parse_wrapping(row_key, body)


def parse_wrapping(row_key: bytes, body: bytes) -> WrappedKey:
    """Read a wrapping key's row without checking who signed it.

    Raises:
        KeyUnavailable: not such a row.
    """
    try:
        _, version = _wrapping_struct.unpack_from(body)
        kms, rest = _cut(body[_wrapping_struct.size :])
        blob, _ = _cut(rest)
        return WrappedKey(version, kms.decode(), blob)
    except (struct.error, ValueError) as error:
        raise KeyUnavailable(f"row {row_name(row_key)}: not a wrapping key's row") from error


def _cut(data: bytes) -> tuple[bytes, bytes]:
    (length,) = struct.unpack_from(">H", data)
    if len(data) < 2 + length:
        raise ValueError("cut short")
    return data[2 : 2 + length], data[2 + length :]


# -- pages ---------------------------------------------------------------------------------------


def encode_entries(entries: Entries) -> bytes:
    """Return a page's plaintext: entries `n | v | 32 bytes`, sorted bytewise.

    Raises:
        ValueError: more than 256 entries.
    """
    if len(entries) > MAX_ENTRIES:
        raise ValueError("a page has at most 256 entries")
    return b"".join(bytes((n, v)) + value for (n, v), value in sorted(entries.items()))


def decode_entries(plaintext: bytes) -> dict[tuple[int, int], bytes]:
    """Return the entries of a page.

    Raises:
        ValueError: not sorted, ranges that overlap, or an n that no page stores.
    """
    if len(plaintext) % _ENTRY_BYTES:
        raise ValueError("cut short")
    starts = range(0, len(plaintext), _ENTRY_BYTES)
    keys = [(plaintext[at], plaintext[at + 1]) for at in starts]
    values = [plaintext[at + 2 : at + _ENTRY_BYTES] for at in starts]
    _check_entries(keys)
    return dict(zip(keys, values, strict=True))


def _check_entries(keys: list[tuple[int, int]]) -> None:
    if any(a >= b for a, b in zip(keys, keys[1:], strict=False)):
        raise ValueError("entries are not sorted")
    covered = bytearray(256)
    for n, v in keys:
        if not 1 <= n <= 8 and n != LINK:
            raise ValueError(f"an entry with n = {n}")
        width = 1 if n == LINK else 256 >> n
        if v % width or any(covered[v : v + width]):
            raise ValueError("entries overlap")
        covered[v : v + width] = b"\1" * width


def seal_page(
    org: str, tree: bytes, prefix: bytes, gen: int, page_key: bytes, entries: Entries
) -> Row:
    """Return the row of a page.

    Args:
        org: the org's id.
        tree: tree id.
        prefix: index bytes above the page.
        gen: that of the head written with it.
        page_key: random, used for this page alone.
        entries: what it holds.
    """
    nonce = os.urandom(_NONCE_BYTES)
    sealed = AESGCM(page_key).encrypt(
        nonce, encode_entries(entries), _page_context(org, tree, prefix, gen)
    )
    return page_row_key(org, tree, page_key), _page_struct.pack(1, gen, nonce) + sealed


def _page_context(org: str, tree: bytes, prefix: bytes, gen: int) -> bytes:
    return b"turnlog-page-v1\0" + lp(org.encode()) + tree + lp(prefix) + _u64(gen)


def open_page(
    org: str, tree: bytes, prefix: bytes, max_gen: int, page_key: bytes, value: bytes | None
) -> dict[tuple[int, int], bytes]:
    """Open a page.

    Args:
        org: the org's id.
        tree: tree id.
        prefix: index bytes above the page.
        max_gen: generation of the head from which it was reached.
        page_key: as it stands in the parent.
        value: the row's, None where it is missing.

    Raises:
        KeyUnavailable: missing, or not opening as this page.
    """
    where = f"page {len(prefix)} deep in tree {tree.hex()}"
    if value is None:
        raise KeyUnavailable(f"{where}: its row is missing")
    try:
        version, gen, nonce = _page_struct.unpack_from(value)
        if version != 1 or gen > max_gen:
            raise KeyUnavailable(f"{where}: newer than its head, or of an unknown version")
        aad = _page_context(org, tree, prefix, gen)
        return decode_entries(AESGCM(page_key).decrypt(nonce, value[_page_struct.size :], aad))
    except (InvalidTag, struct.error, ValueError):
        raise KeyUnavailable(f"{where}: does not open") from None


def same_digest(a: bytes, b: bytes) -> bool:
    """Compare two digests in constant time."""
    return hmac.compare_digest(a, b)
