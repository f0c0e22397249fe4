"""Event streams by the WHATWG HTML standard, section 9.2.6.

Written here because the decoders on PyPI take decoded text or lines, and what splits a stream into
lines is where they go wrong: `str.splitlines` also breaks at U+2028, U+0085 and form feeds, which
are ordinary characters inside a JSON string.
"""

from typing import NamedTuple

BOM = b"\xef\xbb\xbf"


class ServerSentEvent(NamedTuple):
    """One dispatched event.

    Attributes:
        event: its type; empty where the stream gave none ("message" by the standard).
        data: its data lines, joined by newlines.
        id: the last event id at that moment.
        whole: false for what a stream held without the blank line that would have ended it.
    """

    event: str
    data: str
    id: str
    whole: bool


class Decoder:
    """Turns bytes, cut anywhere, into events.

    Bytes that are not UTF-8 become U+FFFD, as the standard wants; the caller keeps the bytes.
    """

    def __init__(self) -> None:
        # Of one unfinished line: joined once it ends, so that a line of megabytes costs its length.
        self._rest: list[bytes] = []
        self._at_start = True
        self._after_cr = False
        self._event = ""
        self._data: list[str] = []
        self._id = ""

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Take the next bytes and return the events that they complete."""
        if (usual := self._usual(chunk)) is not None:
            return usual
        lines = self._lines(chunk)
        return [event for line in lines if (event := self._line(line)) is not None]

    def end(self) -> ServerSentEvent | None:
        """Return what was open when the stream ended, if it had data.

        The standard drops it. It is kept, marked, because some servers leave the last blank line
        out and a reader can tell by the data whether it was cut.
        """
        if rest := b"".join(self._rest):
            self._line(rest.removeprefix(BOM) if self._at_start else rest)
            self._rest = []
        return self._dispatch(whole=False)

    def _usual(self, chunk: bytes) -> list[ServerSentEvent] | None:
        """Return the events of a chunk that holds nothing but whole ones of one data line each.

        So nearly every chunk of a model's stream looks; it is read in a third of the time.

        Returns:
            None where the chunk is anything else, or something is open.
        """
        if self._at_start and not self._rest:
            self._at_start = chunk[:1] in (b"", BOM[:1])
        if self._rest or self._data or self._event or self._at_start or self._after_cr:
            return None
        if not chunk.endswith(b"\n\n") or b"\r" in chunk:
            return None
        events = []
        for block in chunk[:-2].split(b"\n\n"):
            named = b""
            if block.startswith(b"event: "):
                named, _, block = block.partition(b"\n")
            if not block.startswith(b"data: ") or b"\n" in block:
                return None
            name, data = named[7:].decode("utf-8", "replace"), block[6:].decode("utf-8", "replace")
            events.append(ServerSentEvent(name, data, self._id, True))
        return events

    def _lines(self, chunk: bytes) -> list[bytes]:
        if self._after_cr and chunk:
            # CR LF is one line end, also where the two came in different chunks.
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if not self._at_start and b"\n" not in chunk and b"\r" not in chunk:
            self._rest.append(chunk)
            return []
        buffer = b"".join((*self._rest, chunk))
        self._rest = []
        if self._at_start:
            if BOM.startswith(buffer[:3]) and len(buffer) < 3:
                self._rest = [buffer]
                return []
            buffer = buffer.removeprefix(BOM)
            self._at_start = False
        # bytes.splitlines knows CR, LF and CR LF and nothing else: exactly the standard's three.
        lines = buffer.splitlines(keepends=True)
        if lines and not lines[-1].endswith((b"\r", b"\n")):
            self._rest = [lines.pop()]
        elif lines and lines[-1].endswith(b"\r"):
            self._after_cr = True
        return [line.rstrip(b"\r\n") for line in lines]

    def _line(self, line: bytes) -> ServerSentEvent | None:
        if not line:
            return self._dispatch(whole=True)
        name, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
        return None

    def _dispatch(self, whole: bool) -> ServerSentEvent | None:
        event, data = self._event, self._data
        self._event, self._data = "", []
        if not data:
            return None
        return ServerSentEvent(event, "\n".join(data), self._id, whole)


def events(body: bytes) -> list[ServerSentEvent]:
    """Return every event of a whole body; the last one may be unfinished (`whole` false)."""
    decoder = Decoder()
    found = decoder.feed(body)
    last = decoder.end()
    return [*found, last] if last else found
