"""Who a request comes from: an API key or a bearer token of the identity provider."""

import time

from serve.doors.keys import Keys
from serve.doors.oidc import Oidc
from serve.doors.problem import Problem
from serve.doors.route import Caller
from turnlog.apikeys import PREFIX

MAX_TOKEN_BYTES = 16 << 10
"""Looked at before anything is decoded: a header of 500 MB cost a library 4 GB once."""


class Callers:
    """Finds the caller of a credential.

    Args:
        keys: the API keys that the directory holds.
        oidc: reads tokens of an identity provider; None: none is trusted.
    """

    def __init__(self, keys: Keys, oidc: Oidc | None = None) -> None:
        self.keys = keys
        self.oidc = oidc

    async def of(self, authorization: str) -> Caller:
        """Return the caller of an `Authorization` header.

        Raises:
            Problem: 401 without a credential, and one answer for every one that is not good:
                malformed, unknown, revoked, expired; 503 while the keys are not known yet.
        """
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise _unauthorized(_NEEDED)
        if len(token) > MAX_TOKEN_BYTES:
            raise unauthorized()
        if token.startswith(f"{PREFIX}_") or self.oidc is None:
            found = self.keys.find(token, time.time_ns() // 1000)
        else:
            found = await self.oidc.caller(token)
        if found is None:
            raise unauthorized()
        return found


def unauthorized() -> Problem:
    """Return the one answer to a credential that is not good."""
    return _unauthorized(_UNKNOWN)


def _unauthorized(detail: str) -> Problem:
    headers = {"WWW-Authenticate": 'Bearer realm="turnlog"'}
    return Problem(401, "unauthorized", detail, headers=headers)


_NEEDED = (
    "a bearer token is needed (Authorization: Bearer ...): an API key, or a token of the"
    " identity provider"
)
_UNKNOWN = "the bearer token is not known, or not any more: it is malformed, revoked or expired"
