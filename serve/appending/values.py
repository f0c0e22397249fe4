"""Values of a body as a client gives them in JSON, brought into the form of their fields.

Messages say how a value is wrong and never quote it; who reads a field names it.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any
from uuid import UUID

from turnlog.errors import UsageError
from turnlog.events import TYPES
from turnlog.events.schema import Field
from turnlog.events.shapes import BOUNDS
from turnlog.ids import is_id
from turnlog.producer.fields import Names

INT32, INT64 = 1 << 31, 1 << 63
MAX_LEVELS = 254
_EXACT = 1 << 53
MAX_TIME_US = 253_402_300_800_000_000
"""The year 10000, UTC."""

Read = Callable[[Any, Names], Any]

# What an id field names: the same value of two kinds gives two ids.
_NAMES = {
    "conversation": "conversation",
    "run": "run",
    "answer_run": "run",
    "parent_run": "run",
    "turn": "turn",
    "parent_turn": "turn",
    "user": "user",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@cache
def readers(type: str) -> Mapping[str, Read]:
    """Return what reads each field of a type."""
    return {field.name: _within_bounds(field) for field in TYPES[type].fields}


def _within_bounds(field: Field) -> Read:
    read = _reader(field)
    if field.name not in BOUNDS:
        return read
    least, most = BOUNDS[field.name]

    def bounded(value: Any, names: Names) -> Any:
        number = read(value, names)
        if number is not None and not least <= number <= most:
            raise UsageError(f"must be {least} to {most}")
        return number

    return bounded


def _reader(field: Field) -> Read:
    kind = field.type
    if isinstance(kind, list):
        inner = _reader(field._replace(type=next(one for one in kind if one != "null")))
        return lambda value, names: None if value is None else inner(value, names)
    if kind == "string":
        return _text_reader(field)
    if isinstance(kind, dict) and kind["type"] == "map":
        return _map_reader(field.name, kind["values"])
    return _PLAIN.get(kind if isinstance(kind, str) else kind.get("name", kind["type"]), _none)


def _text_reader(field: Field) -> Read:
    name = field.name
    if name == "project":
        return _project
    if field.shape == "id":
        kind = _NAMES.get(name, name)
        return lambda value, names: names.id(kind, text(value), name)
    return lambda value, names: names.value(name, text(value))


def text(value: Any) -> str:
    """Return a text that has a UTF-8.

    Raises:
        UsageError: it is none.
    """
    if type(value) is not str:
        raise UsageError("must be text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UsageError("is not Unicode text: it has a lone surrogate") from None
    return value


def _project(value: Any, names: Names) -> str:
    if not is_id(text(value)):
        raise UsageError("is not an id: 1 to 64 characters of A-Z a-z 0-9 _ -")
    return str(value)


def whole(value: Any, limit: int = INT64) -> int:
    """Return a whole number of so many bits.

    Raises:
        UsageError: it is none.
    """
    if type(value) is float and value.is_integer() and abs(value) <= _EXACT:
        value = int(value)  # 3.0 is a whole number in JSON
    if type(value) is not int:
        raise UsageError("must be a whole number")
    if not -limit <= value < limit:
        raise UsageError(f"must be a whole number of {limit.bit_length()} bits")
    return value


def _flag(value: Any, names: Names) -> bool:
    if type(value) is not bool:
        raise UsageError("must be true or false")
    return value


def _map_reader(field: str, values: str) -> Read:
    def read(value: Any, names: Names) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise UsageError("must be an object")
        if values != "string":
            return {names.value(field, text(name)): whole(item) for name, item in value.items()}
        return {
            names.value(field, text(name)): names.value(f"{field}.{name}", text(item))
            for name, item in value.items()
        }

    return read


def _uuid(value: Any, names: Names) -> bytes:
    try:
        return UUID(text(value)).bytes
    except ValueError:
        raise UsageError("must be a UUID") from None


def _ranges(value: Any, names: Names) -> list[dict[str, int]]:
    if not isinstance(value, list):
        raise UsageError("must be a list of {first, last}")
    return [_range(item) for item in value]


def _range(value: Any) -> dict[str, int]:
    if not isinstance(value, Mapping) or value.keys() != {"first", "last"}:
        raise UsageError("must be a list of {first, last}")
    return {"first": whole(value["first"]), "last": whole(value["last"])}


def _none(value: Any, names: Names) -> Any:
    raise UsageError("cannot be given")


_PLAIN: Mapping[str, Read] = {
    "long": lambda value, names: whole(value),
    "int": lambda value, names: whole(value, INT32),
    "boolean": _flag,
    "Id16": _uuid,
    "turnlog.Id16": _uuid,
    "array": _ranges,
}


def plain(value: Any, level: int = 0) -> Any:
    """Return a value of JSON or msgpack that frames can hold, whatever brought it.

    Raises:
        UsageError: over 254 levels, an integer over 64 bits, or a key that is no text.
    """
    if level > MAX_LEVELS:
        raise UsageError(f"has more than {MAX_LEVELS} levels")
    if type(value) is int:
        whole(value)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if type(name) is not str:
                raise UsageError("has a key that is no text")
            plain(item, level + 1)
    elif isinstance(value, list):
        for item in value:
            plain(item, level + 1)
    return value


def time_us(value: Any) -> int:
    """Return a time as UTC microseconds; it is RFC 3339 text with an offset, or microseconds.

    Raises:
        UsageError: it is neither.
    """
    at_us = value if type(value) is int else _parsed(text(value))
    if not 0 <= at_us < MAX_TIME_US:
        raise UsageError("must lie between the years 1970 and 9999")
    return at_us


def _parsed(value: str) -> int:
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        raise UsageError("must be RFC 3339, such as 2026-11-30T21:38:00Z") from None
    if at.tzinfo is None:
        raise UsageError("must name its offset, such as Z")
    since = at - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
