"""Walking down a key tree (GGM, "How to construct random functions", 1986) from a node to a key."""

from hashlib import sha256

from turnlog.keys.expand import INNER, INNER_PAD, OUTER, OUTER_PAD, expand, lp
from turnlog.keys.index import INDEX_BYTES, Subject

LEAF_BITS = INDEX_BYTES * 8

# `expand`, its pad and label put together once.
_DEK = INNER_PAD + b"turnlog/dek/v1\0"
_STEP = tuple(INNER_PAD + b"turnlog/tree/v1\0" + bit + b"\1" for bit in (b"0", b"1"))
# For each byte of a path the eight messages that step down it, most significant bit first.
_STEPS = tuple(tuple(_STEP[value >> (7 - at) & 1] for at in range(8)) for value in range(256))


def walk(node: bytes, path: bytes, from_bits: int, to_bits: int) -> bytes:
    """Return the node `to_bits` deep on a path, from the node `from_bits` deep.

    Args:
        node: 32 bytes.
        path: index bytes, the day byte included.
        from_bits: depth of the given node.
        to_bits: depth wanted, not less.
    """
    aligned = min(to_bits, from_bits + -from_bits % 8)
    whole = max(aligned, to_bits - to_bits % 8)
    node = _step(node, path, from_bits, aligned)
    # HMAC spelled out in place, byte by byte: a call a step would cost a tenth more.
    for value in path[aligned // 8 : whole // 8]:
        for step in _STEPS[value]:
            inner = sha256(node.translate(INNER) + step).digest()
            node = sha256(node.translate(OUTER) + OUTER_PAD + inner).digest()
    return _step(node, path, whole, to_bits)


def _step(node: bytes, path: bytes, from_bits: int, to_bits: int) -> bytes:
    for bits in range(from_bits, to_bits):
        node = child(node, path[bits // 8] >> (7 - bits % 8) & 1)
    return node


def child(node: bytes, bit: int) -> bytes:
    """Return one of a node's two children."""
    inner = sha256(node.translate(INNER) + _STEP[bit]).digest()
    return sha256(node.translate(OUTER) + OUTER_PAD + inner).digest()


def dek_of(leaf: bytes, tree: bytes, index: bytes, subject: Subject) -> bytes:
    """Return the data key of a subject from its leaf, bound to every id that it has."""
    user, conversation, id = subject.user, subject.conversation, subject.id
    ids = lp(user.encode()), lp(conversation.encode()), lp(id.encode())
    inner = sha256(b"".join((leaf.translate(INNER), _DEK, tree, index, *ids, b"\1"))).digest()
    return sha256(leaf.translate(OUTER) + OUTER_PAD + inner).digest()


def node_commit(node: bytes, tree: bytes, bits: int, path: bytes) -> bytes:
    """Return the commitment to a node that a deletion certificate names.

    Args:
        node: 32 bytes.
        tree: tree id.
        bits: depth of the node.
        path: at least its first ceil(bits / 8) index bytes, the day included.
    """
    place = bits.to_bytes(2, "big") + masked(path, bits)
    return expand(node, b"turnlog/node-commit/v1", tree + place)


def masked(path: bytes, bits: int) -> bytes:
    """Return the first `bits` of a path as ceil(bits / 8) bytes, the rest of the last one zero."""
    whole = path[: -(-bits // 8)]
    unused = -bits % 8
    return whole[:-1] + bytes((whole[-1] & (0xFF << unused),)) if unused else whole
