"""API keys in `turnlog.directory`: what is written to set one, and to revoke it."""

from collections.abc import Mapping
from typing import Any

from streams.keeper.directory import Directory, entry, revocation
from turnlog.apikeys import KIND, ApiKey, Role, is_key_id
from turnlog.errors import NotFound, UsageError
from turnlog.ids import require_id

_HEX = frozenset("0123456789abcdef")


def setting(directory: Directory, org: str, key: ApiKey) -> list[dict[str, Any]]:
    """Return the entries that set a key, none where it stands already.

    Raises:
        NotFound: there is no such org, or no such project in it.
        UsageError: the id is taken.
    """
    if not directory.has(org, "org", org):
        raise NotFound(f"there is no org {org}: `turnlog org create {org}` makes it")
    if not directory.has(org, "project", key.project):
        raise NotFound(
            f"org {org} has no project {key.project}:"
            f" `turnlog org create {org} --project {key.project}` makes it"
        )
    value = _value(key)
    standing = directory.value_of(org, KIND, key.id)
    if standing is not None and dict(standing) != value:
        raise UsageError(f"API key {key.id} is there already, and is another")
    return [] if standing is not None else [entry(org, KIND, key.id, value)]


def revoking(directory: Directory, org: str, id: str) -> list[dict[str, Any]]:
    """Return the entries that revoke a key.

    Raises:
        NotFound: the org has no such key, or it was revoked before.
    """
    if not directory.has(org, KIND, id):
        raise NotFound(f"org {org} has no API key {id}")
    return [revocation(org, KIND, id)]


def _value(key: ApiKey) -> dict[str, str]:
    value = {"sha256": key.sha256, "project": key.project, "role": str(key.role)}
    return {**value, "expires_at_us": str(key.expires_at_us)} if key.expires_at_us else value


def read_key(body: Mapping[str, Any]) -> ApiKey:
    """Return the key that a call describes.

    Raises:
        UsageError: a part is missing or is not what it should be; the message names it.
    """
    sha256, role = str(body.get("sha256")), str(body.get("role"))
    if len(sha256) != 64 or set(sha256) - _HEX:
        raise UsageError("sha256 is not a SHA-256 in hex")
    if role not in frozenset(Role):
        raise UsageError(f"role is none of {', '.join(Role)}")
    expires_at_us = body.get("expires_at_us", 0)
    if not isinstance(expires_at_us, int) or not 0 <= expires_at_us < 1 << 62:
        raise UsageError("expires_at_us is no number of microseconds")
    project = require_id(str(body.get("project")), "project")
    return ApiKey(read_id(body), sha256, project, Role(role), expires_at_us)


def read_id(body: Mapping[str, Any]) -> str:
    """Return the key id that a call names.

    Raises:
        UsageError: it is none.
    """
    id = str(body.get("id"))
    if not is_key_id(id):
        raise UsageError("id is no API key's id: 12 characters of A-Z a-z 0-9")
    return id
