"""Avro single-object encoding of events, through fastavro; the reference for the fast path."""

import json
from collections.abc import Mapping
from copy import copy
from functools import cache
from io import BytesIO
from typing import Any, NamedTuple

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from turnlog.errors import DecodeError, TooLarge, UsageError
from turnlog.events.schema import (
    COMMON_FIELDS,
    HEADER_BYTES,
    MARKER,
    TYPES,
    EventType,
    by_fingerprint,
    event_type,
)
from turnlog.events.shapes import guard_body, shape_body

MAX_RECORD_BYTES = 950_000
"""Kafka takes batches of 1,048,588 bytes by default; this leaves room for key and headers."""

REFUSALS = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What comes out of fastavro for a body that does not fit, or for bytes that are no body."""


class Event(NamedTuple):
    """A decoded event: its type's name and its body in the present version of that type."""

    type: str
    body: dict[str, Any]


def complete(kind: EventType, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body with every field of the type, defaults filled in, values in their shapes.

    Raises:
        UsageError: a field is unknown or missing, or a value cannot be brought into its shape.
    """
    unknown = body.keys() - {field.name for field in kind.fields}
    if unknown:
        raise UsageError(f"{kind.name} has no field {min(unknown)}")
    missing = [field.name for field in kind.fields if field.required and field.name not in body]
    if missing:
        raise UsageError(f"{kind.name} needs {missing[0]}")
    full = {field.name: body.get(field.name, field.default) for field in kind.fields}
    try:
        return shape_body(kind, full)
    except REFUSALS as error:
        raise UsageError(f"{kind.name}: a value does not fit its field") from error


def write(kind: EventType, full: Mapping[str, Any]) -> bytes:
    """Return a complete body in single-object encoding.

    Raises:
        UsageError: a value does not fit the type of its field.
        TooLarge: the value is over 950,000 bytes.
    """
    out = BytesIO()
    out.write(kind.header)
    try:
        schemaless_writer(out, kind.schema, full)
    except REFUSALS as error:
        # The error's text may quote the value, which may be content.
        raise UsageError(f"{kind.name}: a value does not fit its field") from error
    return checked_size(kind.name, out.getvalue())


def checked_size(name: str, value: bytes) -> bytes:
    """Return the value if it is small enough for a record.

    Raises:
        TooLarge: it is over 950,000 bytes.
    """
    if len(value) > MAX_RECORD_BYTES:
        raise TooLarge(f"{name} of {len(value)} bytes: a record holds {MAX_RECORD_BYTES}")
    return value


def encode(type: str, body: Mapping[str, Any]) -> bytes:
    """Return an event in Avro single-object encoding: `C3 01`, fingerprint, body.

    A field that is left out takes its default; a content-free value outside its shape is written
    as "other" (DESIGN.md law 5).

    Raises:
        UsageError: no such type, an unknown or missing field, a value that does not fit.
        TooLarge: the value is over 950,000 bytes.
    """
    kind = event_type(type)
    return write(kind, complete(kind, body))


def decode(value: bytes) -> Event:
    """Return the event that the bytes hold, read into the present version of its type.

    An event has one encoding: what fastavro would write otherwise (a union or enum index below
    zero, a boolean of 2, a length with padding, bytes behind the end: it reads them all) is
    refused, so that every reader of the log sees the same.

    Raises:
        UnknownSchema: the fingerprint is not known here.
        DecodeError: the bytes are not an event; the message never holds any of them.
    """
    if value[:2] != MARKER or len(value) < HEADER_BYTES:
        raise DecodeError("the value is not in Avro single-object encoding")
    kind = by_fingerprint(value[2:HEADER_BYTES])
    body = _read(kind, value)
    present = TYPES.get(kind.name, kind)
    return Event(kind.name, body if present is kind else _resolve(kind, present, value))


def _read(kind: EventType, value: bytes) -> dict[str, Any]:
    source = BytesIO(value)
    source.seek(HEADER_BYTES)
    again = BytesIO()
    again.write(kind.header)
    try:
        body: dict[str, Any] = schemaless_reader(source, kind.schema)  # type: ignore[assignment]
        schemaless_writer(again, kind.schema, body)
        guard_body(kind, body)
    except REFUSALS:
        raise DecodeError(f"the body does not fit {kind.name}") from None
    if again.getvalue() != value:
        raise DecodeError(f"the body is not the one encoding of {kind.name}, or bytes follow it")
    return body


def _resolve(old: EventType, present: EventType, value: bytes) -> dict[str, Any]:
    """Read an earlier version's body into the present one (Avro schema resolution)."""
    source = BytesIO(value)
    source.seek(HEADER_BYTES)
    body: dict[str, Any] = schemaless_reader(source, old.schema, present.schema)  # type: ignore[assignment]
    had = {field.name for field in old.fields}
    body.update({f.name: copy(f.default) for f in present.fields if f.name not in had})
    return body


@cache
def _common_schema() -> Any:
    """Return what all types begin with as a type of its own: whatever follows is not read."""
    fields = json.loads(next(iter(TYPES.values())).text)["fields"][:COMMON_FIELDS]
    return parse_schema({"type": "record", "name": "turnlog.Common", "fields": fields})


def common_fields(value: bytes) -> dict[str, Any]:
    """Return the common fields of an event of any type without decoding the rest: 5 µs.

    Raises:
        DecodeError: the bytes do not begin like an event.
    """
    if value[: len(MARKER)] != MARKER:
        raise DecodeError("the value is not in Avro single-object encoding")
    source = BytesIO(value)
    source.seek(HEADER_BYTES)
    try:
        body: Any = schemaless_reader(source, _common_schema())
    except REFUSALS:
        raise DecodeError("the value does not begin like an event") from None
    return dict(body)
