"""Section 1 and 2 of keys.md: from a day node to the keys of one frame."""

import hashlib
import hmac
from typing import NamedTuple


def lp(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return len(raw).to_bytes(2, "big") + raw


def x(key: bytes, label: str, context: bytes = b"", length: int = 32) -> bytes:
    """HKDF-Expand of RFC 5869, section 2.3, with info = label 00 context."""
    info = label.encode() + b"\0" + context
    block, out, counter = b"", b"", 1
    while len(out) < length:
        block = hmac.new(key, block + info + bytes([counter]), hashlib.sha256).digest()
        out += block
        counter += 1
    return out[:length]


class Subject(NamedTuple):
    """Whose key it is. `kind` is r, t or d; `letter` the last byte of the index."""

    day: int
    user: str
    generation: int
    conversation: str
    kind: str
    id: str
    letter: str


def part(index_key: bytes, kind: str, value: str) -> bytes:
    return x(index_key, "turnlog/index/v1", kind.encode() + b"\0" + value.encode(), 10)


def index(index_key: bytes, s: Subject) -> bytes:
    user = part(index_key, "u", s.user) if s.user else part(index_key, "a", "")
    talk = ("c", s.conversation) if s.conversation else ("n", s.id)
    return b"".join(
        [
            bytes([s.day]),
            user,
            bytes([s.generation]),
            part(index_key, *talk),
            part(index_key, s.kind, s.id),
            s.letter.encode(),
        ]
    )


def child(node: bytes, bit: str) -> bytes:
    return x(node, "turnlog/tree/v1", bit.encode())


def bits(raw: bytes) -> str:
    return f"{int.from_bytes(raw, 'big'):0{8 * len(raw)}b}" if raw else ""


def walk(node: bytes, path: str) -> bytes:
    """The node below `node` at the end of `path`, a string of 0 and 1."""
    for bit in path:
        node = child(node, bit)
    return node


def dek(leaf: bytes, tree_id: bytes, path: bytes, s: Subject) -> bytes:
    names = lp(s.user) + lp(s.conversation) + lp(s.id)
    return x(leaf, "turnlog/dek/v1", tree_id + path + names)


def frame_keys(key: bytes) -> tuple[bytes, bytes]:
    """(K_enc, dek_commit) of a DEK."""
    both = x(key, "turnlog/frame/v1", b"", 64)
    return both[:32], both[32:]


def node_commit(node: bytes, tree_id: bytes, path: str) -> bytes:
    """The commitment of a certificate; `path` in bits, the day's eight included."""
    padded = path + "0" * (-len(path) % 8)
    raw = int(padded, 2).to_bytes(len(padded) // 8, "big")
    return x(node, "turnlog/node-commit/v1", tree_id + len(path).to_bytes(2, "big") + raw)
