"""Hypothesis strategies for event bodies, made from the schemas themselves."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from turnlog.events import EventType
from turnlog.events.schema import Field

many = settings(max_examples=100, deadline=None)
per_type = settings(max_examples=12, deadline=None)
"""For a test that runs once for each of the types: a shared machine may be slow at any time."""

IDS = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
VALUES = st.from_regex(r"[A-Za-z0-9._:/@+-]{1,128}", fullmatch=True) | st.just("")
LONGS = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2_000_000_000_000_000)
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
    text = {"id": IDS | st.just(""), "": st.text(max_size=20)}.get(field.shape, VALUES)
    return values(field.type, text)


def bodies(kind: EventType) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies of a type: required fields always, the others sometimes."""
    required = {field.name: _of(field) for field in kind.fields if field.required}
    optional = {field.name: _of(field) for field in kind.fields if not field.required}
    required["org"] = required["conversation"] = IDS
    optional.pop("conversation")
    return st.fixed_dictionaries(required, optional=optional)
