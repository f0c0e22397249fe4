"""Ids and the identity of events."""

import base64
import hashlib
import hmac
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnlog import ids
from turnlog.errors import UsageError


@pytest.mark.parametrize("value", ["a", "A-b_9", "x" * 64])
def test_ids_are_taken(value: str) -> None:
    assert ids.is_id(value)
    assert ids.require_id(value, "run") == value
    assert ids.client_id(value, b"k" * 32, "run") == value


@pytest.mark.parametrize("value", ["", "x" * 65, "a b", "a/b", "é", "a\n", "a.b"])
def test_other_values_are_no_ids(value: str) -> None:
    assert not ids.is_id(value)
    with pytest.raises(UsageError, match="run is not an id") as raised:
        ids.require_id(value, "run")
    assert not value or value not in str(raised.value)


def test_a_clients_own_value_becomes_an_id_that_only_the_id_key_links() -> None:
    key = bytes(range(32))
    mac = hmac.new(key, b"user\0alice@example.com", hashlib.sha256).digest()[:16]
    expected = "x_" + base64.b32encode(mac).decode().lower().rstrip("=")
    made = ids.client_id("alice@example.com", key, "user")
    assert made == expected
    assert ids.is_id(made)
    assert ids.client_id("alice@example.com", key, "run") != made
    assert ids.client_id("alice@example.com", bytes(32), "user") != made


def test_new_ids_sort_in_the_order_they_were_made() -> None:
    made = [ids.new_id("run") for _ in range(2_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert all(ids.is_id(one) and len(one) == 30 for one in made)


def test_uuid7_is_one() -> None:
    made = uuid.UUID(bytes=ids.uuid7())
    assert (made.version, made.variant) == (7, uuid.RFC_4122)


def test_event_id_is_the_specified_hash() -> None:
    text = (
        b"turnlog/event/v1\0"
        + b"\0\x05local"
        + b"\0\x05run_1"
        + b"\0\x0brun.created"
        + b"\0\x031/0"
    )
    raw = bytearray(hashlib.sha256(text).digest()[:16])
    raw[6] = raw[6] & 0x0F | 0x80
    raw[8] = raw[8] & 0x3F | 0x80
    made = ids.event_id("local", "run_1", "run.created", "1/0")
    assert made == bytes(raw)
    assert made.hex() == "a5b051f755f2804391050ee7e1f24fe5"


@settings(deadline=None)
@given(st.text(), st.text(), st.text(), st.text())
def test_event_id_is_a_uuid8(org: str, subject: str, kind: str, natural: str) -> None:
    made = uuid.UUID(bytes=ids.event_id(org, subject, kind, natural))
    assert (made.version, made.variant) == (8, uuid.RFC_4122)


def test_event_id_keeps_its_parts_apart() -> None:
    assert ids.event_id("a", "bc", "t", "n") != ids.event_id("ab", "c", "t", "n")


def test_event_id_refuses_a_part_that_its_length_cannot_hold() -> None:
    with pytest.raises(UsageError, match="65,535"):
        ids.event_id("a", "b", "t", "n" * 65_536)


def test_stream_key_prefers_the_conversation() -> None:
    assert ids.stream_key("o", "c", "r") == b"o/c"
    assert ids.stream_key("o", "", "r") == b"o/r"


@pytest.mark.parametrize(
    "value", ["", "gpt-4o", "s3://b/k", "a" * 128, "2026-11-30T12:00:00+01:00"]
)
def test_shaped_values_stay(value: str) -> None:
    assert ids.shaped(value) == value


@pytest.mark.parametrize("value", ["two words", "a" * 129, "é", "a\n", "{}"])
def test_unshaped_values_become_other(value: str) -> None:
    assert ids.shaped(value) == "other"


def test_uuid_text_is_that_of_the_standard_library() -> None:
    raw = ids.uuid7()
    assert ids.uuid_text(raw) == str(uuid.UUID(bytes=raw))
