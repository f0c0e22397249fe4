"""Reading a response while it comes: the readers of whole bodies, fed bytes cut anywhere.

What is shown adds up to what `understand` reads from the whole body. Where a body can be judged
only when it is whole (one JSON object), nothing is shown before.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from turnlog.providers import eventstream, forms, framing, sse
from turnlog.providers.exchange import Chunk, Exchange
from turnlog.providers.framing import Framed, Piece, sse_piece
from turnlog.providers.read import conclude
from turnlog.providers.reading import Mending, Reading
from turnlog.providers.source import Source

_STRUCTURE = re.compile(rb'["\\{}\[\],]')


class Live:
    """One response as it comes.

    Attributes:
        reading: what was read so far.
    """

    def __init__(self, source: Source) -> None:
        """Begin.

        Args:
            source: what is known when the answer begins: method, host, path, status, streaming,
                content type, request. Its response is not looked at.
        """
        self.reading = Reading()
        self._source = source
        self._cut: _Cutter | None = _named_cutter(source)
        self._start = b""
        self._looking: list[Piece] | None = []
        self._read: Callable[[list[Piece], Reading], None] | None = None
        self._form = ""
        self._first: list[Piece] = []
        self._shown = 0
        self._mending = Mending()
        self._said: list[Chunk] = []

    def feed(self, data: bytes) -> list[Chunk]:
        """Take the next bytes and return the pieces of output that they complete."""
        if self._cut is None:
            self._start += data
            self._cut = _found_cutter(self._start, self._source)
            if self._cut is None:
                return []
            data, self._start = self._start, b""
        return self._pieces(list(self._cut.feed(data)))

    def end(self) -> list[Chunk]:
        """Return what is left when nothing more comes."""
        chunks = self._pieces(list(self._cut.end())) if self._cut is not None else []
        if self._looking:
            chunks += self._decide(self._looking)
        halves = self._mending.end()
        self._said += halves
        return chunks + halves

    def exchange(self, source: Source, *, at_us: int) -> Exchange | None:
        """Return what `understand` says of a response that has come to its end, read but once.

        Args:
            source: with the response.
            at_us: when it is booked, UTC microseconds.

        Returns:
            None where it did not come as server-sent events: then it is read whole.
        """
        if self._read is None or not isinstance(self._cut, _Events):
            return None
        framed = Framed(self._first, stream=True, whole=True, plain=self._cut.plain)
        return conclude(
            source, framed, self._form, self.reading, at_us=at_us, chunks=list(self._said)
        )

    @property
    def finished(self) -> bool:
        """Whether the end of the answer has come, whatever may follow it."""
        return self.reading.finished()

    def _pieces(self, pieces: list[Piece]) -> list[Chunk]:
        if not pieces:
            return []
        if self._read is not None:
            return self._shown_by(self._read, pieces)
        looking = self._looking = [*(self._looking or ()), *pieces]
        return self._decide(looking) if forms.is_settled(self._source, looking) else []

    def _decide(self, pieces: list[Piece]) -> list[Chunk]:
        self._looking = None
        self._first = pieces[:1]
        self._form = forms.form_of(self._source, Framed(pieces, True, True, 0))
        self._read = forms.READERS[self._form]
        return self._shown_by(self._read, pieces)

    def _shown_by(
        self, read: Callable[[list[Piece], Reading], None], pieces: list[Piece]
    ) -> list[Chunk]:
        read(pieces, self.reading)
        chunks = self.reading.chunks[self._shown :]
        self._shown = len(self.reading.chunks)
        said = self._mending.take(chunks)
        self._said += said
        return said


class _Cutter(Protocol):
    """Cuts the bytes of a body into its values."""

    def feed(self, data: bytes) -> Iterator[Piece]:
        """Yield the values that these bytes complete."""

    def end(self) -> Iterator[Piece]:
        """Yield what was open."""


def _named_cutter(source: Source) -> "_Cutter | None":
    if framing.is_binary(source):
        return _Binary()
    return _Events() if framing.is_sse(source) else None


def _found_cutter(start: bytes, source: Source) -> "_Cutter | None":
    """Return the cutter for a body that begins so, None while that is too little to tell."""
    text = start.removeprefix(sse.BOM).lstrip(b"\r\n")
    if text.startswith(framing.SSE_STARTS):
        return _Events()
    if any(name.startswith(text) for name in framing.SSE_STARTS):
        return None
    first = start.lstrip()[:1]
    if first == b"[" and source.streaming:
        return _Elements()
    if first == b"{":
        return _Lines(source.framing == "ndjson" or "ndjson" in source.content_type)
    return _Nothing() if first else None


class _Nothing:
    """A body that carries nothing that could be shown."""

    def feed(self, data: bytes) -> Iterator[Piece]:
        return iter(())

    def end(self) -> Iterator[Piece]:
        return iter(())


class _Events:
    """Server-sent events.

    Attributes:
        plain: whole ones whose data are neither JSON nor the end marker.
    """

    def __init__(self) -> None:
        self.plain = 0
        self._decoder = sse.Decoder()

    def feed(self, data: bytes) -> Iterator[Piece]:
        return self._pieces(self._decoder.feed(data))

    def end(self) -> Iterator[Piece]:
        last = self._decoder.end()
        return self._pieces((last,) if last is not None else ())

    def _pieces(self, events: Iterable[sse.ServerSentEvent]) -> Iterator[Piece]:
        for event in events:
            piece = sse_piece(event)
            if piece is None:
                self.plain += event.whole
            else:
                yield piece


class _Binary:
    """Event streams of Amazon's."""

    def __init__(self) -> None:
        self._decoder = eventstream.Decoder()

    def feed(self, data: bytes) -> Iterator[Piece]:
        return map(framing.message_piece, self._decoder.feed(data))

    def end(self) -> Iterator[Piece]:
        return iter(())


class _Lines:
    """One JSON object a line, or one JSON object in all, which is no stream.

    A first line that is no object by itself begins an object of several lines. One that is may be
    the whole answer, so it waits for the second, unless the body was called a stream.
    """

    def __init__(self, called_so: bool) -> None:
        self._rest: list[bytes] = []
        self._several = called_so
        self._first: Piece | None = None
        self._plain = False

    def feed(self, data: bytes) -> Iterator[Piece]:
        if b"\n" not in data and b"\r" not in data:
            self._rest.append(data)
            return
        lines = b"".join((*self._rest, data)).splitlines(keepends=True)
        self._rest = [] if lines[-1].endswith((b"\n", b"\r")) else [lines.pop()]
        for line in lines:
            yield from self._line(line)

    def end(self) -> Iterator[Piece]:
        yield from self._line(b"".join(self._rest))

    def _line(self, line: bytes) -> Iterator[Piece]:
        if self._plain or not line.strip():
            return
        piece = framing.line_piece(line.rstrip(b"\r\n"))
        if self._several:
            yield from filter(None, (piece,))
        elif piece is None:
            self._plain = self._first is None
        elif self._first is None:
            self._first = piece
        else:
            self._several = True
            yield from (self._first, piece)


class _Elements:
    """One JSON array whose elements come one after the other, as Gemini's."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._depth = 0
        self._quoted = False
        self._escaped = -1

    def feed(self, data: bytes) -> Iterator[Piece]:
        begun = 0
        for found in _STRUCTURE.finditer(data):
            ends = self._mark(found.group(), found.start())
            if ends:
                self._parts.append(data[begun : found.start()])
                begun = found.end()
                yield from self._element()
            elif self._depth == 1 and found.group() == b"[" and not self._quoted:
                begun = found.end()
        self._parts.append(data[begun:])
        self._escaped -= len(data)

    def end(self) -> Iterator[Piece]:
        return self._element()

    def _mark(self, mark: bytes, at: int) -> bool:
        """Take note of a mark; return whether an element of the array ends before it."""
        if at == self._escaped:
            return False
        if self._quoted:
            self._quoted = mark != b'"'
            if mark == b"\\":
                self._escaped = at + 1
            return False
        if mark in b"{[":
            self._depth += 1
        elif mark in b"}]":
            self._depth -= 1
            return self._depth == 0
        self._quoted = mark == b'"'
        return mark == b"," and self._depth == 1

    def _element(self) -> Iterator[Piece]:
        text = b"".join(self._parts).strip()
        self._parts = []
        yield from filter(None, (_value(text),))


def _value(text: bytes) -> Piece | None:
    value: Any = framing.parsed(text) if text else framing.NOT_JSON
    return None if value is framing.NOT_JSON else Piece(text, value)
