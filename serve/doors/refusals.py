"""Every error that a handler may raise, as the problem document that its client gets."""

import logging

import orjson
from aiohttp import web

from serve.doors.problem import Problem
from turnlog.errors import (
    Conflict,
    Erased,
    InDoubt,
    KeyStateError,
    NotFound,
    SpoolFull,
    TooLarge,
    TurnlogError,
    Unavailable,
    UsageError,
)

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
RETRY_S = 2
NO_ROOM_S = 10
_AGAIN = "; send it again under the same id or Idempotency-Key"


def answer(problem: Problem) -> web.Response:
    """Return the response of a refusal."""
    return web.Response(
        body=orjson.dumps(problem.body()),
        status=problem.status,
        content_type=MEDIA_TYPE,
        headers=problem.headers,
    )


def problem_of(error: TurnlogError) -> Problem:
    """Return an error of the layers below as a problem.

    Missing, erased and another org's are one answer, to the byte.
    """
    if isinstance(error, NotFound | Erased):
        return Problem(404, "not_found", "there is no such thing")
    if isinstance(error, SpoolFull):
        headers = {"Retry-After": str(NO_ROOM_S)}
        if isinstance(error, InDoubt):
            return Problem(503, "in_doubt", f"{error}{_AGAIN}", headers=headers)
        return Problem(503, "no_room", str(error), headers=headers)
    for kind, status, code in _BY_KIND:
        if isinstance(error, kind):
            return Problem(status, code, str(error), headers=_retry(status))
    logger.error("%s: %s", type(error).__name__, error)
    return Problem(500, "internal", "the server failed; its log says why")


_BY_KIND: tuple[tuple[type[TurnlogError], int, str], ...] = (
    (UsageError, 400, "invalid"),
    (TooLarge, 413, "too_large"),
    (Conflict, 409, "conflict"),
    (KeyStateError, 503, "keys_unavailable"),
    (Unavailable, 503, "unavailable"),
)


def _retry(status: int) -> dict[str, str]:
    return {"Retry-After": str(RETRY_S)} if status == 503 else {}


def problem_of_http(error: web.HTTPException) -> Problem:
    """Return a refusal of aiohttp's own (no such path, another method) as a problem."""
    headers = {name: error.headers[name] for name in ("Allow",) if name in error.headers}
    code, detail = _OF_ROUTER.get(error.status, ("refused", error.reason))
    return Problem(error.status, code, detail, headers=headers)


_OF_ROUTER: dict[int, tuple[str, str]] = {
    404: ("not_found", "there is no such thing"),
    405: ("method", "this path has no such method"),
}
