"""The schema files: complete, documented, alike where they must be."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form

from turnlog.errors import UnknownSchema, UsageError
from turnlog.events import TYPES, by_fingerprint
from turnlog.events.schema import COMMON_FIELDS, event_type, read_type, schema_folder

EVENTS = {
    "turnlog.runs": "run.created run.started run.taken_over run.cancel_requested "
    "run.output_retracted run.completed run.failed run.cancelled run.interrupted",
    "turnlog.run-chunks": "chunk.batch run.heartbeat finalizer.tick",
    "turnlog.turns": "conversation.created turn.appended turn.edited turn.regenerated "
    "leaf.selected conversation.forked conversation.renamed conversation.deleted "
    "conversation.restored",
    "turnlog.usage": "usage.recorded usage.corrected task.outcome",
    "turnlog.refusals": "append.refused",
    "turnlog.ledger": "ledger.mark",
    "turnlog.directory": "directory.entry",
    "turnlog.billing": "price.override statement.closed billing.correction billing.alert",
    "turnlog.audit": "audit.recorded",
    "turnlog.erasures": "erasure.requested erasure.denied key.erased store.purged "
    "certificate.live certificate.final",
    "turnlog.packs": "pack.added",
}

COMMON = [
    *("org", "conversation", "run", "event_id", "frame", "content_mac"),
    *("seq", "producer_seq", "occurred_at_us", "may_repeat"),
    *("project", "turn", "user", "writer_epoch", "key_tree", "key_day", "key_gen"),
    *("producer_id", "producer_epoch", "correlation_id", "causation_id", "traceparent"),
    *("time_basis", "schema_version"),
]

# Of the Avro specification's own test data (share/test/data/schema-tests.txt).
SPECIFICATION = {
    '"null"': 7195948357588979594,
    '"boolean"': -6970731678124411036,
    '"int"': 8247732601305521295,
    '"long"': -3434872931120570953,
    '"float"': 5583340709985441680,
    '"double"': -8181574048448539266,
    '"bytes"': 5746618253357095269,
    '"string"': -8142146995180207161,
    '{"name":"foo","type":"fixed","size":15}': 1756455273707447556,
}


def crc_64_avro(text: bytes) -> int:
    """The algorithm as the specification prints it, without its table."""
    empty = 0xC15D213AA4D7A795
    mark = empty
    for byte in text:
        mark ^= byte
        for _ in range(8):
            mark = (mark >> 1) ^ (empty & -(mark & 1))
    return mark


@pytest.mark.parametrize(("text", "signed"), SPECIFICATION.items())
def test_fingerprints_are_little_endian_crc_64_avro(text: str, signed: int) -> None:
    expected = signed % 2**64
    assert crc_64_avro(text.encode()) == expected
    assert bytes.fromhex(fingerprint(text, "CRC-64-AVRO")) == expected.to_bytes(8, "little")


def test_headers_are_marker_and_fingerprint_of_the_canonical_form() -> None:
    for kind in TYPES.values():
        canonical = to_parsing_canonical_form(kind.schema).encode()
        assert kind.fingerprint == crc_64_avro(canonical).to_bytes(8, "little")
        assert kind.header == b"\xc3\x01" + kind.fingerprint
        assert by_fingerprint(kind.fingerprint) is kind


def test_every_event_of_the_design_has_a_schema_and_a_topic() -> None:
    designed = {name: topic for topic, names in EVENTS.items() for name in names.split()}
    assert {name: kind.topic for name, kind in TYPES.items()} == designed


def test_files_are_named_after_their_events() -> None:
    for path in schema_folder().glob("*.avsc"):
        assert read_type(path.read_text()).name == path.stem


def raw_fields(avro_type: Any) -> Iterator[dict[str, Any]]:
    if isinstance(avro_type, list):
        for branch in avro_type:
            yield from raw_fields(branch)
    if isinstance(avro_type, dict):
        for field in avro_type.get("fields", ()):
            yield field
            yield from raw_fields(field["type"])
        yield from raw_fields(avro_type.get("items"))
        yield from raw_fields(avro_type.get("values"))


@pytest.mark.parametrize("name", TYPES)
def test_every_field_says_what_it_is(name: str) -> None:
    raw = json.loads(TYPES[name].text)
    assert raw["doc"]
    assert [field["name"] for field in raw_fields(raw) if not field.get("doc")] == []


@pytest.mark.parametrize("name", TYPES)
def test_every_type_begins_with_the_same_fields(name: str) -> None:
    first = json.loads(TYPES["run.created"].text)["fields"][:COMMON_FIELDS]
    assert json.loads(TYPES[name].text)["fields"][:COMMON_FIELDS] == first
    assert [field["name"] for field in first] == COMMON


@pytest.mark.parametrize("name", TYPES)
def test_only_identity_has_no_default(name: str) -> None:
    required = [field.name for field in TYPES[name].fields if field.required]
    assert required == ["org", "event_id", "occurred_at_us"]


@pytest.mark.parametrize("name", TYPES)
def test_every_own_string_has_a_shape(name: str) -> None:
    # Content could slip into a string that has none.
    strings = [field for field in TYPES[name].fields if "string" in json.dumps(field.type)]
    assert [f.name for f in strings if not f.shape and f.name != "ranges"] == []


def test_an_unknown_fingerprint_is_named() -> None:
    with pytest.raises(UnknownSchema, match="0102030405060708"):
        by_fingerprint(bytes(range(1, 9)))


def test_an_unknown_type_is_the_callers_mistake() -> None:
    with pytest.raises(UsageError, match=r"run\.creatd"):
        event_type("run.creatd")
