import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.turnlog.keys.helpers import ORG, SIGNER, TREE, Store
from turnlog.errors import KeyUnavailable
from turnlog.keys.rows import (
    LINK,
    ZERO_DIGEST,
    HeadLabel,
    WrappedKey,
    decode_entries,
    encode_entries,
    head_row_key,
    id_row_key,
    month_row,
    month_row_key,
    open_head,
    open_id_key,
    open_page,
    page_row_key,
    read_label,
    read_month,
    read_wrapping,
    seal_id_key,
    seal_page,
    wrapping_row,
    wrapping_row_key,
)

PUBLIC = SIGNER.public_key()
PAGE_KEY = os.urandom(32)
ENTRIES = {(8, 17): os.urandom(32), (1, 128): os.urandom(32), (LINK, 3): os.urandom(32)}


def flipped(value: bytes, bit: int) -> bytes:
    broken = bytearray(value)
    broken[bit // 8] ^= 1 << bit % 8
    return bytes(broken)


def test_a_head_opens_with_what_was_sealed() -> None:
    store = Store(17, 19)
    head = store.tree().head
    assert (head.gen, head.minted_through, head.label.prev) == (1, 19, ZERO_DIGEST)
    assert len(store.head_value) == 1 + 4 + 8 + 32 + 12 + (65 + 16) + 64
    shown = repr(head)
    assert head.page_key.hex() not in shown and head.index_key.hex() not in shown
    assert repr(head.page_key) not in shown and repr(head.index_key) not in shown


def test_every_flipped_bit_of_a_head_is_refused() -> None:
    store = Store()
    value = store.head_value
    for bit in range(len(value) * 8):
        with pytest.raises(KeyUnavailable):
            open_head(ORG, TREE, flipped(value, bit), store.sealer.org_key, PUBLIC)


def test_a_head_is_refused_for_another_tree_org_or_key() -> None:
    store = Store()
    value, key = store.head_value, store.sealer.org_key
    places: list[tuple[str, bytes, bytes]] = [
        ("other", TREE, key),
        (ORG, os.urandom(16), key),
        (ORG, TREE, os.urandom(32)),
    ]
    for org, tree, org_key in places:
        with pytest.raises(KeyUnavailable):
            open_head(org, tree, value, org_key, PUBLIC)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 100, 120])
def test_a_head_cut_short_is_refused(length: int) -> None:
    store = Store()
    with pytest.raises(KeyUnavailable):
        open_head(ORG, TREE, store.head_value[:length], store.sealer.org_key, PUBLIC)


def test_a_page_opens_with_what_was_sealed() -> None:
    row_key, value = seal_page(ORG, TREE, b"\x11", 4, PAGE_KEY, ENTRIES)
    assert row_key == page_row_key(ORG, TREE, PAGE_KEY)
    assert open_page(ORG, TREE, b"\x11", 4, PAGE_KEY, value) == ENTRIES
    assert value is not None and len(value) == 1 + 8 + 12 + 3 * 34 + 16


def test_every_flipped_bit_of_a_page_is_refused() -> None:
    _, value = seal_page(ORG, TREE, b"\x11", 4, PAGE_KEY, ENTRIES)
    assert value is not None
    for bit in range(len(value) * 8):
        with pytest.raises(KeyUnavailable):
            open_page(ORG, TREE, b"\x11", 2**64, PAGE_KEY, flipped(value, bit))


@pytest.mark.parametrize(
    "changed",
    [
        {"org": "other"},
        {"tree": os.urandom(16)},
        {"prefix": b"\x12"},
        {"prefix": b""},
        {"max_gen": 3},
        {"page_key": os.urandom(32)},
        {"value": None},
        {"value": b""},
        {"value": b"\1" + bytes(19)},
    ],
)
def test_a_page_is_refused_elsewhere(changed: dict[str, Any]) -> None:
    _, value = seal_page(ORG, TREE, b"\x11", 4, PAGE_KEY, ENTRIES)
    given = {"org": ORG, "tree": TREE, "prefix": b"\x11", "max_gen": 4, "page_key": PAGE_KEY}
    with pytest.raises(KeyUnavailable):
        open_page(**{**given, "value": value, **changed})


def test_a_row_key_tells_nothing_of_the_page() -> None:
    row_key = page_row_key(ORG, TREE, PAGE_KEY).decode()
    org, tree, page = row_key.split("/")
    assert (org, tree, len(page)) == (ORG, TREE.hex(), 32)
    assert page not in PAGE_KEY.hex()


def test_entries_are_written_sorted_and_read_back() -> None:
    data = encode_entries(ENTRIES)
    assert [tuple(data[at : at + 2]) for at in range(0, len(data), 34)] == [
        (1, 128),
        (8, 17),
        (LINK, 3),
    ]
    assert decode_entries(data) == ENTRIES
    assert decode_entries(b"") == {}


NODE = bytes(32)


@pytest.mark.parametrize(
    "data",
    [
        b"\x08\x01" + NODE[:31],
        b"\x08\x02" + NODE + b"\x08\x01" + NODE,
        b"\x08\x01" + NODE + b"\x08\x01" + NODE,
        b"\x00\x00" + NODE,
        b"\x09\x00" + NODE,
        b"\xfe\x00" + NODE,
        b"\x01\x40" + NODE,
        b"\x07\x02" + NODE + b"\x08\x03" + NODE,
        b"\x08\x03" + NODE + b"\xff\x03" + NODE,
    ],
)
def test_entries_that_are_not_a_page_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any of them says what is wrong in its own words
        decode_entries(data)


def test_a_page_has_room_for_every_byte_and_no_more() -> None:
    full = {(8, v): bytes(32) for v in range(256)}
    assert len(decode_entries(encode_entries(full))) == 256
    with pytest.raises(ValueError, match="256"):
        encode_entries({**full, (LINK, 0): bytes(32)})


def test_an_id_key_is_sealed_like_a_head_without_a_tree() -> None:
    org_key, id_key = os.urandom(32), os.urandom(32)
    label = HeadLabel(1, 1, ZERO_DIGEST)
    row_key, value = seal_id_key(ORG, label, id_key, org_key, SIGNER)
    assert value is not None and row_key == id_row_key(ORG) == b"org_acme/id"
    assert open_id_key(ORG, value, org_key, PUBLIC) == id_key
    assert read_label(row_key, value, PUBLIC) == label
    for org, key in (("other", org_key), (ORG, os.urandom(32))):
        with pytest.raises(KeyUnavailable):
            open_id_key(org, value, key, PUBLIC)
    with pytest.raises(KeyUnavailable):
        open_head(ORG, TREE, value, org_key, PUBLIC)


def test_a_months_row_names_its_tree_and_is_signed_for_its_key() -> None:
    row_key = month_row_key(ORG, "p", "standard", "2026-11")
    assert row_key == b"org_acme/p/standard/2026-11"
    _, value = month_row(row_key, TREE, SIGNER)
    assert value is not None and value[:1] == b"\1" and len(value) == 81
    assert read_month(row_key, value, PUBLIC) == TREE
    with pytest.raises(KeyUnavailable):
        read_month(month_row_key(ORG, "p", "standard", "2026-12"), value, PUBLIC)


@given(st.text(max_size=100), st.binary(max_size=300), st.integers(0, 2**32 - 1))
def test_a_wrapped_key_comes_back_as_it_was(kms: str, blob: bytes, version: int) -> None:
    wrapped = WrappedKey(version, kms, blob)
    row_key, value = wrapping_row(ORG, wrapped, SIGNER)
    assert value is not None and row_key == wrapping_row_key(ORG, version)
    assert read_wrapping(row_key, value, PUBLIC) == wrapped


@pytest.mark.parametrize("length", [0, 1, 4, 5, 7, 20])
def test_a_wrapped_key_cut_short_is_refused(length: int) -> None:
    row_key, value = wrapping_row(ORG, WrappedKey(1, "local:00", bytes(60)), SIGNER)
    assert value is not None
    body = value[:-64][:length]
    signed = body + SIGNER.sign(len(row_key).to_bytes(2, "big") + row_key + body)
    with pytest.raises(KeyUnavailable):
        read_wrapping(row_key, signed, PUBLIC)


def test_row_keys_of_different_kinds_cannot_be_the_same() -> None:
    keys = [
        head_row_key(ORG, TREE),
        page_row_key(ORG, TREE, PAGE_KEY),
        id_row_key(ORG),
        wrapping_row_key(ORG, 1),
        month_row_key(ORG, "kek", "head", "2026-11"),
    ]
    assert len({(key.count(b"/"), key) for key in keys}) == len(keys)
