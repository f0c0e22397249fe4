"""Hypothesis strategies for event bodies, made from the schemas themselves."""

import string
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from turnlog.events import EventType
from turnlog.events.schema import Field
from turnlog.events.shapes import BOUNDS

# A shared machine may be slow at any time: that is no finding.
many = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
per_type = settings(many, max_examples=8)
"""For a test that runs once for each of the types."""

LETTERS = string.ascii_letters + string.digits + "_-"
IDS = st.text(LETTERS, min_size=1, max_size=64)
VALUES = st.text(LETTERS + "._:/@+", max_size=128)
LONGS = st.integers(-(2**63), 2**63 - 1)
INTS = st.integers(-(2**31), 2**31 - 1)
PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "long": LONGS,
    "int": INTS,
    "boolean": st.booleans(),
    "bytes": st.binary(max_size=300),
    "null": st.none(),
    "turnlog.Id16": st.binary(min_size=16, max_size=16),
}


def values(avro_type: Any, text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    if isinstance(avro_type, list):
        return st.one_of([values(branch, text) for branch in avro_type])
    if isinstance(avro_type, str):
        return text if avro_type == "string" else PRIMITIVES[avro_type]
    kind = avro_type["type"]
    if kind == "record":
        return st.fixed_dictionaries(
            {field["name"]: values(field["type"], text) for field in avro_type["fields"]}
        )
    if kind == "fixed":
        return st.binary(min_size=avro_type["size"], max_size=avro_type["size"])
    if kind == "enum":
        return st.sampled_from(avro_type["symbols"])
    if kind == "array":
        return st.lists(values(avro_type["items"], text), max_size=4)
    return st.dictionaries(VALUES, values(avro_type["values"], text), max_size=4)


def _of(field: Field) -> st.SearchStrategy[Any]:
    text = {"id": st.text(LETTERS, max_size=64), "": st.text(max_size=20)}.get(field.shape, VALUES)
    if field.name in BOUNDS:
        bounded = st.integers(*BOUNDS[field.name])
        return st.none() | bounded if isinstance(field.type, list) else bounded
    return values(field.type, text)


def bodies(kind: EventType) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies of a type: required fields always, the others sometimes."""
    required = {field.name: _of(field) for field in kind.fields if field.required}
    optional = {field.name: _of(field) for field in kind.fields if not field.required}
    required["org"] = required["conversation"] = IDS
    optional.pop("conversation")
    return st.fixed_dictionaries(required, optional=optional)
