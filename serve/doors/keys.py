"""The API keys that `turnlog.directory` holds, as this process knows them."""

import hmac
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from serve.doors.problem import Problem
from serve.doors.route import Caller
from turnlog.apikeys import KIND, ApiKey, Role, key_digest, key_id
from turnlog.errors import DecodeError
from turnlog.events import decode

logger = logging.getLogger(__name__)

_NOBODY = "0" * 64


class OrgKey(NamedTuple):
    """A key and the org that it is of."""

    org: str
    key: ApiKey


class KeyBook:
    """Keys by id, as a reading of the directory from its beginning gives them."""

    def __init__(self) -> None:
        self._keys: dict[str, OrgKey] = {}

    def take(self, value: bytes | None) -> None:
        """Take in one record; what is not a key's entry is passed over."""
        try:
            body = decode(value or b"").body
        except DecodeError:
            return
        if body.get("kind") != KIND:
            return
        held = self._keys.get(body["id"])
        if held is not None and held.org != body["org"]:
            # Ids are random: whoever wrote this meant to take over another org's key.
            logger.error("API key %s is claimed by a second org: passed over", body["id"])
        elif body["revoked"]:
            self._keys.pop(body["id"], None)
        else:
            self._set(body)

    def _set(self, body: Mapping[str, Any]) -> None:
        try:
            key = api_key(body["id"], body["value"])
        except (KeyError, ValueError):
            logger.error("API key %s has an entry that cannot be read", body["id"])
            return
        self._keys[body["id"]] = OrgKey(body["org"], key)

    def of_org(self, org: str) -> list[ApiKey]:
        """Return the keys of an org that stand, by id."""
        return [held.key for _, held in sorted(self._keys.items()) if held.org == org]

    def find(self, token: str, now_us: int) -> Caller | None:
        """Return whose key this is; None for one that is unknown or expired.

        Digests are compared in constant time, and one is compared whether the id is known or not.
        """
        held = self._keys.get(key_id(token))
        known = held.key.sha256 if held else _NOBODY
        same = hmac.compare_digest(key_digest(token), known)
        if not same or held is None or 0 < held.key.expires_at_us <= now_us:
            return None
        return Caller(held.org, held.key.project, held.key.role, held.key.id)


def api_key(id: str, value: Mapping[str, str]) -> ApiKey:
    """Return a key from its entry's value.

    Raises:
        KeyError: a part is missing.
        ValueError: a part is not what it should be.
    """
    expires_at_us = int(value.get("expires_at_us", "0"))
    return ApiKey(id, value["sha256"], value["project"], Role(value["role"]), expires_at_us)


class Keys:
    """The book in use; a new one takes its place when the directory had to be read anew.

    Attributes:
        book: None until the directory was read to its end for the first time.
    """

    def __init__(self, book: KeyBook | None = None) -> None:
        self.book = book

    def find(self, token: str, now_us: int) -> Caller | None:
        """Return whose key this is.

        Raises:
            Problem: 503 while the keys are not known yet.
        """
        if self.book is None:
            raise Problem(
                503, "not_ready", "API keys are not known yet", headers={"Retry-After": "2"}
            )
        return self.book.find(token, now_us)
