"""An issuer's keys: a JSON Web Key Set from one fixed address or file, kept for a while."""

import asyncio
import logging
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
from aiohttp import ClientError, ClientSession, ClientTimeout
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from serve.doors.problem import Problem
from turnlog.errors import TurnlogError, Unavailable, UsageError

logger = logging.getLogger(__name__)

KEEP_S = 600.0
"""A key that the issuer took out of the set is good so much longer."""

COOL_DOWN_S = 10.0
"""Tokens with made-up key ids make us ask the issuer so often at most."""

_ANSWER_S = 5.0
_MAX_BYTES = 256 << 10
_LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))
_ASYMMETRIC = frozenset(("RSA", "EC", "OKP"))


class Jwks:
    """Keys of one issuer.

    Args:
        place: http(s) address, http on loopback alone; or a file.
        cool_down_s: between two readings.

    Raises:
        UsageError: it is neither.
    """

    def __init__(self, place: str, cool_down_s: float = COOL_DOWN_S) -> None:
        self._place = place
        self._cool_down_s = cool_down_s
        self._is_file = _require_place(place)
        self._session: ClientSession | None = None
        self._lock = asyncio.Lock()
        self._keys: KeySet | None = None
        self._read_at_s = 0.0
        self._tried_at_s = -cool_down_s

    async def keys(self) -> KeySet:
        """Return the keys, at most 10 minutes old while the issuer answers.

        Raises:
            Problem: 503, they were never read.
        """
        if self._keys is None or time.monotonic() - self._read_at_s > KEEP_S:
            return await self.newer()
        return self._keys

    async def newer(self) -> KeySet:
        """Read the keys again, unless that was just tried; return what is known.

        Raises:
            Problem: 503, they were never read.
        """
        async with self._lock:
            if time.monotonic() - self._tried_at_s > self._cool_down_s:
                self._tried_at_s = time.monotonic()
                await self._renew()
        if self._keys is None:
            detail = "the keys of the identity provider are not known"
            raise Problem(503, "identity_provider", detail, headers=_SOON)
        return self._keys

    async def _renew(self) -> None:
        try:
            self._keys = _key_set(await self._read())
            self._read_at_s = time.monotonic()
        except TurnlogError as error:
            logger.warning("the keys of the identity provider were not read: %s", error)

    async def _read(self) -> bytes:
        return await (self._from_file() if self._is_file else self._from_issuer())

    async def _from_file(self) -> bytes:
        try:
            return await asyncio.to_thread(Path(self._place).read_bytes)
        except OSError as error:
            raise Unavailable(f"{self._place}: {error.strerror}") from None

    async def _from_issuer(self) -> bytes:
        if self._session is None:
            self._session = ClientSession(timeout=ClientTimeout(total=_ANSWER_S))
        try:
            async with self._session.get(self._place, allow_redirects=False) as answer:
                data = await answer.content.read(_MAX_BYTES + 1)
                while len(data) <= _MAX_BYTES and (more := await answer.content.readany()):
                    data += more
        except (ClientError, TimeoutError) as error:
            raise Unavailable(f"it does not answer: {type(error).__name__}") from None
        if answer.status != 200 or len(data) > _MAX_BYTES:
            raise Unavailable(f"status {answer.status}, {len(data)} bytes")
        return data

    async def close(self) -> None:
        """Let go of the connection."""
        if self._session is not None:
            await self._session.close()


_SOON = {"Retry-After": "10"}


def _require_place(place: str) -> bool:
    """Tell whether it is a file."""
    parts = urlsplit(place)
    if not parts.scheme:
        return True
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        return False
    raise UsageError("config field oidc_jwks: an https address, or a file")


def _key_set(data: bytes) -> KeySet:
    """Return the keys of a set that can verify signatures; a symmetric one is left out.

    Raises:
        Unavailable: it is no key set, or has no such key.
    """
    try:
        found: Any = orjson.loads(data)
        usable = [key for key in found["keys"] if _is_usable(key)]
        return KeySet.import_key_set({"keys": usable})
    except (JoseError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise Unavailable(f"no JSON Web Key Set: {type(error).__name__}") from None


def _is_usable(key: dict[str, Any]) -> bool:
    return key.get("kty") in _ASYMMETRIC and key.get("use", "sig") == "sig"
