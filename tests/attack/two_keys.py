"""A ciphertext that AES-GCM opens under two keys, built as Dodis et al. (CRYPTO 2018) show."""

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

_R = 0xE1 << 120


Side = tuple[bytes, bytes]
"""A key of AES-256 and the additional data that goes with it."""


def sealed_for_both(one: Side, two: Side, nonce: bytes) -> bytes:
    """Return one block of ciphertext and its tag, valid under both keys.

    GHASH is linear in the block, so equal tags are one equation over GF(2^128):
    block * H1^2 + rest1 = block * H2^2 + rest2.
    """
    sides = [_side(key, nonce, aad) for key, aad in (one, two)]
    factor = _times(sides[0][0], sides[0][0]) ^ _times(sides[1][0], sides[1][0])
    block = _times(sides[0][1] ^ sides[1][1], _inverse(factor))
    h, rest = sides[0]
    tag = _times(block, _times(h, h)) ^ rest
    return block.to_bytes(16, "big") + tag.to_bytes(16, "big")


def _side(key: bytes, nonce: bytes, aad: bytes) -> tuple[int, int]:
    """Return H, and the tag of a block of zeros."""
    aes = Cipher(AES(key), ECB()).encryptor()
    h = int.from_bytes(aes.update(bytes(16)), "big")
    mask = int.from_bytes(aes.update(nonce + b"\0\0\0\1"), "big")
    lengths = (len(aad) * 8).to_bytes(8, "big") + (128).to_bytes(8, "big")
    padded = aad + bytes(-len(aad) % 16) + bytes(16) + lengths
    state = 0
    for at in range(0, len(padded), 16):
        state = _times(state ^ int.from_bytes(padded[at : at + 16], "big"), h)
    return h, state ^ mask


def _times(a: int, b: int) -> int:
    """Multiply in GCM's field (NIST SP 800-38D, section 6.3)."""
    product = 0
    for bit in range(127, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (_R if b & 1 else 0)
    return product


def _inverse(a: int) -> int:
    """Return a to the power 2^128 - 2."""
    result, square = 1 << 127, a
    for _ in range(127):
        square = _times(square, square)
        result = _times(result, square)
    return result
