"""What the values of a body may look like: an allow-list of shapes, so no content slips in."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from turnlog.errors import UsageError
from turnlog.events.pack import int32
from turnlog.events.schema import EventType, Field
from turnlog.ids import is_id, shaped

MAX_COST_NANO_USD = 10**15
"""A million USD for one call: no price list comes near it, and 9,000 of them fit 64 bits."""

MAX_TOKENS = 2**40
"""Above a trillion it is no count of tokens of one call."""

MAX_EPOCH = 2**31
"""A run is not taken over so often; what claims the highest epoch there is could never be."""

_TOKENS = (
    *("input_uncached", "cache_read", "cache_write_5m", "cache_write_1h"),
    *("output_text", "output_reasoning", "audio_in", "audio_out", "image_in", "image_out"),
    "tool_use",
)
BOUNDS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(_TOKENS, (0, MAX_TOKENS)),
    "cost_nano_usd": (0, MAX_COST_NANO_USD),
    "sign": (-1, 1),
    "writer_epoch": (0, MAX_EPOCH),
}
"""Fields whose numbers lie between these: sums stay exact, and what is taken back has a sign."""

_REF = re.compile(r"[A-Za-z0-9._:/@+#=-]{1,1024}")

Shape = Callable[[Any], Any]
"""Returns a value in its shape, or raises."""

Shapes = tuple[tuple[str, Shape], ...]


def _each(shape: Callable[[str], str]) -> Shape:
    """Apply a shape to a string, to each of a list, or to the names and values of a map."""

    def apply(value: Any) -> Any:
        if isinstance(value, str):
            return shape(value)
        if isinstance(value, Mapping):
            return {apply(name): apply(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [apply(item) for item in value]
        return value

    return apply


def _refusing(name: str, fits: Callable[[str], bool]) -> Callable[[str], str]:
    def check(value: str) -> str:
        if value and not fits(value):
            raise UsageError(f"{name} has not the form that its field asks for")
        return value

    return check


def _within(name: str, least: int, most: int) -> Shape:
    def check(value: Any) -> Any:
        if value is not None and not least <= value <= most:
            raise UsageError(f"{name} must be {least} to {most}")
        return value

    return check


def _is_ref(value: str) -> bool:
    return _REF.fullmatch(value) is not None


def _guard(avro_type: Any) -> Shape | None:
    """Return what refuses an int of more than 32 bits, at any depth; None: there is no int.

    fastavro writes and reads such an int all the same, other readers of the log do not.
    """
    if avro_type == "int":
        return int32
    if not isinstance(avro_type, dict):
        return None
    if avro_type["type"] == "array":
        inner = _guard(avro_type["items"])
        return inner and (lambda value: [inner(item) for item in value])
    if avro_type["type"] != "record":
        return None
    ints = [(f["name"], guard) for f in avro_type["fields"] if (guard := _guard(f["type"]))]
    return lambda value: {**value, **{n: guard(value[n]) for n, guard in ints if n in value}}


def shape_of(field: Field) -> Shape | None:
    """Return what brings a value into the shape of its field; None: any value of its type does.

    An id or a reference is refused (it names something, and "other" would name something else),
    and so is a number out of bounds; any other text becomes "other".
    """
    if field.shape == "value":
        return _each(shaped)
    if field.shape == "id":
        return _each(_refusing(field.name, is_id))
    if field.shape == "ref":
        return _each(_refusing(field.name, _is_ref))
    if field.name in BOUNDS:
        return _within(field.name, *BOUNDS[field.name])
    return _guard(field.type)


_SHAPES: dict[bytes, Shapes] = {}
_GUARDS: dict[bytes, Shapes] = {}


def _of_type(
    cache: dict[bytes, Shapes], kind: EventType, pick: Callable[[Field], Shape | None]
) -> Shapes:
    found = cache.get(kind.fingerprint)
    if found is None:
        pairs = ((field.name, pick(field)) for field in kind.fields)
        found = cache[kind.fingerprint] = tuple((n, shape) for n, shape in pairs if shape)
    return found


def shape_body(kind: EventType, body: dict[str, Any]) -> dict[str, Any]:
    """Bring every value of a body into the shape of its field, in place.

    Raises:
        UsageError: an id or reference has not the form of one, or a number is out of bounds; the
            message names the field.
        TypeError: a value is not of its field's type.
        OverflowError: an int does not fit 32 bits.
    """
    for name, shape in _of_type(_SHAPES, kind, shape_of):
        body[name] = shape(body[name])
    return body


def guard_body(kind: EventType, body: Mapping[str, Any]) -> None:
    """Look over a body that was read.

    Raises:
        OverflowError: an int does not fit 32 bits.
    """
    for name, guard in _of_type(_GUARDS, kind, lambda field: _guard(field.type)):
        guard(body[name])
