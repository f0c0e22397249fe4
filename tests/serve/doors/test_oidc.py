"""Tokens of a local issuer with real keys: which are good, and that no other is."""

import base64
import hmac
import json
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from serve.doors.callers import Callers
from serve.doors.jwks import Jwks
from serve.doors.keys import KeyBook, Keys
from serve.doors.oidc import ALGORITHMS, Oidc, oidc_of
from serve.doors.problem import Problem
from serve.doors.route import Caller, Role
from turnlog.config import Config, load
from turnlog.errors import UsageError

ISSUER, AUDIENCE = "https://issuer.test", "turnlog"
SIGNERS: dict[str, RSAKey | ECKey | OKPKey] = {
    "RS256": RSAKey.generate_key(2048, {"kid": "rsa", "use": "sig"}),
    "ES256": ECKey.generate_key("P-256", {"kid": "ec"}),
    "Ed25519": OKPKey.generate_key("Ed25519", {"kid": "okp"}),
}


class Issuer:
    """Serves a key set over HTTP on loopback, and counts how often it is asked."""

    def __init__(self) -> None:
        self.keys = KeySet(list(SIGNERS.values()))
        self.asked = 0
        self.answer: web.Response | None = None
        self.place = ""

    async def jwks(self, request: web.Request) -> web.Response:
        self.asked += 1
        return self.answer or await self.elsewhere(request)

    async def elsewhere(self, request: web.Request) -> web.Response:
        return web.json_response(self.keys.as_dict(private=False))


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    made = Issuer()
    app = web.Application()
    app.router.add_get("/jwks", made.jwks)
    app.router.add_get("/elsewhere", made.elsewhere)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.place = f"http://127.0.0.1:{runner.addresses[0][1]}/jwks"
    yield made
    await runner.cleanup()


def settings(place: str) -> Config:
    return load(oidc_issuer=ISSUER, oidc_audience=AUDIENCE, oidc_jwks=place)


@pytest.fixture
async def callers(issuer: Issuer) -> AsyncIterator[Callers]:
    oidc = Oidc(settings(issuer.place), Jwks(issuer.place, cool_down_s=0))
    yield Callers(Keys(KeyBook()), oidc)
    await oidc.close()


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    made = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "ann",
        "exp": now + 600,
        "iat": now,
        "turnlog_org": "acme",
        "turnlog_role": "viewer",
        **changes,
    }
    return {name: value for name, value in made.items() if value is not None}


def token(alg: str = "RS256", head: Mapping[str, Any] | None = None, **changes: Any) -> str:
    key = SIGNERS[alg]
    made = {"alg": alg, "kid": key.kid, **(head or {})}
    registry = JWSRegistry(algorithms=[alg], strict_check_header=False)
    return jwt.encode(made, claims(**changes), key, registry=registry)


async def found(callers: Callers, given: str) -> Caller | None:
    """Return the caller of a token, None where it is refused with 401."""
    try:
        return await callers.of(f"Bearer {given}")
    except Problem as problem:
        assert problem.status == 401
        return None


@pytest.mark.parametrize("alg", SIGNERS)
async def test_a_good_token_names_org_role_and_subject(callers: Callers, alg: str) -> None:
    assert alg in ALGORITHMS
    assert await found(callers, token(alg)) == ("acme", "", Role.VIEWER, "ann")


async def test_eddsa_by_its_old_name_is_taken(callers: Callers) -> None:
    signed = token("Ed25519").split(".")
    head = json.dumps({"alg": "EdDSA", "kid": "okp"}).encode()
    signed[0] = encoded(head)
    key = SIGNERS["Ed25519"].get_op_key("sign")
    assert isinstance(key, Ed25519PrivateKey)
    signed[2] = encoded(key.sign(f"{signed[0]}.{signed[1]}".encode()))
    assert await found(callers, ".".join(signed)) is not None


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


async def test_what_a_token_may_say_otherwise(callers: Callers) -> None:
    now = int(time.time())
    assert await found(callers, token(aud=["other", AUDIENCE]))
    assert await found(callers, token(exp=now - 30)), "within the leeway"
    assert await found(callers, token(nbf=now + 30)), "within the leeway"
    assert await found(callers, token(turnlog_role=["x", "admin"]))
    assert await found(callers, token(head={"typ": "at+jwt"}))
    other = await found(callers, token(sub="a b\nc"))
    assert other is not None and other.id == "other"


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": 1_000_000_000},
        {"exp": None},
        {"exp": "soon"},
        {"nbf": 4_000_000_000},
        {"iat": 4_000_000_000},
        {"iss": "https://evil.test"},
        {"iss": None},
        {"aud": "other"},
        {"aud": []},
        {"aud": None},
        {"sub": None},
        {"turnlog_org": None},
        {"turnlog_org": "a/b"},
        {"turnlog_org": ["acme"]},
        {"turnlog_role": "root"},
        {"turnlog_role": None},
        {"turnlog_role": ["viewer", "admin"]},
        {"turnlog_role": {}},
        {"turnlog_role": [[]]},
    ],
    ids=str,
)
async def test_a_token_with_a_wrong_claim_is_refused(
    callers: Callers, changes: dict[str, Any]
) -> None:
    assert await found(callers, token(**changes)) is None


@pytest.mark.parametrize(
    "head",
    [
        {"jku": "http://127.0.0.1:1/"},
        {"x5u": "http://127.0.0.1:1/"},
        {"x5c": ["MII="]},
        {"jwk": {"kty": "oct", "k": "AAAA"}},
        {"typ": "logout+jwt"},
        {"kid": None},
        {"kid": 7},
    ],
    ids=str,
)
async def test_a_head_that_asks_for_anything_is_refused(
    callers: Callers, issuer: Issuer, head: dict[str, Any]
) -> None:
    signed = token().split(".")
    signed[0] = encoded(json.dumps({"alg": "RS256", "kid": "rsa", **head}).encode())
    key = SIGNERS["RS256"]
    made = JWSRegistry.algorithms["RS256"].sign(f"{signed[0]}.{signed[1]}".encode(), key)
    assert await found(callers, ".".join([*signed[:2], encoded(made)])) is None


async def test_crit_is_refused(callers: Callers) -> None:
    assert await found(callers, forged({"alg": "RS256", "kid": "rsa", "crit": ["b64"]})) is None


def forged(head: dict[str, Any], signature: bytes = b"") -> str:
    body = encoded(json.dumps(claims(turnlog_role="admin")).encode())
    return f"{encoded(json.dumps(head).encode())}.{body}.{encoded(signature)}"


async def test_forged_tokens_are_refused(callers: Callers) -> None:
    public = SIGNERS["RS256"].as_pem(private=False)
    unsigned = forged({"alg": "HS256", "kid": "rsa"})
    mac = hmac.digest(public, unsigned.rstrip(".").encode(), "sha256")
    confused = unsigned + encoded(mac)
    good = token().split(".")
    for bad in (
        forged({"alg": "none"}),
        forged({"alg": "none", "kid": "rsa"}),
        forged({"alg": "RS256", "kid": "rsa"}),
        forged({"alg": "RS256", "kid": "rsa"}, b"x" * 256),
        forged({"kid": "rsa"}),
        forged({"alg": ["RS256"], "kid": "rsa"}),
        confused,
        ".".join([good[0], good[1], ""]),
        ".".join([good[0], encoded(json.dumps(claims(turnlog_role="admin")).encode()), good[2]]),
        token("ES256", {"kid": "rsa"}),
        token("RS256", {"kid": "ec"}),
        "a.b",
        "a.b.c",
        "....",
        "a.b.c.d.e",
        "\xff.\xff.\xff",
    ):
        assert await found(callers, bad) is None, bad[:60]


async def test_a_token_over_16_kib_is_refused_before_it_is_read(
    callers: Callers, issuer: Issuer
) -> None:
    assert await found(callers, token(note="x" * 20_000)) is None
    assert issuer.asked == 0


async def test_a_new_key_is_found_and_one_taken_out_is_forgotten(
    callers: Callers, issuer: Issuer
) -> None:
    assert await found(callers, token())
    fresh = RSAKey.generate_key(2048, {"kid": "fresh"})
    made = jwt.encode({"alg": "RS256", "kid": "fresh"}, claims(), fresh)
    assert await found(callers, made) is None
    issuer.keys = KeySet([fresh])
    assert await found(callers, made)
    assert await found(callers, token()) is None


async def test_made_up_key_ids_do_not_make_us_ask_again_and_again(issuer: Issuer) -> None:
    oidc = Oidc(settings(issuer.place), Jwks(issuer.place))
    callers = Callers(Keys(KeyBook()), oidc)
    for n in range(20):
        assert await found(callers, forged({"alg": "RS256", "kid": f"k{n}"})) is None
    assert issuer.asked == 1
    await oidc.close()


async def test_while_the_issuer_is_away_its_keys_go_on(callers: Callers, issuer: Issuer) -> None:
    assert await found(callers, token())
    issuer.answer = web.Response(status=500)
    assert await found(callers, forged({"alg": "RS256", "kid": "new"})) is None
    assert await found(callers, token())


@pytest.mark.parametrize(
    "answer",
    [
        web.Response(status=500),
        web.Response(status=302, headers={"Location": "/elsewhere"}),
        web.Response(body=b"{}"),
        web.Response(body=b"[1]"),
        web.Response(body=b'{"keys": [{"kty": "oct", "k": "AAAA"}]}'),
        web.Response(body=b'{"keys": [7]}'),
        web.Response(body=b"x" * 300_000),
    ],
    ids=lambda answer: str(answer.status),
)
async def test_an_issuer_without_keys_is_503_and_not_401(
    callers: Callers, issuer: Issuer, answer: web.Response
) -> None:
    issuer.answer = answer
    with pytest.raises(Problem) as refused:
        await callers.of(f"Bearer {token()}")
    assert (refused.value.status, refused.value.code) == (503, "identity_provider")
    assert refused.value.headers["Retry-After"]


async def test_keys_may_be_a_file(tmp_path: Path) -> None:
    place = tmp_path / "jwks.json"
    place.write_text(json.dumps(KeySet(list(SIGNERS.values())).as_dict(private=False)))
    oidc = oidc_of(settings(str(place)))
    assert oidc is not None
    assert await oidc.caller(token())


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"oidc_jwks": ""}, "oidc_jwks"),
        ({"oidc_issuer": ""}, "oidc_issuer"),
        ({"oidc_audience": ""}, "oidc_audience"),
        ({"oidc_jwks": "http://10.0.0.1/jwks"}, "oidc_jwks"),
        ({"oidc_jwks": "ftp://127.0.0.1/jwks"}, "oidc_jwks"),
    ],
    ids=str,
)
async def test_half_a_setting_is_named(changes: dict[str, str], field: str) -> None:
    config = settings("https://issuer.test/jwks").model_copy(update=changes)
    with pytest.raises(UsageError, match=f"config field {field}"):
        oidc_of(config)


async def test_without_settings_no_token_is_good() -> None:
    assert oidc_of(load()) is None
    assert await found(Callers(Keys(KeyBook())), token()) is None
