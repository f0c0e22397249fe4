"""Columns of a table, derived from the Avro schemas of the events that land in it.

What the wire says of a column and how it is stored may differ: strings of few values are stored as
LowCardinality, but parsed as plain strings (three times faster: 3.4 instead of 7.6 µs a row) into
an EPHEMERAL column `{name}_wire` that the stored one takes its value from.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from turnlog.events import EventType
from turnlog.events.schema import Field
from turnlog.events.shapes import BOUNDS

LOW_CARDINALITY = frozenset(
    {
        "org",
        "project",
        "producer_id",
        "time_basis",
        "provider",
        "model",
        "region",
        "run_group",
        "quality",
        "reason",
        "price_version",
        "status",
        "finish_reason",
        "error_code",
        "outcome",
        "evaluator",
        "task",
        "actor",
        "previous_producer",
    }
)
ID_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
ID_BYTES = 64
VALUE_CHARACTERS = ID_CHARACTERS + ".:/@+"
VALUE_BYTES = 128

_SCALARS = {"long": "Int64", "int": "Int32", "boolean": "Bool", "bytes": "String"}
# How long an Avro integer x is: 1, and one more from each 7th bit of 2|x| on. Floats err beside
# powers of two above 2^48; such a row is refused and then decoded.
_LONG_BYTES = "1 + toUInt8(log2(abs(2 * x + 1)) / 7)"
_TEXT_BYTES = "x + 1 + (x >= 64)"


class Column(NamedTuple):
    """One column.

    Attributes:
        name: the field's name, and the column's.
        avro: kind of Avro type: string, bytes, enum, fixed, boolean, int, long, map, array, or
            null for a union with null.
        stored: SQL type as stored.
        wire: SQL type as parsed.
        default: SQL literal, the value of rows whose schema version lacks the field.
        default_bytes: how long that value is in Avro.
        shape: "id", "value" or "": what its strings may look like.
    """

    name: str
    avro: str
    stored: str
    wire: str
    default: str
    default_bytes: int
    shape: str

    @property
    def wire_name(self) -> str:
        """Return the name of the column that is inserted into."""
        return self.name if self.stored == self.wire else f"{self.name}_wire"

    def declarations(self) -> Iterator[tuple[str, str]]:
        """Yield name and type of its column, or of the two where the wire's type is another."""
        if self.wire_name == self.name:
            implied = self.default in ("''", "NULL", "[]")
            yield self.name, self.stored + ("" if implied else f" DEFAULT {self.default}")
        else:
            yield self.wire_name, f"{self.wire} EPHEMERAL {self.default}"
            yield self.name, f"{self.stored} DEFAULT {self.wire_name}"


def columns_of(types: Iterable[EventType]) -> tuple[Column, ...]:
    """Return a column for each field of any of the types, without the frame."""
    fields: dict[str, Field] = {}
    for kind in types:
        for field in kind.fields:
            fields.setdefault(field.name, field)
    del fields["frame"]
    return tuple(map(_column, fields.values()))


def padding(columns: Iterable[Column], kind: EventType) -> int:
    """Return how long the defaults are of the columns that a schema version lacks."""
    had = {field.name for field in kind.fields}
    return sum(column.default_bytes for column in columns if column.name not in had)


def quoted(text: str) -> str:
    """Return an SQL string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _column(field: Field) -> Column:
    kind = _kind(field.type)
    wire = _wire_type(field.type)
    stored = wire
    if wire == "Map(String, String)":
        stored = "Map(LowCardinality(String), String)"
    elif field.name in LOW_CARDINALITY:
        stored = f"LowCardinality({wire})"
    default, default_bytes = _default(kind, field.default)
    return Column(field.name, kind, stored, wire, default, default_bytes, field.shape)


def _kind(type_: Any) -> str:
    if isinstance(type_, list):
        return "null"
    name = str(type_["type"] if isinstance(type_, Mapping) else type_)
    return "fixed" if name.endswith("Id16") else name


def _wire_type(type_: Any) -> str:
    kind = _kind(type_)
    if kind == "null":
        inner = next(branch for branch in type_ if branch != "null")
        return f"Nullable({_wire_type(inner)})"
    if kind == "array":
        names = [field["name"] for field in type_["items"]["fields"]]
        return f"Array(Tuple({', '.join(f'{name} Int64' for name in names)}))"
    other = {"map": "Map(String, String)", "fixed": "FixedString(16)"}
    return other.get(kind) or _SCALARS.get(kind, "String")


def _default(kind: str, default: Any) -> tuple[str, int]:
    """Return a default as an SQL literal, and how long it is in Avro."""
    if kind in ("string", "enum"):
        text = str(default or "")
        return quoted(text), 1 if kind == "enum" else 1 + len(text)
    if kind in ("int", "long", "boolean"):
        return str(int(default or 0)), 1
    empty = {"map": "map()", "array": "[]", "null": "NULL", "fixed": "''", "bytes": "''"}
    return empty[kind], 16 if kind == "fixed" else 1


def body_bytes(columns: Iterable[Column]) -> str:
    """Return the SQL for how long a row's values are in Avro, in their one canonical form.

    Sums over arrays, because the engine takes 120 ms an insert to read the sum of as many terms.
    """
    by_kind: dict[str, list[Column]] = {}
    for column in columns:
        by_kind.setdefault(column.avro, []).append(column)
    texts = by_kind.pop("string", []) + by_kind.pop("bytes", [])
    longs = by_kind.pop("int", []) + by_kind.pop("long", [])
    terms = [
        _sum(_TEXT_BYTES, [f"length({column.wire_name})" for column in texts]),
        _sum(_LONG_BYTES, [f"toInt64({column.name})" for column in longs]),
        str(16 * len(by_kind.pop("fixed", []))),
        str(len(by_kind.pop("boolean", []) + by_kind.pop("enum", []))),
    ]
    for kind, rest in by_kind.items():
        terms += map({"null": _null_bytes, "map": _map_bytes, "array": _array_bytes}[kind], rest)
    return " + ".join(terms)


def _sum(size: str, values: Iterable[str]) -> str:
    return f"arraySum(x -> {size}, [{', '.join(values)}])"


def _null_bytes(column: Column) -> str:
    if "FixedString" in column.wire:
        return f"1 + 16 * isNotNull({column.name})"
    size = _LONG_BYTES.replace("x", f"assumeNotNull({column.name})")
    return f"1 + if(isNull({column.name}), 0, {size})"


def _map_bytes(column: Column) -> str:
    name, size = column.wire_name, _TEXT_BYTES.replace("x", "length(x)")
    entries = [f"arraySum(x -> {size}, map{part}({name}))" for part in ("Keys", "Values")]
    return f"if(empty({name}), 1, 2 + (length({name}) >= 64) + {' + '.join(entries)})"


def _array_bytes(column: Column) -> str:
    name = column.name
    inner = column.wire.removeprefix("Array(Tuple(").removesuffix("))").split(", ")
    size = " + ".join(_LONG_BYTES.replace("x", f"x.{part.split()[0]}") for part in inner)
    count = _LONG_BYTES.replace("x", f"toInt64(length({name}))")
    return f"if(empty({name}), 1, 1 + {count} + arraySum(x -> {size}, {name}))"


def shape_conditions(columns: Iterable[Column]) -> Iterator[str]:
    """Yield the SQL conditions that every string of a row is in its shape.

    trimLeft is a table look-up a byte: 0.15 µs a row where a regular expression takes 0.33.
    """
    shaped = [column for column in columns if column.shape]
    ids = [column.wire_name for column in shaped if column.shape == "id"]
    values = [c.wire_name for c in shaped if c.shape == "value" and c.avro == "string"]
    fits = f"trimLeft(x, {quoted(VALUE_CHARACTERS)}) = '' AND length(x) <= {VALUE_BYTES}"
    yield from _fit(ids, ID_CHARACTERS, ID_BYTES)
    yield from _fit(values, VALUE_CHARACTERS, VALUE_BYTES)
    for column in shaped:
        if column.avro == "map":
            yield f"arrayAll(x -> {fits}, mapKeys({column.wire_name}))"
            yield f"arrayAll(x -> {fits}, mapValues({column.wire_name}))"


def bound_conditions(columns: Iterable[Column]) -> Iterator[str]:
    """Yield the SQL conditions that every number of a row is within its bounds."""
    names: dict[tuple[int, int], list[str]] = {}
    for column in columns:
        if column.name in BOUNDS:
            value = f"ifNull({column.name}, 0)" if column.avro == "null" else column.name
            names.setdefault(BOUNDS[column.name], []).append(f"toInt64({value})")
    for (least, most), of_rows in names.items():
        listed = ", ".join(of_rows)
        yield f"arrayMin([{listed}]) >= {least} AND arrayMax([{listed}]) <= {most}"


def _fit(names: Iterable[str], characters: str, most_bytes: int) -> Iterator[str]:
    names = list(names)
    yield f"trimLeft(concat({', '.join(names)}), {quoted(characters)}) = ''"
    yield f"arrayMax([{', '.join(f'length({name})' for name in names)}]) <= {most_bytes}"
