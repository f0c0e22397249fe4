"""The fast encoder: the same bytes and the same refusals as fastavro's way."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.turnlog.events.bodies import INTS, LONGS, bodies, many, per_type
from turnlog.errors import TooLarge, UsageError
from turnlog.events import TYPES, Encoder, encode, record
from turnlog.events.pack import varint
from turnlog.events.schema import COMMON

VARYING = {field.name for field in COMMON[3:10]}
BODY = {"event_id": bytes(16), "occurred_at_us": 1_764_500_000_000_000}


@pytest.mark.parametrize("name", TYPES)
@per_type
@given(st.data())
def test_records_are_those_of_the_slow_way(name: str, data: st.DataObject) -> None:
    kind = TYPES[name]
    body = data.draw(bodies(kind))
    common = {field.name for field in COMMON}
    free = {name for name in body if name not in common and data.draw(st.booleans())} | VARYING
    constants = {name: value for name, value in body.items() if name not in free}
    varying = {name: value for name, value in body.items() if name in free}
    encoder = Encoder(kind.name, constants)
    assert encoder.encode(varying) == encode(kind.name, body)
    assert encoder.record(varying) == record(kind.name, body)


def test_an_encoder_is_used_again_and_again() -> None:
    encoder = Encoder("chunk.batch", {"org": "o", "run": "r", "writer_epoch": 1})
    for seq in range(300):
        varying = {**BODY, "seq": seq, "chars": seq * 1_000, "frame": bytes(seq)}
        same = {"org": "o", "run": "r", "writer_epoch": 1, **varying}
        assert encoder.encode(varying) == encode("chunk.batch", same)


def test_values_outside_their_shape_are_other_in_both_ways() -> None:
    constants = {"org": "o", "run": "r", "model": "two words", "traceparent": "no trace"}
    varying = {**BODY, "finish_reason": "a b", "provider": "é"}
    made = Encoder("run.completed", constants).record(varying)
    assert made == record("run.completed", {**constants, **varying})
    assert b"two words" not in made.value


@pytest.mark.parametrize(
    ("constants", "said"),
    [
        ({"run": "r"}, "org"),
        ({"org": "o"}, "a conversation or a run"),
        ({"org": "a/b", "run": "r"}, "org"),
        ({"org": "o", "run": "r", "seq": 1}, "seq is no constant"),
        ({"org": "o", "run": "r", "no_such": 1}, "no_such"),
        ({"org": "o", "run": "r", "key_day": "1"}, "does not fit"),
        ({"org": "o", "run": "r", "key_tree": bytes(3)}, "does not fit"),
        ({"org": "o", "run": "r", "chunks": 2**40}, "does not fit"),
    ],
)
def test_constants_that_do_not_fit_are_refused(constants: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Encoder("chunk.batch", constants)


@pytest.mark.parametrize(
    "change",
    [
        {"project": "p"},
        {"char_offset": 5},
        {"no_such": 1},
        {"event_id": bytes(15)},
        {"seq": 2**63},
        {"seq": "1"},
        {"chunks": 2**31},
        {"frame": "text"},
        {"chars": None},
    ],
)
def test_fields_that_do_not_fit_are_refused(change: dict[str, Any]) -> None:
    encoder = Encoder("chunk.batch", {"org": "o", "run": "r", "char_offset": 0})
    with pytest.raises(UsageError):
        encoder.encode({**BODY, **change})


def test_a_missing_field_is_refused() -> None:
    with pytest.raises(UsageError):
        Encoder("chunk.batch", {"org": "o", "run": "r"}).encode({"event_id": bytes(16)})


def test_a_record_over_the_limit_is_refused() -> None:
    with pytest.raises(TooLarge):
        Encoder("chunk.batch", {"org": "o", "run": "r"}).encode({**BODY, "frame": bytes(950_000)})


@many
@given(LONGS | INTS)
def test_a_varint_is_the_specified_zigzag(value: int) -> None:
    rest, expected = (value << 1) ^ (value >> 63), bytearray()
    while rest > 0x7F:
        expected.append(rest & 0x7F | 0x80)
        rest >>= 7
    assert varint(value) == bytes([*expected, rest])


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**80])
def test_a_varint_has_64_bits(value: int) -> None:
    with pytest.raises(OverflowError):
        varint(value)
