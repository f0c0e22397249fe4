"""Talking to the key keeper over loopback, and the credential files that open its door."""

import hashlib
import http.client
import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from turnlog.apikeys import Role, key_digest, key_id, new_key
from turnlog.config import Config
from turnlog.errors import KeyUnavailable, NotFound, Unavailable, UsageError
from turnlog.ids import require_id
from turnlog.keys.grant import Grant
from turnlog.keys.keyfile import read_secret, write_secret
from turnlog.keys.targets import Target

ANSWER_S = 30.0
"""A transaction on a busy broker took 0.1 s now and then; this is far above."""

PUNCTURE_S = 120.0
"""A thousand runs of a thousand users, 29,000 rows, took 12 s on two cores under a load of 11."""

# No org's file: ids have no dot.
ADMIN_FILE = "keeper.admin.json"
_TOKEN = "tlc"


@dataclass(frozen=True, slots=True)
class Credential:
    """What a process shows to the keeper.

    Attributes:
        orgs: the orgs that it names; none for the admin's.
        token: the secret.
    """

    orgs: tuple[str, ...]
    token: str = field(repr=False)

    @property
    def id(self) -> str:
        """The token's public part."""
        return token_id(self.token)

    @property
    def digest(self) -> str:
        """SHA-256 of the token in hex: all that is stored of it."""
        return token_digest(self.token)


def new_token() -> str:
    """Return a new token `tlc_{id}_{secret}` with 256 random bits."""
    return f"{_TOKEN}_{secrets.token_hex(8)}_{secrets.token_urlsafe(32)}"


def token_id(token: str) -> str:
    """Return the public part of a token, "" for what is none."""
    parts = token.split("_", 2)
    return parts[1] if len(parts) == 3 and parts[0] == _TOKEN else ""


def token_digest(token: str) -> str:
    """Return SHA-256 of a token in hex. It is random, so a slow hash would add nothing."""
    # A header may hold bytes that are no text; they are nobody's token and must not be an error.
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def load_credential(path: Path) -> Credential:
    """Read a credential file.

    Raises:
        UsageError: missing, readable by others, or not a credential; the message names the path.
    """
    value = read_secret(path, "credential file")
    token, orgs = value.get("token"), value.get("orgs")
    if not isinstance(token, str) or not token_id(token) or not isinstance(orgs, list):
        raise UsageError(f"credential file {path} is not one of Turnlog's")
    return Credential(tuple(map(str, orgs)), token)


def save_credential(path: Path, credential: Credential) -> None:
    """Write a credential file that only its owner may read.

    Raises:
        UsageError: it is there already or cannot be written.
    """
    write_secret(path, {"version": 1, "orgs": list(credential.orgs), "token": credential.token})


def credential_path(config: Config, org: str) -> Path:
    """Return where the credential of an org is by default."""
    return config.credentials / f"{require_id(org, 'org')}.json"


def credential_of(config: Config, org: str) -> Credential:
    """Return the default credential of an org.

    Raises:
        UsageError: there is none, or it cannot be used, or there is no stack at the home.
    """
    path = credential_path(config, org)
    config.require_home()
    if not path.exists():
        raise UsageError(f"org {org} has no credential {path}: run `turnlog org create {org}`")
    return load_credential(path)


def public_key_path(config: Config) -> Path:
    """Return where the keeper of the local stack leaves its public key for readers."""
    return config.home / "keys" / "keeper.pub"


class Created(NamedTuple):
    """What `create` found or made.

    Attributes:
        org: the org's id.
        project: the project's id.
        created: False when both were there.
        credential: file of the org's credential.
    """

    org: str
    project: str
    created: bool
    credential: Path


def create(config: Config, org: str, project: str = "default") -> Created:
    """Create an org or a project in it, and the org's credential file. A repeat changes nothing.

    Raises:
        UsageError: an id is not one, or there is no admin credential here.
        Unavailable: the keeper does not answer.
    """
    path = credential_path(config, org)
    require_id(project, "project")
    admin = _admin(config)
    held = path.exists()
    credential = load_credential(path) if held else Credential((org,), new_token())
    known = {"id": credential.id, "sha256": credential.digest}
    body = {"org": org, "project": project, "credential": known}
    answer = _post(config, "/v1/create", admin, body)
    if not held:
        _save_once(path, credential)
    return Created(org, project, bool(answer["created"]), path)


def _save_once(path: Path, credential: Credential) -> None:
    try:
        save_credential(path, credential)
    except UsageError:
        # Another `org create` of the same org was quicker; its credential is as good.
        if not path.exists():
            raise


def mint(config: Config) -> Mapping[str, Any]:
    """Have the keeper mint what is due now: `{"days": new days, "short": projects}`.

    Raises:
        UsageError: there is no admin credential here.
        Unavailable: the keeper does not answer.
    """
    return _post(config, "/v1/mint", _admin(config), {})


def puncture(
    config: Config, org: str, project: str, targets: Iterable[Target]
) -> list[dict[str, Any]]:
    """Have the keeper destroy every key under the targets; one answer a prefix.

    An answer is `{tree, prefix, generation, rows, nodes_destroyed}`: tree and prefix in hex, the
    generation of the tree's head afterwards, and the new rows and the stored nodes that are gone on
    account of this prefix. All prefixes of a tree share one transaction; a row that several of them
    need is counted once, so the numbers add up. Zeros: nothing was left to erase.

    A puncture that is repeated changes nothing, so a call whose answer was lost is made again.
    Producers keep the grants that they have until those expire, at most 24 hours later.

    Raises:
        UsageError: there is no admin credential here, or no target.
        NotFound: a target's tree is not one of the project's.
        KeyUnavailable: a target's day is not minted; nothing was written.
        Unavailable: the keeper does not answer: whether anything was written is not known.
    """
    admin = _admin(config)
    body = {"org": org, "project": project, "targets": [target.to_json() for target in targets]}
    punctures: list[dict[str, Any]] = _post(config, "/v1/puncture", admin, body, PUNCTURE_S)[
        "punctures"
    ]
    return punctures


def create_apikey(
    config: Config, org: str, project: str, role: Role, expires_at_us: int = 0
) -> str:
    """Make an API key and have the keeper write down its digest; nobody can show the key again.

    Args:
        config: where the keeper is.
        org: whose data it opens.
        project: that it is bound to.
        role: what it may do.
        expires_at_us: UTC microseconds; 0: never.

    Raises:
        UsageError: there is no admin credential here, or an id is not one.
        NotFound: there is no such org or project.
        Unavailable: the keeper does not answer: whether the key holds is not known.
    """
    key = new_key()
    named = {"org": require_id(org, "org"), "project": require_id(project, "project")}
    body = {**named, "id": key_id(key), "sha256": key_digest(key), "role": role}
    admin = _admin(config)
    _post(config, "/v1/apikeys", admin, {**body, "expires_at_us": expires_at_us})
    return key


def revoke_apikey(config: Config, org: str, id: str) -> None:
    """Have the keeper write down that an API key holds no longer.

    Raises:
        UsageError: there is no admin credential here, or the id is none.
        NotFound: the org has no such key.
        Unavailable: the keeper does not answer: whether it is revoked is not known.
    """
    admin = _admin(config)
    _post(config, "/v1/apikeys/revoke", admin, {"org": require_id(org, "org"), "id": id})


def fetch_grant(config: Config, credential: Credential) -> Grant:
    """Return a grant of what is alive of yesterday, today and tomorrow, good for 24 hours.

    Blocks for up to 30 s; in an event loop call it through `asyncio.to_thread`.

    Raises:
        UsageError: the keeper does not take the credential.
        Unavailable: the keeper does not answer.
        KeyUnavailable: it answers, but has no keys to give.
    """
    return Grant.from_json(_post(config, "/v1/grant", credential, {}))


def _admin(config: Config) -> Credential:
    config.require_home()
    return load_credential(config.credentials / ADMIN_FILE)


def _post(
    config: Config,
    path: str,
    credential: Credential,
    body: Mapping[str, Any],
    timeout_s: float = ANSWER_S,
) -> dict[str, Any]:
    address = config.need("keeper")
    parts = urlsplit(address)
    # http.client and not urllib: a proxy from the environment must never see a token.
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    headers = {"Authorization": f"Bearer {credential.token}", "Content-Type": "application/json"}
    try:
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        return _answer(response.status, response.read())
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(
            f"the key keeper at {address} does not answer ({type(error).__name__}):"
            " run `turnlog up keeper`"
        ) from None
    finally:
        connection.close()


def _answer(status: int, data: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(data)
        reason = str(answer.get("error", ""))
    except (ValueError, AttributeError):
        raise Unavailable("what answers at the key keeper's address is not the keeper") from None
    if status == 200 and isinstance(answer, dict):
        return answer
    raise _REFUSALS.get(status, Unavailable)(f"the key keeper refused: {reason}")


_REFUSALS: dict[int, type[UsageError | NotFound | KeyUnavailable]] = {
    400: UsageError,
    401: UsageError,
    404: NotFound,
    413: UsageError,
    409: KeyUnavailable,
}
