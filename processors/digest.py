"""Digests of views: equal logs give equal digests, whatever the order in which they were read.

A row is hashed as canonical msgpack, a stream over its sorted lines `row key ‖ SHA-256(row)`, a
view over its sorted lines `stream key ‖ stream digest`. So neither the interleaving of partitions
nor the borders of batches nor a repeat changes a digest, and one changed value does.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import msgpack

Scalar = str | int


def canonical_bytes(row: Mapping[str, object]) -> bytes:
    """Return a row as canonical msgpack: one flat map, keys sorted, integers and strings only.

    Bytes become lower-case hex and booleans 0 or 1. A map or a list inside the row is flattened
    (`versions.prompt`, `ranges.0.first`). None is left out.

    Raises:
        TypeError: a value is of another type, such as a float; the message names the field.
    """
    flat: dict[str, Scalar] = {}
    for name, value in row.items():
        # Almost every value is one of these two, and a generator costs ten times as much.
        if type(value) is str or type(value) is int:
            flat[name] = value
        else:
            flat.update(_flat(name, value))
    return _pack(dict(sorted(flat.items())))


def row_hash(row: Mapping[str, object]) -> bytes:
    """Return SHA-256 of the canonical bytes of a row."""
    return hashlib.sha256(canonical_bytes(row)).digest()


class ViewDigest:
    """The digest of one view, fed row by row in any order.

    Args:
        keep_repeats: a fold of a log leaves this False, so that a repeat of a row key (an
            `event_id`) changes nothing and the first occurrence wins. What reads stored rows sets
            it, so that a row that was stored twice changes the digest.
    """

    def __init__(self, *, keep_repeats: bool = False) -> None:
        self._keep_repeats = keep_repeats
        self._streams: dict[bytes, dict[bytes, list[bytes]]] = {}

    def add(self, stream_key: bytes, row_key: bytes, row: Mapping[str, object]) -> bool:
        """Take one canonical row; return whether its row key is new in its stream."""
        rows = self._streams.setdefault(stream_key, {})
        hashes = rows.get(row_key)
        if hashes is None:
            rows[row_key] = [row_hash(row)]
            return True
        if self._keep_repeats:
            hashes.append(row_hash(row))
        return False

    def result(self) -> tuple[int, str]:
        """Return the number of distinct row keys and the digest as lower-case hex."""
        view = hashlib.sha256()
        for stream_key in sorted(self._streams):
            view.update(stream_key + _stream_digest(self._streams[stream_key]))
        return sum(map(len, self._streams.values())), view.hexdigest()


def _stream_digest(rows: Mapping[bytes, Sequence[bytes]]) -> bytes:
    lines = sorted(key + digest for key, digests in rows.items() for digest in digests)
    return hashlib.sha256(b"".join(lines)).digest()


def _flat(path: str, value: object) -> Iterator[tuple[str, Scalar]]:
    if isinstance(value, str | int):
        yield path, int(value) if isinstance(value, bool) else value
    elif isinstance(value, bytes | bytearray | memoryview):
        yield path, bytes(value).hex()
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(f"{path}.{name}", inner)
    elif isinstance(value, Sequence):
        for index, inner in enumerate(value):
            yield from _flat(f"{path}.{index}", inner)
    elif value is not None:
        raise TypeError(f"field {path}: a canonical row holds no {type(value).__name__}")


_packer = msgpack.Packer(use_bin_type=True)


def _pack(row: dict[str, Scalar]) -> bytes:
    packed: bytes = _packer.pack(row)
    return packed
