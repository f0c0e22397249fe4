"""The keeper's directory: what is no entry is nobody's right, and stops nobody."""

import os
from typing import Any

import pytest

from streams.keeper.directory import Directory, entry, records
from turnlog.events import TYPES, encode
from turnlog.keeper_client import new_token, token_digest, token_id

SAMPLES: dict[str, Any] = {"string": "x", "long": 1, "int": 1, "bytes": b"x", "boolean": False}


def event_of(name: str) -> bytes:
    """Return an event of a type, each field that it needs filled in."""
    needed = [field for field in TYPES[name].fields if field.required]
    body = {f.name: SAMPLES.get(str(f.type), os.urandom(16)) for f in needed}
    return encode(name, body | {"org": "acme", "run": "r"})


def known() -> tuple[Directory, str]:
    """Return a directory with one credential, and its token."""
    directory, token = Directory(), new_token()
    value = {"sha256": token_digest(token), "role": "producer"}
    for made in records([entry("acme", "credential", token_id(token), value)], 1):
        assert directory.take(made.value)
    return directory, token


@pytest.mark.parametrize("name", sorted(TYPES.keys() - {"directory.entry"}))
def test_an_event_of_another_type_is_passed_over(name: str) -> None:
    directory, token = known()
    assert not directory.take(event_of(name))
    assert directory.org_of(token) == "acme"


@pytest.mark.parametrize("value", [None, b"", b"null", b"\xff" * 40, b"\xc3\x01" + b"\0" * 40])
def test_what_is_no_event_is_passed_over(value: bytes | None) -> None:
    directory, token = known()
    assert not directory.take(value)
    assert directory.org_of(token) == "acme"


def test_a_digest_that_is_no_ascii_lets_nobody_in() -> None:
    directory, token = known()
    (made,) = records([entry("acme", "credential", token_id(token), {"sha256": "x" * 8})], 2)
    odd = made.value.replace(b"x" * 8, "é".encode() * 4)
    assert odd != made.value
    assert directory.take(odd)
    assert directory.org_of(token) is None
