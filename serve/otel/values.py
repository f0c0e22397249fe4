"""Values of OTLP as Python's: attributes, 64-bit integers, ids, from JSON and from protobuf.

OTLP/JSON is written by many hands: integers come as numbers, as strings and as the objects
`{low, high}` of JavaScript's Long; ids as hex, as base64 and as Node's `{type: Buffer, data: []}`.
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from turnlog.providers.json_text import mend

MAX_DEPTH = 64
TOO_DEEP = "(nested deeper than 64 levels)"
"""Stands for a value that nests deeper: neither Python's stack nor a reader follows further."""

_WORD = 1 << 32
_UINT64 = (1 << 64) - 1
_HEX = frozenset("0123456789abcdefABCDEF")


class BadValue(ValueError):
    """A field of a span that is not what OTLP says; the message is the reason's word."""


def whole(value: Any) -> int | None:
    """Return a 64-bit integer however JSON wrote it; None where it is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        text = value.strip()
        return int(text) if text.lstrip("-").isdecimal() and len(text) <= 20 else None
    if isinstance(value, Mapping):
        return _long(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 1 << 63 else None
    return value if isinstance(value, int) else None


def _long(value: Mapping[str, Any]) -> int | None:
    low, high = value.get("low"), value.get("high")
    if type(low) is not int or type(high) is not int:
        return None
    number = (high % _WORD) * _WORD + low % _WORD
    return number if value.get("unsigned") or number < 1 << 63 else number - (1 << 64)


def nanos(value: Any) -> int:
    """Return a time in nanoseconds since 1970, 0 where there is none or it is no time."""
    number = whole(value)
    return number if number is not None and 0 <= number <= _UINT64 else 0


def id_of(value: Any, length: int, reason: str) -> str:
    """Return an id of `length` bytes as lower-case hex; empty where there is none.

    Raises:
        BadValue: it is no such id.
    """
    raw = _id_bytes(value, length)
    if raw is None or (raw and len(raw) != length):
        raise BadValue(reason)
    return raw.hex() if any(raw) else ""


def _id_bytes(value: Any, length: int) -> bytes | None:
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return _id_text(value, length)
    if isinstance(value, Mapping) and isinstance(data := value.get("data"), list):
        value = data
    if isinstance(value, list) and all(type(item) is int and 0 <= item < 256 for item in value):
        return bytes(value)
    return None


def _id_text(value: str, length: int) -> bytes | None:
    if not value:
        return b""
    if len(value) == 2 * length:
        return bytes.fromhex(value) if _HEX.issuperset(value) else None
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return None


def attributes_of(items: Any) -> dict[str, Any]:
    """Return a JSON list of attributes by name, the first of each; what is none is left out.

    Raises:
        BadValue: it is no list.
    """
    if items is None:
        return {}
    if not isinstance(items, list):
        raise BadValue("bad_attributes")
    found: dict[str, Any] = {}
    for item in items:
        if isinstance(item, Mapping) and isinstance(item.get("key"), str):
            found.setdefault(mend(item["key"]), value_of(item.get("value")))
    return found


def value_of(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Return an AnyValue of OTLP/JSON as strings, numbers, lists and dicts."""
    if not isinstance(value, Mapping) or not value:
        return mend(value) if isinstance(value, str) else None
    kind, inner = next(iter(value.items()))
    read = _KINDS.get(_camel(kind))
    if depth <= 0:
        return TOO_DEEP
    return read(inner, depth) if read else None


def _camel(name: str) -> str:
    """Return a protobuf name as JSON spells it: both are allowed."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _text(value: Any, depth: int) -> str:
    return mend(value) if isinstance(value, str) else ""


def _double(value: Any, depth: int) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _bytes(value: Any, depth: int) -> Any:
    """Keep bytes as the base64 that JSON has for them, whoever wrote them."""
    if isinstance(value, Mapping) and isinstance(value.get("data"), list):
        raw = _id_bytes(value, 0)
        return base64.b64encode(raw).decode() if raw is not None else None
    return _text(value, depth)


def _array(value: Any, depth: int) -> list[Any]:
    items = value.get("values") if isinstance(value, Mapping) else None
    return [value_of(item, depth - 1) for item in items] if isinstance(items, list) else []


def _map(value: Any, depth: int) -> dict[str, Any]:
    items = value.get("values") if isinstance(value, Mapping) else None
    return {
        mend(item["key"]): value_of(item.get("value"), depth - 1)
        for item in (items if isinstance(items, list) else ())
        if isinstance(item, Mapping) and isinstance(item.get("key"), str)
    }


_KINDS: Mapping[str, Callable[[Any, int], Any]] = {
    "stringValue": _text,
    "intValue": lambda value, depth: whole(value),
    "doubleValue": _double,
    "boolValue": lambda value, depth: value if isinstance(value, bool) else None,
    "bytesValue": _bytes,
    "arrayValue": _array,
    "kvlistValue": _map,
}


def pairs_of(items: Iterable[KeyValue]) -> dict[str, Any]:
    """Return attributes of protobuf by name, the first of each."""
    found: dict[str, Any] = {}
    for item in items:
        found.setdefault(item.key, any_of(item.value))
    return found


def any_of(value: AnyValue, depth: int = MAX_DEPTH) -> Any:
    """Return an AnyValue of protobuf in the form that `value_of` gives."""
    kind = value.WhichOneof("value")
    if depth <= 0:
        return TOO_DEEP
    if kind == "array_value":
        return [any_of(item, depth - 1) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {item.key: any_of(item.value, depth - 1) for item in value.kvlist_value.values}
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    return getattr(value, kind) if kind else None
