"""What a call at the keeper's door says: each part is checked, and named where it is wrong."""

from collections.abc import Mapping
from typing import Any

from turnlog.apikeys import ApiKey, Role, is_key_id
from turnlog.errors import UsageError
from turnlog.ids import require_id

_HEX = frozenset("0123456789abcdef")


def text(body: Mapping[str, Any], name: str) -> str:
    """Return a part that is text.

    Raises:
        UsageError: it is not there or is none.
    """
    value = body.get(name)
    if not isinstance(value, str):
        raise UsageError(f"{name} is missing or not a string")
    return value


def sha256_of(body: Mapping[str, Any], what: str) -> str:
    """Return the digest of what a call describes.

    Raises:
        UsageError: it is none.
    """
    digest = text(body, "sha256")
    if len(digest) != 64 or set(digest) - _HEX:
        raise UsageError(f"{what} needs a SHA-256 in hex")
    return digest


def read_key(body: Mapping[str, Any]) -> ApiKey:
    """Return the key that a call describes.

    Raises:
        UsageError: a part is missing or is not what it should be; the message names it.
    """
    sha256, role = sha256_of(body, "a key's sha256"), text(body, "role")
    if role not in frozenset(Role):
        raise UsageError(f"role is none of {', '.join(Role)}")
    expires_at_us = body.get("expires_at_us", 0)
    if not isinstance(expires_at_us, int) or not 0 <= expires_at_us < 1 << 62:
        raise UsageError("expires_at_us is no number of microseconds")
    project = require_id(text(body, "project"), "project")
    return ApiKey(read_id(body), sha256, project, Role(role), expires_at_us)


def read_id(body: Mapping[str, Any]) -> str:
    """Return the key id that a call names.

    Raises:
        UsageError: it is none.
    """
    id = text(body, "id")
    if not is_key_id(id):
        raise UsageError("id is no API key's id: 12 characters of A-Z a-z 0-9")
    return id
