"""Protobuf's framing by hand: the spans of a request that does not parse as a whole.

Field numbers are those of opentelemetry-proto: `ExportTraceServiceRequest.resource_spans` 1,
`ResourceSpans.scope_spans` 2, `ScopeSpans.spans` 2.
"""

from collections.abc import Iterator

from turnlog.errors import DecodeError

MAX_FIELDS = 200_000
"""Of one body: each costs 1 µs of the interpreter, and two bytes of nonsense make one."""

_PATH = (1, 2, 2)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10


def spans(body: bytes) -> Iterator[bytes]:
    """Yield the bytes of every span.

    Raises:
        DecodeError: the framing itself is broken, or over 200,000 fields lie around the spans.
    """
    yield from _below(body, _PATH, iter(range(MAX_FIELDS)))


def _below(message: bytes, path: tuple[int, ...], budget: Iterator[int]) -> Iterator[bytes]:
    if not path:
        yield message
        return
    for number, value in _fields(message):
        if next(budget, None) is None:
            raise DecodeError("the body is no protobuf message of spans")
        if number == path[0]:
            yield from _below(value, path[1:], budget)


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and value of each field; of one without a length, no value."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        size, at = _size(message, at, tag & 7)
        if at + size > len(message):
            raise DecodeError("the body is no protobuf message")
        yield tag >> 3, message[at : at + size] if tag & 7 == _BYTES else b""
        at += size


def _size(message: bytes, at: int, kind: int) -> tuple[int, int]:
    if kind == _BYTES:
        return _varint(message, at)
    if kind == _VARINT:
        return 0, _varint(message, at)[1]
    if kind in (_FIXED64, _FIXED32):
        return (8 if kind == _FIXED64 else 4), at
    raise DecodeError("the body is no protobuf message")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    number = 0
    for place in range(_MAX_VARINT_BYTES):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number, at
    raise DecodeError("the body is no protobuf message")
