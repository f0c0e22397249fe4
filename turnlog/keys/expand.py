"""HKDF-Expand over SHA-256 (RFC 5869, section 2.3) for the keys of Turnlog, all of 32 bytes.

HMAC (RFC 2104) is spelled out over two plain SHA-256 calls: walking the key tree is a third of what
a run costs, and `hmac.digest` takes 1.9 to 2.2 µs a call on the reference machine where this takes
1.2 (OpenSSL 3.0 fetches the digest anew for each HMAC). A test holds the two equal.
"""

import struct
from functools import lru_cache
from hashlib import sha256

KEY_BYTES = 32
_BLOCK_BYTES = 64
_PAD_BYTES = _BLOCK_BYTES - KEY_BYTES

INNER = bytes(value ^ 0x36 for value in range(256))
OUTER = bytes(value ^ 0x5C for value in range(256))
INNER_PAD = b"\x36" * _PAD_BYTES
OUTER_PAD = b"\x5c" * _PAD_BYTES

_u16 = struct.Struct(">H").pack


def mac(key: bytes, message: bytes) -> bytes:
    """Return HMAC-SHA-256 under a key of exactly 32 bytes."""
    inner = sha256(key.translate(INNER) + INNER_PAD + message).digest()
    return sha256(key.translate(OUTER) + OUTER_PAD + inner).digest()


def pads(key: bytes) -> tuple[bytes, bytes]:
    """Return the first block of the inner and the outer hash of HMAC under a key of 32 bytes."""
    return key.translate(INNER) + INNER_PAD, key.translate(OUTER) + OUTER_PAD


def expand(key: bytes, label: bytes, context: bytes, length_bytes: int = KEY_BYTES) -> bytes:
    """Return `HKDF-Expand-SHA-256(key, label 00 context, length_bytes)`.

    Raises:
        ValueError: the key is not 32 bytes long.
    """
    if len(key) != KEY_BYTES:
        raise ValueError("a key has 32 bytes")
    info = label + b"\0" + context
    block = mac(key, info + b"\1")
    out = block
    for counter in range(2, -(-length_bytes // KEY_BYTES) + 1):
        block = mac(key, block + info + bytes((counter,)))
        out += block
    return out[:length_bytes]


def lp(value: bytes) -> bytes:
    """Prefix a value with its length, two bytes big-endian."""
    return _u16(len(value)) + value


@lru_cache(maxsize=4096)
def lp_text(value: str) -> bytes:
    """Prefix the UTF-8 bytes of an id, a name of an event type or the like with their length."""
    return lp(value.encode())
