"""API keys: their form, what is stored of one, and the roles that it may carry.

`tlk_{id}_{secret}_{check}`: 12 characters of base62 that may be logged, 43 that may not (256 bits),
and 6 that are the CRC-32 of what stands before them. The prefix and the check let a scanner of
leaked secrets know a key without asking anyone (GitHub's token format of 2021).
"""

import hashlib
import re
import secrets
import string
import zlib
from enum import StrEnum
from typing import NamedTuple

PREFIX = "tlk"
KIND = "apikey"
"""The kind of its entry in `turnlog.directory`."""

_DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_FORM = re.compile(rf"({PREFIX}_([0-9A-Za-z]{{12}})_[0-9A-Za-z]{{43}})_([0-9A-Za-z]{{6}})")
_ID = re.compile(r"[0-9A-Za-z]{12}")


class Role(StrEnum):
    """What a caller may be in its org."""

    PRODUCER = "producer"
    VIEWER = "viewer"
    EDITOR = "editor"
    AUDITOR = "auditor"
    ADMIN = "admin"


class ApiKey(NamedTuple):
    """What the directory holds of a key: everything but the key.

    Attributes:
        id: its public part.
        sha256: of the whole key, hex. It is random, so a slow hash would add nothing but a way to
            keep the server busy.
        project: that it is bound to.
        role: what it may do.
        expires_at_us: UTC microseconds; 0: never.
    """

    id: str
    sha256: str
    project: str
    role: Role
    expires_at_us: int = 0


def new_key() -> str:
    """Return a new key with 256 random bits."""
    head = f"{PREFIX}_{_random(12)}_{_random(43)}"
    return f"{head}_{_check(head)}"


def key_id(key: str) -> str:
    """Return the public part of a key, "" for what is none or was mistyped."""
    found = _FORM.fullmatch(key)
    return found[2] if found and _check(found[1]) == found[3] else ""


def is_key_id(value: str) -> bool:
    """Say whether a value has the form of a key's public part."""
    return _ID.fullmatch(value) is not None


def key_digest(key: str) -> str:
    """Return SHA-256 of a key in hex."""
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()


def _random(length: int) -> str:
    return "".join(secrets.choice(_DIGITS) for _ in range(length))


def _check(head: str) -> str:
    number, digits = zlib.crc32(head.encode()), ""
    for _ in range(6):
        number, digit = divmod(number, 62)
        digits = _DIGITS[digit] + digits
    return digits
