"""Avro's binary encoding of single values, for the fast path and for lengths.

The bytes and the refusals are those of fastavro's writer (Avro specification, "Binary encoding").
"""

import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any

Pack = Callable[[Any], bytes]

_ONE = [bytes((value,)) for value in range(0x80)]


@lru_cache(maxsize=1024)
def _rest(value: int) -> bytes:
    """Return the groups of a varint above its lowest two; a clock's change once in 8 ms."""
    if value >> 50:
        raise OverflowError("an integer does not fit 64 bits")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(value: int) -> bytes:
    """Return Avro's variable-length zig-zag form of a 64-bit integer.

    Raises:
        OverflowError: it does not fit 64 bits.
    """
    zigzag = value << 1 if value >= 0 else ~(value << 1)
    if zigzag < 0x80:
        return _ONE[zigzag]
    if zigzag < 0x4000:
        return bytes((zigzag & 0x7F | 0x80, zigzag >> 7))
    return bytes((zigzag & 0x7F | 0x80, zigzag >> 7 & 0x7F | 0x80)) + _rest(zigzag >> 14)


SMALL = tuple(map(varint, range(4096)))
"""The varints of small numbers that are not negative."""


def int32(value: Any) -> int:
    """Return the value if it fits 32 bits.

    Raises:
        OverflowError: it does not; fastavro would write it all the same, others cannot read it.
    """
    number = operator.index(value)
    if not -0x8000_0000 <= number <= 0x7FFF_FFFF:
        raise OverflowError("an integer does not fit 32 bits")
    return number


def _int(value: Any) -> bytes:
    return varint(int32(value))


def pack_bytes(value: Any) -> bytes:
    """Return bytes behind their length."""
    raw: bytes = value
    return varint(len(raw)) + raw


def pack_string(value: Any) -> bytes:
    """Return a string's UTF-8 bytes behind their length."""
    raw: bytes = value.encode()
    return varint(len(raw)) + raw


def pack_boolean(value: Any) -> bytes:
    """Return one byte, 0 or 1."""
    return b"\1" if value else b"\0"


_PRIMITIVES: dict[str, Pack] = {
    "string": pack_string,
    "bytes": pack_bytes,
    "long": varint,
    "int": _int,
    "boolean": pack_boolean,
    "null": lambda value: b"",
}


def _fixed(size: int) -> Pack:
    def pack(value: Any) -> bytes:
        if len(value) != size:
            raise ValueError(f"{size} bytes are wanted")
        return bytes(value)

    return pack


def _enum(symbols: list[str]) -> Pack:
    packed = {symbol: varint(index) for index, symbol in enumerate(symbols)}
    return packed.__getitem__


def _nullable(inner: Pack) -> Pack:
    """Return the packer of `["null", inner]`."""
    return lambda value: b"\0" if value is None else b"\2" + inner(value)


def _blocks(items: list[bytes]) -> bytes:
    return varint(len(items)) + b"".join(items) + b"\0" if items else b"\0"


def _array(inner: Pack) -> Pack:
    return lambda value: _blocks([inner(item) for item in value])


def _map(inner: Pack) -> Pack:
    return lambda value: _blocks([pack_string(k) + inner(v) for k, v in value.items()])


def _record(fields: list[dict[str, Any]]) -> Pack:
    packs = [(field["name"], packer(field["type"]), field.get("default")) for field in fields]

    def pack(value: Any) -> bytes:
        return b"".join(one(value.get(name, default)) for name, one, default in packs)

    return pack


def packer(avro_type: Any) -> Pack:
    """Return what packs values of a parsed Avro type.

    Unions other than `["null", X]` and floats do not occur in events.
    """
    if isinstance(avro_type, list):
        return _nullable(packer(avro_type[1]))
    if isinstance(avro_type, str):
        return _fixed(16) if avro_type == "turnlog.Id16" else _PRIMITIVES[avro_type]
    kind = avro_type["type"]
    if kind == "record":
        return _record(avro_type["fields"])
    if kind == "fixed":
        return _fixed(avro_type["size"])
    if kind == "enum":
        return _enum(avro_type["symbols"])
    inner = packer(avro_type["items" if kind == "array" else "values"])
    return _array(inner) if kind == "array" else _map(inner)
