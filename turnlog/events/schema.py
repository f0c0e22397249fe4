"""The event types: read once from the Avro files that lie beside the package, never imported."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fastavro.schema import fingerprint, parse_schema, to_parsing_canonical_form

from turnlog.errors import UnknownSchema, UsageError

MARKER = b"\xc3\x01"
HEADER_BYTES = 10
COMMON_FIELDS = 24
"""How many fields every type begins with, in one order, so that one slicer fits all."""


class Field(NamedTuple):
    """One field of an event type.

    Attributes:
        name: Its name in the body.
        type: Parsed Avro type.
        default: The value it has when a body leaves it out, as Python reads it (bytes as bytes).
        required: True where there is no default.
        shape: "id", "value" or "ref" where the schema restricts what a string may look like.
    """

    name: str
    type: Any
    default: Any
    required: bool
    shape: str


class EventType(NamedTuple):
    """One version of one event type.

    Attributes:
        name: Such as "run.created".
        topic: Kafka topic that its events go to.
        schema: Schema as `fastavro` parsed it.
        text: The file's text.
        fingerprint: CRC-64-AVRO of the Parsing Canonical Form, 8 bytes little-endian as on the
            wire (Avro specification, "Single-object encoding").
        header: The 10 bytes before each body.
        fields: All fields in order; the first 24 are common to all types.
    """

    name: str
    topic: str
    schema: Any
    text: str
    fingerprint: bytes
    header: bytes
    fields: tuple[Field, ...]


def schema_folder() -> Path:
    """Return where the Avro files are: inside the gateway wheel, or beside the package."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "_data" / "avro"
    return inside if inside.is_dir() else package.parent / "schemas" / "avro"


def history_folder() -> Path:
    """Return where the versions that ever landed are kept: `{type}/{fingerprint}.avsc`."""
    return schema_folder().parent / "history"


def python_default(avro_type: Any, default: Any) -> Any:
    """Return a JSON default as the value that a reader gives.

    Avro writes bytes in JSON as a string of code points 0 to 255; fastavro 1.13 hands that
    string out unchanged, and its own writer then refuses it.
    """
    kind = avro_type["type"] if isinstance(avro_type, dict) else avro_type
    if isinstance(default, str) and (kind in ("bytes", "fixed") or kind == "turnlog.Id16"):
        return default.encode("latin-1")
    return default


def _field(raw: Mapping[str, Any]) -> Field:
    default = python_default(raw["type"], raw.get("default"))
    return Field(raw["name"], raw["type"], default, "default" not in raw, raw.get("shape", ""))


def read_type(text: str) -> EventType:
    """Return the event type that the text of a schema file describes."""
    schema = parse_schema(json.loads(text))
    assert isinstance(schema, dict)
    # fastavro prints the eight bytes in the order of the wire: `"int"`, 0x7275d51a3f395c8f in the
    # Avro specification, comes out as 8f5c393f1ad57572.
    mark = bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))
    fields = tuple(_field(field) for field in schema["fields"])
    return EventType(schema["event"], schema["topic"], schema, text, mark, MARKER + mark, fields)


def _load() -> dict[str, EventType]:
    types = (read_type(path.read_text()) for path in sorted(schema_folder().glob("*.avsc")))
    return {kind.name: kind for kind in types}


TYPES: Mapping[str, EventType] = MappingProxyType(_load())
"""Every event type in its present version, by name."""

COMMON = next(iter(TYPES.values())).fields[:COMMON_FIELDS]
"""The fields that every type begins with."""

_PRESENT = {kind.fingerprint: kind for kind in TYPES.values()}


@cache
def _past() -> dict[bytes, EventType]:
    versions = (read_type(path.read_text()) for path in history_folder().glob("*/*.avsc"))
    return {kind.fingerprint: kind for kind in versions}


def versions() -> tuple[EventType, ...]:
    """Return every version of every type, present and past."""
    return tuple({**_past(), **_PRESENT}.values())


def by_fingerprint(fingerprint: bytes) -> EventType:
    """Return the version with this fingerprint, a present or a past one.

    Raises:
        UnknownSchema: no version here has it.
    """
    kind = _PRESENT.get(fingerprint) or _past().get(fingerprint)
    if kind is None:
        raise UnknownSchema(f"schema fingerprint {fingerprint.hex()} is not known here")
    return kind


def event_type(name: str) -> EventType:
    """Return a type in its present version.

    Raises:
        UsageError: there is no such type.
    """
    kind = TYPES.get(name)
    if kind is None:
        raise UsageError(f"there is no event type {name[:64]!r}")
    return kind
