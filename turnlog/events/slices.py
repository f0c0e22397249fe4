"""Parts of an event's bytes, found by length and without decoding.

The body begins `org conversation run event_id frame`, four of them with their length before them.
Only the shortest form of a length is taken: so a record that was taken apart is put together again
byte for byte, and one event has one encoding.
"""

from typing import NamedTuple

from turnlog.errors import DecodeError
from turnlog.events.pack import varint
from turnlog.events.schema import HEADER_BYTES, MARKER

EVENT_ID_BYTES = 16


def _length(value: bytes, at: int) -> tuple[int, int]:
    """Return a length that stands at `at` and the offset behind it."""
    byte = value[at]
    if byte < 0x80:
        if byte & 1:
            raise DecodeError("a length is negative")
        return byte >> 1, at + 1
    rest, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = value[at]
        rest |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise DecodeError("a length is too long")
    if byte == 0 or rest & 1:
        raise DecodeError("a length is negative or not in its shortest form")
    return rest >> 1, at + 1


def _take(value: bytes, at: int) -> tuple[int, int]:
    """Return where the bytes of a length-prefixed field begin and end."""
    length, start = _length(value, at)
    end = start + length
    if end > len(value):
        raise DecodeError("the value ends within a field")
    return start, end


class Prefix(NamedTuple):
    """The first fields of an event.

    Attributes:
        org: Organisation.
        conversation: Conversation, or empty.
        run: Run, or empty.
        event_id_offset: Where the 16 bytes of the event id begin in the value.
    """

    org: str
    conversation: str
    run: str
    event_id_offset: int


def prefix(value: bytes) -> Prefix:
    """Return the first fields of an event without decoding the rest.

    Raises:
        DecodeError: the bytes do not begin like an event.
    """
    try:
        _require_marker(value)
        org_start, org_end = _take(value, HEADER_BYTES)
        conversation_start, conversation_end = _take(value, org_end)
        run_start, run_end = _take(value, conversation_end)
        return Prefix(
            value[org_start:org_end].decode(),
            value[conversation_start:conversation_end].decode(),
            value[run_start:run_end].decode(),
            run_end,
        )
    except IndexError:
        raise DecodeError("the value ends within its first fields") from None
    except UnicodeDecodeError:
        raise DecodeError("a field is not UTF-8") from None


def _require_marker(value: bytes) -> None:
    if value[:2] != MARKER:
        raise DecodeError("the value is not in Avro single-object encoding")


def frame_span(value: bytes) -> tuple[int, int, int]:
    """Return where the frame's length stands, and where the frame begins and ends.

    Raises:
        DecodeError: the bytes do not begin like an event.
    """
    try:
        _require_marker(value)
        at = HEADER_BYTES
        for _ in range(3):
            at = _take(value, at)[1]
        at += EVENT_ID_BYTES
        return at, *_take(value, at)
    except IndexError:
        raise DecodeError("the value ends within its first fields") from None


def slice_frame(value: bytes) -> tuple[bytes, bytes, bytes]:
    """Return what stands before the frame (without its length), the frame, what stands after it.

    Raises:
        DecodeError: the bytes do not begin like an event.
    """
    at, start, end = frame_span(value)
    return value[:at], value[start:end], value[end:]


def without_frame(value: bytes) -> bytes:
    """Return the event with an empty frame: a valid event of its own.

    Raises:
        DecodeError: the bytes do not begin like an event.
    """
    at, start, end = frame_span(value)
    return value if start == end else value[:at] + b"\0" + value[end:]


def with_frame(stripped: bytes, frame: bytes) -> bytes:
    """Return the event with this frame in the place of its empty one: undoes `without_frame`.

    Raises:
        DecodeError: the bytes do not begin like an event, or hold a frame already.
    """
    at, start, end = frame_span(stripped)
    if start != end:
        raise DecodeError("the event holds a frame already")
    return stripped[:at] + varint(len(frame)) + frame + stripped[end:]


def key_prefixes(key: bytes) -> tuple[bytes, bytes]:
    """Return the two beginnings that a body may have, behind its 10-byte header, under this key.

    The first is that of an event of a conversation, the second that of a run outside one. The body
    is authoritative: a record whose body begins otherwise goes to the dead letters.

    Raises:
        DecodeError: the key is not `{org}/{conversation or run}`.
    """
    org, slash, name = key.partition(b"/")
    if not slash or not name or b"/" in name:
        raise DecodeError("the key is not a stream key")
    head = varint(len(org)) + org
    tail = varint(len(name)) + name
    return head + tail, head + b"\0" + tail


def marked_may_repeat(value: bytes) -> bytes:
    """Return the event saying of itself that it may have been written before.

    Raises:
        DecodeError: the bytes do not begin like an event.
    """
    _, _, at = frame_span(value)
    try:
        at = _take(value, at)[1]
        for _ in range(3):  # seq, producer_seq, occurred_at_us
            while value[at] & 0x80:
                at += 1
            at += 1
        return value[:at] + b"\1" + value[at + 1 :]
    except IndexError:
        raise DecodeError("the value ends within its first fields") from None


def event_id_of(value: bytes) -> bytes:
    """Return the event id without decoding the rest.

    Raises:
        DecodeError: the bytes do not begin like an event.
    """
    at = frame_span(value)[0]
    return value[at - EVENT_ID_BYTES : at]
