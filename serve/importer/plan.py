"""What must be known of a whole file before its first line is written.

Memory grows with the number of lines, 150 bytes each, and not with their size. Nothing here
depends on the order of the lines.
"""

from collections.abc import Iterable
from hashlib import blake2b

from serve.importer.lines import Line
from turnlog.providers import Exchange, Source

_DIGEST_BYTES = 16
Place = tuple[int, str]


class Plan:
    """First occurrences of ids, and which line of a file books the usage of a response."""

    def __init__(self) -> None:
        self._first: dict[bytes, tuple[int, bytes]] = {}
        self._booked: dict[bytes, Place] = {}
        self.lines = 0

    def add(self, line: Line, exchange: Exchange | None) -> None:
        """Take a line in; `exchange` is what it says, where it says anything."""
        self.lines += 1
        if line.source is None or exchange is None:
            return
        first = self._first.setdefault(_hash(line.id), (line.number, _digest(line.source)))
        key = _response_key(exchange)
        if first[0] != line.number or key is None:
            return
        place = (line.source.n, line.id)
        if key not in self._booked or place < self._booked[key]:
            self._booked[key] = place

    def repeats(self, line: Line) -> bool:
        """Say whether an earlier line of the file has the same id."""
        return self._first[_hash(line.id)][0] != line.number

    def same(self, line: Line) -> bool:
        """Say whether a line says the same as the first one with its id."""
        assert line.source is not None
        return self._first[_hash(line.id)][1] == _digest(line.source)

    def books(self, exchange: Exchange) -> bool:
        """Say whether this is the first line of its conversation with the usage of its response."""
        key = _response_key(exchange)
        return key is None or self._booked[key] == (exchange.source.n, exchange.source.id)


def _response_key(exchange: Exchange) -> bytes | None:
    """Return what is booked once: a response whose usage is known, in a conversation."""
    source = exchange.source
    if not source.file or not exchange.response_id or exchange.usage.quality != "measured":
        return None
    return _hash(source.file, exchange.response_id)


def _digest(source: Source) -> bytes:
    """Return a digest over what an exchange is; how its line was written does not matter."""
    parts = (source.file, str(source.n), source.provider, source.method, source.host, source.path)
    bodies = (len(source.request).to_bytes(8), source.request, source.response)
    return _hash(*parts, str(source.status), str(source.streaming), more=bodies)


def _hash(*parts: str, more: Iterable[bytes] = ()) -> bytes:
    hasher = blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        raw = part.encode()
        hasher.update(len(raw).to_bytes(8) + raw)
    for raw in more:
        hasher.update(raw)
    return hasher.digest()
