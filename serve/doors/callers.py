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
            Problem: 401, one answer for every credential that is not good: missing, malformed,
                unknown, revoked, expired; 503 while the keys are not known yet.
        """
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN_BYTES:
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
    return Problem(
        401,
        "unauthorized",
        "a bearer token is needed: an API key, or a token of the identity provider",
        headers={"WWW-Authenticate": 'Bearer realm="turnlog"'},
    )
