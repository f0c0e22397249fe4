import hmac

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from hypothesis import given
from hypothesis import strategies as st

from turnlog.keys.expand import expand, lp, lp_text, mac
from turnlog.keys.walk import child, masked, walk

keys = st.binary(min_size=32, max_size=32)


@given(keys, st.binary(max_size=200))
def test_mac_is_hmac_sha256(key: bytes, message: bytes) -> None:
    assert mac(key, message) == hmac.digest(key, message, "sha256")


@given(keys, st.binary(max_size=40), st.binary(max_size=100), st.integers(1, 200))
def test_expand_is_hkdf_expand(key: bytes, label: bytes, context: bytes, length: int) -> None:
    reference = HKDFExpand(SHA256(), length, label + b"\0" + context).derive(key)
    assert expand(key, label, context, length) == reference


@pytest.mark.parametrize("length", [0, 16, 31, 33, 64])
def test_expand_refuses_a_key_of_another_length(length: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        expand(bytes(length), b"label", b"")


def test_a_length_is_two_bytes_in_front() -> None:
    assert lp(b"") == b"\0\0"
    assert lp(b"abc") == b"\0\3abc"
    assert lp_text("é") == b"\0\2\xc3\xa9"


@given(keys, st.binary(min_size=33, max_size=33), st.integers(0, 264), st.integers(0, 264))
def test_walking_in_two_steps_is_walking_in_one(key: bytes, path: bytes, a: int, b: int) -> None:
    low, high = sorted((a, b))
    assert walk(walk(key, path, 0, low), path, low, high) == walk(key, path, 0, high)


@given(keys, st.binary(min_size=2, max_size=2), st.integers(0, 15))
def test_a_step_is_an_expansion_with_the_bit_as_a_digit(key: bytes, path: bytes, at: int) -> None:
    bit = path[at // 8] >> (7 - at % 8) & 1
    stepped = walk(key, path, at, at + 1)
    assert stepped == child(key, bit) == expand(key, b"turnlog/tree/v1", b"01"[bit : bit + 1])


def test_masked_zeroes_what_is_below_the_depth() -> None:
    assert masked(b"\xff\xff", 8) == b"\xff"
    assert masked(b"\xff\xff", 9) == b"\xff\x80"
    assert masked(b"\xff\xff", 15) == b"\xff\xfe"
