"""Identifiers: their form, how they are made, and the identity of an event.

Everything here is pure. `LP(x)` is a two-byte big-endian length and the UTF-8 bytes of x.
"""

import base64
import hmac
import re
from hashlib import sha256

import uuid_utils

from turnlog.errors import UsageError

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
SHAPE = re.compile(r"[A-Za-z0-9._:/@+-]{1,128}")
"""What a content-free value may look like (DESIGN.md law 5); `fullmatch` it."""

_EVENT_LABEL = b"turnlog/event/v1\0"
_DIGITS = "0123456789abcdefghijklmnopqrstuv"
_PAIRS = [high + low for high in _DIGITS for low in _DIGITS]
_LENGTHS = [length.to_bytes(2) for length in range(256)]
# Version 8 and variant 10 of RFC 9562 in place of the bits of a byte; the rest is the digest's.
_VERSION_8 = [bytes((0x80 | byte & 0x0F,)) for byte in range(256)]
_VARIANT = [bytes((0x80 | byte & 0x3F,)) for byte in range(256)]


def is_id(value: str) -> bool:
    """Say whether a value is an id: 1 to 64 of `A-Z a-z 0-9 _ -`."""
    return _ID.fullmatch(value) is not None


def require_id(value: str, what: str) -> str:
    """Return the value if it is an id.

    Raises:
        UsageError: it is not; the message names the field and not the value.
    """
    if not is_id(value):
        raise UsageError(f"{what} is not an id: 1 to 64 characters of A-Z a-z 0-9 _ -")
    return value


def shaped(value: str) -> str:
    """Return the value, or "other" where it is outside SHAPE. The empty value stays empty."""
    return value if not value or SHAPE.fullmatch(value) else "other"


def client_id(value: str, id_key: bytes, kind: str) -> str:
    """Return the id under which a client's own value is stored.

    Args:
        value: What the client brought. An id is taken as it is.
        id_key: The org's id key, 32 bytes.
        kind: What is named: "user", "conversation", "run", "turn", ... The same value of two kinds
            gives two ids.

    Returns:
        The value itself, or `x_` and 26 characters of base32 over HMAC-SHA-256, which nobody
        without the id key can connect with the value.
    """
    if is_id(value):
        return value
    mac = hmac.digest(id_key, kind.encode() + b"\0" + value.encode(), "sha256")[:16]
    return "x_" + base64.b32encode(mac).decode().rstrip("=").lower()


def uuid7() -> bytes:
    """Return a new UUIDv7 (RFC 9562), 16 bytes; within a process each sorts after the last."""
    return uuid_utils.uuid7().bytes


def new_id(prefix: str) -> str:
    """Return prefix, `_` and 26 characters of a new UUIDv7; ids sort in the order they were made.

    The alphabet is base32hex (RFC 4648 section 7), because plain base32 does not keep the order.
    Written two characters at a time: `base64` does it in Python and takes four times as long.
    """
    number = int.from_bytes(uuid7()) << 2
    pairs = [_PAIRS[number >> shift & 0x3FF] for shift in range(120, -1, -10)]
    return f"{prefix}_{''.join(pairs)}"


def _lp(value: str) -> bytes:
    raw = value.encode()
    if len(raw) < len(_LENGTHS):
        return _LENGTHS[len(raw)] + raw
    if len(raw) > 0xFFFF:
        raise UsageError("a part of an event's identity is longer than 65,535 bytes")
    return len(raw).to_bytes(2) + raw


def event_id(org: str, subject: str, type: str, natural_id: str) -> bytes:
    """Return the identity of an event: a UUIDv8 (RFC 9562) of 16 bytes, the same on every retry.

    Args:
        org: Organisation.
        subject: Run, or conversation for an event of the conversation itself.
        type: Event type, such as "run.created".
        natural_id: What makes the event one of its kind, such as `{writer epoch}/{seq}`.

    Raises:
        UsageError: a part is longer than 65,535 bytes.
    """
    return event_id_under(event_prefix(org, subject, type), natural_id)


def event_prefix(org: str, subject: str, type: str) -> bytes:
    """Return what the identities of one subject's events of one type have in common.

    Raises:
        UsageError: a part is longer than 65,535 bytes.
    """
    return _EVENT_LABEL + _lp(org) + _lp(subject) + _lp(type)


def event_id_under(prefix: bytes, natural_id: str) -> bytes:
    """Return the identity of an event, see `event_id`, from its `event_prefix`.

    Raises:
        UsageError: the natural id is longer than 65,535 bytes.
    """
    raw = sha256(prefix + _lp(natural_id)).digest()
    return raw[:6] + _VERSION_8[raw[6]] + raw[7:8] + _VARIANT[raw[8]] + raw[9:16]


def uuid_text(raw: bytes) -> str:
    """Return 16 bytes as the text of a UUID."""
    h = raw.hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def stream_key(org: str, conversation: str, run: str) -> bytes:
    """Return the Kafka key `{org}/{conversation}`, or `{org}/{run}` outside a conversation."""
    return f"{org}/{conversation or run}".encode()
