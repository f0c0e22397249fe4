"""Section 2 of keys.md: one frame an event."""

import hashlib
import hmac
from typing import Any, NamedTuple

import msgpack
import zstandard
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.attack.second.derive import frame_keys, lp, x


class Where(NamedTuple):
    """What the AAD binds a frame to."""

    org: str
    key_tree: bytes
    event_id: bytes
    subject: str
    epoch: int
    seq: int
    kind: str


class WrongKey(Exception):
    """The frame names another key than the one that was derived."""


def aad(dek_id: bytes, at: Where) -> bytes:
    return b"".join(
        [
            b"\x01\x01turnlog-frame-v1\x00",
            dek_id,
            lp(at.org),
            at.key_tree,
            at.event_id,
            lp(at.subject),
            at.epoch.to_bytes(8, "big"),
            at.seq.to_bytes(8, "big"),
            lp(at.kind),
        ]
    )


def seal_bytes(key: bytes, nonce: bytes, at: Where, plain: bytes) -> bytes:
    k_enc, commit = frame_keys(key)
    dek_id = commit[:16]
    return b"\x01\x01" + dek_id + nonce + AESGCM(k_enc).encrypt(nonce, plain, aad(dek_id, at))


def open_bytes(key: bytes, at: Where, frame: bytes) -> bytes:
    k_enc, commit = frame_keys(key)
    if frame[:2] != b"\x01\x01" or len(frame) < 46:
        raise ValueError("not a frame")
    if not hmac.compare_digest(frame[2:18], commit[:16]):
        raise WrongKey
    return AESGCM(k_enc).decrypt(frame[18:30], frame[30:], aad(commit[:16], at))


def ordered(value: Any) -> Any:
    """The same value with the keys of every map in bytewise order."""
    if isinstance(value, dict):
        return {k: ordered(value[k]) for k in sorted(value, key=str.encode)}
    return [ordered(v) for v in value] if isinstance(value, list) else value


def plaintext(fields: dict[str, Any]) -> bytes:
    packed: bytes = msgpack.packb(ordered(fields))
    return packed


def seal(key: bytes, nonce: bytes, at: Where, fields: dict[str, Any]) -> tuple[bytes, bytes]:
    """(frame, content_mac)."""
    plain = plaintext(fields)
    mac = x(key, "turnlog/mac/v1", hashlib.sha256(plain).digest())
    return seal_bytes(key, nonce, at, zstandard.compress(plain)), mac


def unseal(key: bytes, at: Where, frame: bytes) -> Any:
    small = open_bytes(key, at, frame)
    return msgpack.unpackb(zstandard.ZstdDecompressor().decompressobj().decompress(small))
