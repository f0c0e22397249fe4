"""JSON as strange as providers send it: lone surrogates, NaN, huge numbers, deep nesting."""

import json
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

import orjson

from turnlog.ids import SHAPE

MAX_LEAVES = 200
MAX_DEPTH = 8
MAX_EXPONENT = 60


class NotJson(ValueError):
    """The text is no JSON that this machine can hold."""


def loads(text: str | bytes) -> Any:
    """Parse JSON; numbers become int and float.

    orjson is five times as fast, but refuses lone surrogates (half an emoji at the end of a
    chunk), NaN and Infinity, all of which occur; the standard library takes them.

    Raises:
        NotJson: the text is not JSON, or nested deeper than the parser can follow.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return _lenient(text, float, int)


def loads_exact(text: str | bytes) -> Any:
    """Parse JSON with numbers as int and Decimal, so that nothing is rounded.

    Raises:
        NotJson: as `loads`.
    """
    return _lenient(text, _decimal, int)


def number_leaves(text: str | bytes, path: tuple[str, ...]) -> dict[str, str]:
    """Return every number below `path` by its dotted path, as the exact text it had.

    At most 200 leaves, 8 levels deep; names of any other shape than a content-free one are left
    out, since what an attacker writes there would otherwise be stored in the clear.

    Raises:
        NotJson: as `loads`.
    """
    value = _lenient(text, _Number, _Number)
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    found: dict[str, str] = {}
    for name, number in _leaves(value, "", MAX_DEPTH):
        if len(found) == MAX_LEAVES:
            break
        if SHAPE.fullmatch(name) and SHAPE.fullmatch(number):
            found[name] = number
    return found


class _Number(str):
    """The text of a number, told apart from a string."""

    __slots__ = ()


def _decimal(text: str) -> Decimal | float:
    try:
        value = Decimal(text)
    except InvalidOperation:
        return float(text)
    # Adding 1 to 1e999999999 exactly takes a gigabyte; as floats these are infinite or nothing.
    return value if abs(value.adjusted()) <= MAX_EXPONENT else float(text)


def _lenient(text: str | bytes, parse_float: Any, parse_int: Any) -> Any:
    try:
        return json.loads(text, parse_float=parse_float, parse_int=parse_int)
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error)) from None


def _leaves(value: Any, prefix: str, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, _Number):
        yield prefix, str(value)
    if depth == 0 or not isinstance(value, dict | list):
        return
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, below in items:
        yield from _leaves(below, f"{prefix}.{name}" if prefix else str(name), depth - 1)


def dumps(value: Any) -> str:
    """Return a parsed value as JSON again; nothing where it is nested too deep to be written."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return ""


def mend(text: str) -> str:
    """Join surrogate halves that two chunks brought, and replace halves that stayed alone."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
