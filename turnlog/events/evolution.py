"""Whether every version of a type that ever landed can read every other one (FULL_TRANSITIVE).

The rules are those of Avro's schema resolution (specification, "Schema Resolution"), and four of
our own, because an event is read without resolution too: by position, by name in ClickHouse, and by
its defaults in folds that must give the same digest for ever.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from turnlog.errors import TurnlogError
from turnlog.events.schema import (
    COMMON_FIELDS,
    TYPES,
    EventType,
    history_folder,
    read_type,
)

_PROMOTIONS = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
"""Writer's type to the reader's types that take it (Avro specification)."""


def _kind(avro_type: Any) -> str:
    if isinstance(avro_type, list):
        return "union"
    return str(avro_type["type"]) if isinstance(avro_type, dict) else str(avro_type)


class _Names:
    """Resolves references to named types, which Avro defines once in a file."""

    def __init__(self, schema: Any) -> None:
        self._named: dict[str, Any] = {}
        self._collect(schema)

    def _collect(self, avro_type: Any) -> None:
        if isinstance(avro_type, list):
            for branch in avro_type:
                self._collect(branch)
        elif isinstance(avro_type, dict):
            if "name" in avro_type:
                self._named[avro_type["name"]] = avro_type
            for field in avro_type.get("fields", ()):
                self._collect(field["type"])
            for inner in ("items", "values"):
                self._collect(avro_type.get(inner))

    def __call__(self, avro_type: Any) -> Any:
        return self._named.get(avro_type, avro_type) if isinstance(avro_type, str) else avro_type


class _Reading:
    """What stops a reader's schema from reading what a writer's schema wrote."""

    def __init__(self, reader: Any, writer: Any) -> None:
        self._of_reader, self._of_writer = _Names(reader), _Names(writer)

    def problems(self, reader: Any, writer: Any, path: str) -> Iterator[str]:
        reader, writer = self._of_reader(reader), self._of_writer(writer)
        if _kind(writer) == "union":
            yield from self._from_union(reader, writer, path)
        elif _kind(reader) == "union":
            if not any(self._reads(branch, writer) for branch in reader):
                yield f"{path}: no branch of the union takes {_kind(writer)}"
        elif _kind(reader) != _kind(writer):
            if _kind(reader) not in _PROMOTIONS.get(_kind(writer), ()):
                yield f"{path}: {_kind(writer)} cannot be read as {_kind(reader)}"
        elif isinstance(reader, dict):
            yield from self._inside(reader, writer, path)

    def _from_union(self, reader: Any, writer: Any, path: str) -> Iterator[str]:
        for branch in writer:
            yield from self.problems(reader, branch, path)

    def _reads(self, reader: Any, writer: Any) -> bool:
        return not any(self.problems(reader, writer, ""))

    def _inside(self, reader: Any, writer: Any, path: str) -> Iterator[str]:
        kind = _kind(reader)
        if kind in ("record", "enum", "fixed") and reader["name"] != writer["name"]:
            yield f"{path}: {writer['name']} became {reader['name']}"
        if kind == "record":
            yield from self._fields(reader, writer, path)
        elif kind == "enum" and "default" not in reader:
            for symbol in sorted(set(writer["symbols"]) - set(reader["symbols"])):
                yield f"{path}: symbol {symbol} is unknown and there is no default"
        elif kind == "fixed" and reader["size"] != writer["size"]:
            yield f"{path}: {writer['size']} bytes became {reader['size']}"
        elif kind in ("array", "map"):
            inner = "items" if kind == "array" else "values"
            yield from self.problems(reader[inner], writer[inner], f"{path}[]")

    def _fields(self, reader: Any, writer: Any, path: str) -> Iterator[str]:
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            where = f"{path}.{field['name']}"
            if field["name"] in written:
                yield from self.problems(field["type"], written[field["name"]]["type"], where)
            elif "default" not in field:
                yield f"{where}: is not in the other version and has no default"


def reading_problems(reader: EventType, writer: EventType) -> list[str]:
    """Return what stops one version from reading another; empty: nothing."""
    reading = _Reading(reader.schema, writer.schema)
    return list(reading.problems(reader.schema, writer.schema, reader.name))


def house_problems(new: EventType, old: EventType) -> list[str]:
    """Return how a version breaks our own rules beside an earlier one.

    A field keeps its type, its default and its place before those added later; the common fields
    stay as they are; the type stays in its topic.
    """
    return list(_house(new, old))


def _house(new: EventType, old: EventType) -> Iterator[str]:
    if new.topic != old.topic:
        yield f"{new.name}: moved from {old.topic} to {new.topic}"
    if _outline(new)[:COMMON_FIELDS] != _outline(old)[:COMMON_FIELDS]:
        yield f"{new.name}: the common fields changed"
    kept_new = [field.name for field in new.fields if field.name in _by_name(old)]
    kept_old = [field.name for field in old.fields if field.name in _by_name(new)]
    if kept_new != kept_old or kept_new != [field.name for field in new.fields[: len(kept_new)]]:
        yield f"{new.name}: fields changed places, or a new one is not at the end"
    for name in kept_new:
        yield from _changed_default(new, old, name)


def _changed_default(new: EventType, old: EventType, name: str) -> Iterator[str]:
    one, other = _by_name(new)[name], _by_name(old)[name]
    if (one.required, one.default) != (other.required, other.default):
        yield f"{new.name}.{name}: its default changed"


def _by_name(kind: EventType) -> Mapping[str, Any]:
    return {field.name: field for field in kind.fields}


def _bare(avro_type: Any) -> Any:
    """Return a type without its doc strings, which may change."""
    if isinstance(avro_type, dict):
        return {name: _bare(part) for name, part in avro_type.items() if name != "doc"}
    return [_bare(part) for part in avro_type] if isinstance(avro_type, list) else avro_type


def _outline(kind: EventType) -> list[tuple[str, Any]]:
    return [(field.name, _bare(field.type)) for field in kind.fields]


def history() -> dict[str, list[EventType]]:
    """Return every version that landed, by type.

    Raises:
        TurnlogError: a file is not where its type and fingerprint belong.
    """
    found: dict[str, list[EventType]] = {}
    for path in sorted(history_folder().glob("*/*.avsc")):
        kind = read_type(path.read_text())
        if (path.parent.name, path.stem) != (kind.name, kind.fingerprint.hex()):
            raise TurnlogError(f"{path} is not where its type and fingerprint belong")
        found.setdefault(kind.name, []).append(kind)
    return found


def problems() -> list[str]:
    """Compare every version with every other one of its type; return what is wrong."""
    past = history()
    found = [f"{name}: its events can no longer be read" for name in past.keys() - TYPES.keys()]
    for name, present in TYPES.items():
        found += compare(present, past.get(name, []))
    return found


def compare(present: EventType, past: list[EventType]) -> list[str]:
    """Compare one type's present version with those that landed."""
    found = []
    if present.fingerprint not in {kind.fingerprint for kind in past}:
        found.append(f"{present.name}: not recorded; run `turnlog topics schemas --record`")
    for kind in past:
        if kind.fingerprint != present.fingerprint:
            found += reading_problems(present, kind) + reading_problems(kind, present)
        found += house_problems(present, kind)
    return found


def record_present() -> list[str]:
    """Write every present version that is not yet in the history; return their names."""
    written = []
    for kind in TYPES.values():
        path = history_folder() / kind.name / f"{kind.fingerprint.hex()}.avsc"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(kind.text)
            written.append(kind.name)
    return written


if __name__ == "__main__":
    raise SystemExit("\n".join(problems()) or 0)
