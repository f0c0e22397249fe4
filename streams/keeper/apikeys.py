"""API keys in `turnlog.directory`: what is written to set one, and to revoke it."""

from typing import Any

from streams.keeper.directory import Directory, entry, revocation
from turnlog.apikeys import KIND, ApiKey
from turnlog.errors import NotFound, UsageError


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
