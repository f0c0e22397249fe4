"""Encoding and decoding, of good bodies and of any bytes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.turnlog.events.bodies import bodies, many, per_type
from turnlog.errors import DecodeError, TooLarge, UnknownSchema, UsageError
from turnlog.events import MAX_RECORD_BYTES, TYPES, Encoder, EventType, decode, encode, schema
from turnlog.events.codec import complete, write
from turnlog.events.schema import read_type
from turnlog.events.shapes import BOUNDS

KINDS = st.sampled_from(list(TYPES.values()))
BODY = {
    "org": "acme",
    "run": "run_1",
    "event_id": bytes(16),
    "occurred_at_us": 1_764_500_000_000_000,
}


@pytest.mark.parametrize("name", TYPES)
@per_type
@given(st.data())
def test_what_is_encoded_is_decoded(name: str, data: st.DataObject) -> None:
    kind = TYPES[name]
    body = data.draw(bodies(kind))
    value = encode(kind.name, body)
    assert value.startswith(kind.header)
    event = decode(value)
    assert event.type == kind.name
    assert event.body == complete(kind, body)
    assert list(event.body) == [field.name for field in kind.fields]


@many
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_with_a_decode_error(value: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(value)


@many
@given(st.data())
def test_bytes_behind_a_known_header_decode_or_are_refused(data: st.DataObject) -> None:
    kind = data.draw(KINDS)
    value = kind.header + data.draw(st.binary(max_size=400))
    try:
        body = decode(value).body
    except DecodeError:
        return
    assert encode_as_is(kind, body) == value


@many
@given(st.data())
def test_a_damaged_event_decodes_to_itself_or_is_refused(data: st.DataObject) -> None:
    kind = data.draw(KINDS)
    value = bytearray(encode(kind.name, data.draw(bodies(kind))))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(10, len(value) - 1))
        value[at] = data.draw(st.integers(0, 255))
    try:
        body = decode(bytes(value)).body
    except DecodeError:
        return
    assert encode_as_is(kind, body) == bytes(value)


def encode_as_is(kind: EventType, body: dict[str, Any]) -> bytes:
    return write(kind, body)


@many
@given(st.data())
def test_no_part_of_an_event_is_an_event(data: st.DataObject) -> None:
    kind = data.draw(KINDS)
    value = encode(kind.name, data.draw(bodies(kind)))
    with pytest.raises(DecodeError):
        decode(value[: data.draw(st.integers(0, len(value) - 1))])


def test_bytes_behind_the_end_are_refused() -> None:
    with pytest.raises(DecodeError, match="bytes follow"):
        decode(encode("run.created", BODY) + b"\0")


def tail_of(name: str, **fields: Any) -> tuple[bytes, bytes]:
    value = encode(name, {**BODY, **fields})
    return value[:-1], value[-1:]


def test_encodings_that_fastavro_would_never_write_are_refused() -> None:
    # A union's index below zero, which Python would take from the end; a boolean of 2; a long
    # with padding. fastavro's reader takes all three.
    start, last = tail_of("leaf.selected")
    assert last == b"\0"
    for other in (b"\1\2", b"\x80\0", b"\3"):
        with pytest.raises(DecodeError):
            decode(start + other)
    start, last = tail_of("directory.entry", revoked=True)
    assert last == b"\1"
    with pytest.raises(DecodeError):
        decode(start + b"\2")


def test_an_int_of_more_than_32_bits_is_refused_both_ways() -> None:
    with pytest.raises(UsageError):
        encode("run.created", {**BODY, "key_day": 2**31})
    start, last = tail_of("run.heartbeat", interval_ms=0)
    assert last == b"\0"
    with pytest.raises(DecodeError):
        decode(start + b"\x80\x80\x80\x80\x20")


def test_an_unknown_fingerprint_is_told_from_bad_bytes() -> None:
    value = encode("run.created", BODY)
    with pytest.raises(UnknownSchema):
        decode(value[:2] + bytes(8) + value[10:])


def test_a_refusal_never_holds_content() -> None:
    value = encode("run.created", {**BODY, "frame": b"SECRET" * 9, "provider": "SECRET"})
    for damaged in (value[:-3], value + b"SECRET", value.replace(b"\x0cSECRET", b"\xffSECRET", 1)):
        with pytest.raises(DecodeError) as raised:
            decode(damaged)
        assert "SECRET" not in str(raised.value)
    with pytest.raises(UsageError) as refused:
        encode("run.created", {**BODY, "seq": "SECRET"})
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"org": "a/b"}, "org"),
        ({"user": "two words"}, "user"),
        ({"parent_run": "é"}, "parent_run"),
        ({"no_such": 1}, "no_such"),
        ({"frame": "text"}, "does not fit"),
        ({"seq": 2**63}, "does not fit"),
        ({"event_id": bytes(15)}, "does not fit"),
        ({"provider": 7}, "does not fit"),
        ({"versions": ["x"]}, "does not fit"),
        ({"time_basis": "guess"}, "does not fit"),
    ],
)
def test_a_body_that_does_not_fit_is_the_callers_mistake(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        encode("run.created", {**BODY, **change})


@pytest.mark.parametrize("missing", ["org", "event_id", "occurred_at_us"])
def test_identity_must_be_given(missing: str) -> None:
    with pytest.raises(UsageError, match=missing):
        encode("run.created", {name: value for name, value in BODY.items() if name != missing})


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(("cost_nano_usd", value) for value in (-1, 10**15 + 1, 2**63 - 1, -(2**63))),
        *(("output_text", value) for value in (-1, 2**40 + 1)),
        *(("tool_use", value) for value in (-1, 2**40 + 1)),
        *(("sign", value) for value in (-2, 2)),
        *(("writer_epoch", value) for value in (-1, 2**31 + 1, 2**63 - 1)),
    ],
)
def test_a_number_out_of_bounds_is_refused_and_its_field_named(name: str, wrong: int) -> None:
    whose, when = {"org": "o", "run": "r"}, {"event_id": b"e" * 16, "occurred_at_us": 1}
    for type_ in ("usage.recorded", "usage.corrected"):
        with pytest.raises(UsageError, match=f"^{name} must be"):
            encode(type_, whose | when | {name: wrong})
        with pytest.raises(UsageError, match=f"^{name} must be"):
            Encoder(type_, whose | {name: wrong}).encode(when)


def test_numbers_at_their_bounds_are_written() -> None:
    body = {"org": "o", "run": "r", "event_id": b"e" * 16, "occurred_at_us": 1}
    for at in (0, 1):
        edge = {name: bounds[at] for name, bounds in BOUNDS.items()}
        read = decode(encode("usage.corrected", body | edge)).body
        assert {name: read[name] for name in edge} == edge


def test_a_value_outside_its_shape_is_written_as_other() -> None:
    body = {**BODY, "model": "my secret model", "versions": {"prompt": "a b", "c d": "1"}}
    read = decode(encode("run.created", body)).body
    assert read["model"] == "other"
    assert read["versions"] == {"prompt": "other", "other": "1"}


def test_an_object_reference_longer_than_a_value_is_kept() -> None:
    ref = "s3://turnlog-content/org/" + "o" * 64 + "/packs/2026-11-30/" + "p" * 60
    read = decode(encode("pack.added", {**BODY, "object": ref, "replaces": [ref]})).body
    assert (read["object"], read["replaces"]) == (ref, [ref])
    with pytest.raises(UsageError, match="object"):
        encode("pack.added", {**BODY, "object": "s3://a b"})


def test_a_record_over_the_limit_is_refused() -> None:
    room = MAX_RECORD_BYTES - len(encode("chunk.batch", BODY)) - 2
    assert len(encode("chunk.batch", {**BODY, "frame": bytes(room)})) == MAX_RECORD_BYTES
    with pytest.raises(TooLarge, match="950001"):
        encode("chunk.batch", {**BODY, "frame": bytes(room + 1)})


def test_an_earlier_version_is_read_into_the_present_one(monkeypatch: pytest.MonkeyPatch) -> None:
    present = TYPES["run.created"]
    lines = present.text.splitlines()
    wanted = ('"name": "streaming"', '"name": "parent_run"')
    kept = [line for line in lines if not any(name in line for name in wanted)]
    added = ', {"name": "gone", "type": "string", "default": "", "doc": "Removed since."}'
    last = max(i for i, line in enumerate(kept) if line.startswith("    {"))
    kept[last] = kept[last].rstrip(",") + added
    old = read_type("\n".join(kept))
    monkeypatch.setattr(schema, "_past", lambda: {old.fingerprint: old})
    body = complete(old, {**BODY, "provider": "openai", "gone": "x"})
    value = encode_as_is(old, body)
    read = decode(value)
    assert read.type == "run.created"
    assert read.body == complete(present, {**BODY, "provider": "openai"})
