"""The keeper's HTTP door on loopback: JSON in, JSON out, a bearer token on every call.

| call | who | body | answer |
|---|---|---|---|
| `POST /v1/create` | admin | `org, project, credential: {id, sha256}` | `org, project, created` |
| `POST /v1/mint` | admin | `{}` | `days, short` |
| `POST /v1/puncture` | admin | `org, project, targets` | `punctures` |
| `POST /v1/apikeys` | admin | `org, id, sha256, project, role[, expires_at_us]` | `org, id` |
| `POST /v1/apikeys/revoke` | admin | `org, id` | `org, id` |
| `POST /v1/grant` | an org's | `{}` | the grant (secret) |
| `GET /health` | anyone | | `ok` |

Refusals are `{"error": reason}`. Neither tokens nor keys are ever logged; there is no access log.
"""

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
from aiohttp import web

from streams.keeper.calls import read_id, read_key, sha256_of, text
from streams.keeper.directory import Known
from streams.keeper.partition import Fenced
from streams.keeper.service import Keeper
from turnlog.errors import KeyStateError, NotFound, TurnlogError, Unavailable, UsageError
from turnlog.ids import is_id, require_id
from turnlog.keeper_client import token_digest
from turnlog.keys.targets import Target

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 4 << 20

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Door:
    """Routes calls to the keeper.

    Args:
        keeper: does the work.
        admin_digest: SHA-256 of the admin's token, hex.
        stop: set when another keeper took over.
    """

    def __init__(self, keeper: Keeper, admin_digest: str, stop: asyncio.Event) -> None:
        self.keeper = keeper
        self.admin_digest = admin_digest
        self.stop = stop
        self.fenced: Fenced | None = None
        # Everything that writes goes through one thread; grants do not wait for a slow broker.
        self.writer = ThreadPoolExecutor(1, thread_name_prefix="keeper-write")
        self.readers = ThreadPoolExecutor(2, thread_name_prefix="keeper-grant")

    def app(self) -> web.Application:
        """Return the aiohttp application."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_refusals])
        app.router.add_get("/health", _health)
        app.router.add_post("/v1/create", self._create)
        app.router.add_post("/v1/mint", self._mint)
        app.router.add_post("/v1/puncture", self._puncture)
        app.router.add_post("/v1/apikeys", self._create_key)
        app.router.add_post("/v1/apikeys/revoke", self._revoke_key)
        app.router.add_post("/v1/grant", self._grant)
        return app

    async def write(self, work: Callable[[], Any]) -> Any:
        """Run work that writes; being fenced stops the keeper.

        Raises:
            Fenced: another keeper took over.
            Unavailable: Kafka does not answer.
        """
        try:
            return await asyncio.get_running_loop().run_in_executor(self.writer, work)
        except Fenced as error:
            self.fenced = error
            self.stop.set()
            raise

    def _require_admin(self, request: web.Request) -> None:
        if not hmac.compare_digest(token_digest(_token(request)), self.admin_digest):
            raise web.HTTPUnauthorized(text="not the admin's credential")

    async def _create(self, request: web.Request) -> web.Response:
        self._require_admin(request)
        body = await _object(request)
        org = require_id(text(body, "org"), "org")
        project = require_id(text(body, "project"), "project")
        known = _known(body.get("credential"))
        created = await self.write(lambda: self.keeper.create(org, project, known))
        return _json({"org": org, "project": project, "created": created})

    async def _mint(self, request: web.Request) -> web.Response:
        self._require_admin(request)
        minted = await self.write(self.keeper.mint)
        short = [f"{project.org}/{project.project}" for project in minted.short]
        return _json({"days": minted.days, "short": short})

    async def _puncture(self, request: web.Request) -> web.Response:
        self._require_admin(request)
        body = await _object(request)
        org = require_id(text(body, "org"), "org")
        project = require_id(text(body, "project"), "project")
        named = body.get("targets")
        if not isinstance(named, list):
            raise UsageError("targets is not a list")
        targets = [Target.from_json(target) for target in named]
        results = await self.write(lambda: self.keeper.puncture(org, project, targets))
        return _json({"punctures": [result.to_json() for result in results]})

    async def _create_key(self, request: web.Request) -> web.Response:
        self._require_admin(request)
        body = await _object(request)
        org, key = require_id(text(body, "org"), "org"), read_key(body)
        await self.write(lambda: self.keeper.create_key(org, key))
        return _json({"org": org, "id": key.id})

    async def _revoke_key(self, request: web.Request) -> web.Response:
        self._require_admin(request)
        body = await _object(request)
        org, id = require_id(text(body, "org"), "org"), read_id(body)
        await self.write(lambda: self.keeper.revoke_key(org, id))
        return _json({"org": org, "id": id})

    async def _grant(self, request: web.Request) -> web.Response:
        org = self.keeper.directory.org_of(_token(request))
        if org is None:
            raise web.HTTPUnauthorized(text="a credential that is not known")
        loop = asyncio.get_running_loop()
        body = await loop.run_in_executor(self.readers, self._granted, org)
        return web.Response(
            body=body, content_type="application/json", headers={"Cache-Control": "no-store"}
        )

    def _granted(self, org: str) -> bytes:
        return orjson.dumps(self.keeper.grant([org]).to_json())

    def close(self) -> None:
        """Let go of the threads; a write in flight is finished."""
        self.readers.shutdown()
        self.writer.shutdown()


def _token(request: web.Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else ""


async def _object(request: web.Request) -> Mapping[str, Any]:
    try:
        body = orjson.loads(await request.read())
    except orjson.JSONDecodeError:
        raise UsageError("the body is not JSON") from None
    if not isinstance(body, dict):
        raise UsageError("the body is not a JSON object")
    return body


def _known(value: object) -> Known | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise UsageError("credential is not an object")
    known = Known(text(value, "id"), sha256_of(value, "credential"))
    if not is_id(known.id):
        raise UsageError("credential needs an id")
    return known


async def _health(request: web.Request) -> web.Response:
    return _json({"ok": True})


def _json(value: Mapping[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


@web.middleware
async def _refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _json({"error": error.text or error.reason}, error.status)
    except TurnlogError as error:
        return _json({"error": str(error)}, _status(error))


def _status(error: TurnlogError) -> int:
    if isinstance(error, UsageError):
        return 400
    if isinstance(error, NotFound):
        return 404
    if isinstance(error, KeyStateError):
        return 409
    logger.log(logging.WARNING if isinstance(error, Unavailable) else logging.ERROR, "%s", error)
    return 503
