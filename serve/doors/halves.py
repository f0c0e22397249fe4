"""JSON of events: strict as everywhere, but that halves of surrogate pairs are let through.

Providers send them, cut in the middle of an emoji, and frames keep them as they are. Whether one
may stand where it stands is each event's own question: its neighbours are not refused for it.
"""

import json
import re
from typing import Any, NoReturn

from serve.appending.values import plain
from serve.doors.problem import Problem
from serve.doors.strict_json import parse
from turnlog.errors import UsageError

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_events(data: bytes) -> Any:
    """Return what a JSON text says.

    Raises:
        Problem: 400, as `strict_json.parse`, halves of pairs excepted.
    """
    try:
        return parse(data)
    except Problem:
        if not _HALF.search(data):
            raise
    try:
        return plain(_DECODER.decode(data.decode()))
    except (ValueError, RecursionError, UsageError):
        raise Problem(400, "invalid_json", "the body is not JSON") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return made


def _number(text: str) -> float:
    value = float(text)
    if not -(2.0**63) <= value < 2.0**64:
        _constant(text)
    return value


def _constant(_: str) -> NoReturn:
    raise ValueError("not a number of JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_number, parse_constant=_constant
)
