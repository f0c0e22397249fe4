"""Bearer tokens of people, from the one OpenID Connect issuer that the config names.

A token is good if the issuer's key signed it with an algorithm of the list below, it is for our
audience, its time has come and is not over, and it names an org and a role. What its head says
about where keys are (`jku`, `x5u`, `jwk`, `x5c`) is never followed: such a token is refused.
"""

import logging
from collections.abc import Mapping
from typing import Any

from joserfc import jwt
from joserfc.errors import JoseError, UnsupportedAlgorithmError
from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from serve.doors.jwks import Jwks
from serve.doors.route import Caller, Role
from turnlog.config import Config
from turnlog.errors import UsageError
from turnlog.ids import is_id, shaped

logger = logging.getLogger(__name__)

ALGORITHMS = ("RS256", "ES256", "EdDSA", "Ed25519")
LEEWAY_S = 60

_NEVER_FOLLOWED = frozenset(("jku", "x5u", "jwk", "x5c", "crit"))
_TYPES = frozenset(("", "jwt", "at+jwt"))
_ROLES = frozenset(Role)

Key = RSAKey | ECKey | OKPKey


class UnknownKid(JoseError):
    """None of the keys at hand has the id that a token names."""


class Oidc:
    """Reads tokens of one issuer.

    Args:
        config: names issuer, audience and the claims for org and role.
        jwks: the issuer's keys.
    """

    def __init__(self, config: Config, jwks: Jwks) -> None:
        self._org_claim = config.oidc_org_claim
        self._role_claim = config.oidc_role_claim
        self._jwks = jwks
        self._registry = _Registry(algorithms=ALGORITHMS)
        self._claims = jwt.JWTClaimsRegistry(
            leeway=LEEWAY_S,
            iss={"essential": True, "value": config.oidc_issuer},
            aud={"essential": True, "value": config.oidc_audience},
            exp={"essential": True},
            sub={"essential": True},
        )

    async def caller(self, token: str) -> Caller | None:
        """Return whom a token is of; None for one that is not good.

        Raises:
            Problem: 503 while the issuer's keys are not known.
        """
        try:
            return self._read(token, await self._jwks.keys())
        except UnknownKid:
            pass
        except (JoseError, ValueError, TypeError) as error:
            logger.info("a token was refused: %s", type(error).__name__)
            return None
        try:
            # The issuer may have begun to sign with a new key.
            return self._read(token, await self._jwks.newer())
        except (JoseError, ValueError, TypeError) as error:
            logger.info("a token was refused: %s", type(error).__name__)
            return None

    def _read(self, token: str, keys: KeySet) -> Caller | None:
        read = jwt.decode(
            token, lambda signed: _key(keys, signed.headers()), registry=self._registry
        )
        self._claims.validate(read.claims)
        return self._named(read.claims)

    def _named(self, claims: Mapping[str, Any]) -> Caller | None:
        org, given = claims.get(self._org_claim), claims.get(self._role_claim)
        named = given if isinstance(given, list) else [given]
        roles = [role for role in named if role in _ROLES]
        if not isinstance(org, str) or not is_id(org) or len(roles) != 1:
            return None
        return Caller(org, "", Role(roles[0]), shaped(claims["sub"]))

    async def close(self) -> None:
        """Let go of the connection to the issuer."""
        await self._jwks.close()


class _Registry(JWSRegistry):
    def get_alg(self, name: str) -> Any:
        """Return an algorithm of our list; EdDSA too, for which the library warns each time."""
        if name not in ALGORITHMS:
            raise UnsupportedAlgorithmError("an algorithm that is not on the list")
        return self.algorithms[name]


def _key(keys: KeySet, head: Mapping[str, Any]) -> Key:
    """Return the key that a token's head names.

    Raises:
        UnknownKid: there is none.
        ValueError: the head asks for what is never done.
    """
    kind = head.get("typ", "")
    if _NEVER_FOLLOWED & head.keys() or not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise ValueError("a head that is not taken")
    kid, held = head.get("kid"), list(keys)
    if kid is None and len(held) != 1:
        raise ValueError("a head that names no key")
    for key in held:
        if kid in (None, key.kid) and isinstance(key, RSAKey | ECKey | OKPKey):
            return key
    raise UnknownKid


def oidc_of(config: Config) -> Oidc | None:
    """Return what reads the tokens of the config's issuer, None where it names none.

    Raises:
        UsageError: a part of the settings is missing or cannot be used; the message names it.
    """
    named = {"oidc_issuer": config.oidc_issuer, "oidc_audience": config.oidc_audience}
    named["oidc_jwks"] = config.oidc_jwks
    if not any(named.values()):
        return None
    for field, value in named.items():
        if not value:
            raise UsageError(f"config field {field}: it goes with the other oidc settings")
    return Oidc(config, Jwks(config.oidc_jwks))
