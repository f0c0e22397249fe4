"""`POST /v1/events`: events of gateways in any language, each answered for itself."""

import time
from weakref import WeakKeyDictionary

import orjson
from aiohttp import web

from serve.appending import Answer, Appender, Scope
from serve.appending.answers import status_of
from serve.appending.forms import Request, Unreadable, read_request
from serve.doors.body import read_body
from serve.doors.events_openapi import APPEND
from serve.doors.halves import parse_events
from serve.doors.problem import Problem
from serve.doors.route import Caller, Role, Route
from serve.doors.server import SERVER, Server
from turnlog.producer import Producer

DOOR = "http"
MAX_BODY_BYTES = 20 << 20
"""What OpenTelemetry's collector takes too; one event has 8 MiB of content at most."""

WRITERS = frozenset((Role.PRODUCER, Role.ADMIN))
RETRY_S = 2


_OF_SERVER: WeakKeyDictionary[Server, Appender] = WeakKeyDictionary()


def appender_of(server: Server) -> Appender:
    """Return what appends for a server; made when it is first asked for."""
    found = _OF_SERVER.get(server)
    if found is None:
        found = _OF_SERVER[server] = Appender.over(server.config, server.redis)
    return found


def scope_of(producer: Producer, caller: Caller) -> Scope:
    """Return for whom a caller's events are appended."""
    grant = producer.grant
    projects, id_key = grant.projects(caller.org), grant.id_key(caller.org)
    return Scope(caller.org, caller.project, projects, id_key, time.time_ns() // 1000)


async def append(request: web.Request, caller: Caller) -> web.Response:
    """Append the events of a request."""
    server = request.app[SERVER]
    found = await _read(request)
    producer = await server.producers.of(caller.org)
    scope = scope_of(producer, caller)
    answers = await appender_of(server).append(producer, scope, found.events)
    for answer in answers:
        server.metrics.event(DOOR, answer.outcome)
    return _response(answers, found.alone)


async def _read(request: web.Request) -> Request:
    data = await read_body(request)
    media_type = "" if "Content-Type" not in request.headers else request.content_type
    found = read_request(media_type, request.headers, data, parse_events)
    if isinstance(found, Unreadable):
        code = _CODES.get(found.status, "invalid")
        raise Problem(found.status, code, found.detail, found.field)
    return found


def _response(answers: list[Answer], alone: bool) -> web.Response:
    status = answers[0].status if alone else status_of(answers)
    body = {"results": [answer.as_dict() for answer in answers]}
    response = web.Response(body=orjson.dumps(body), status=status, content_type="application/json")
    if any(answer.status == 503 for answer in answers):
        response.headers["Retry-After"] = str(RETRY_S)
    return response


_CODES = {413: "too_large", 415: "media_type"}

ROUTES = (
    Route(
        "POST",
        "/v1/events",
        WRITERS,
        append,
        APPEND,
        max_inflated_bytes=MAX_BODY_BYTES,
    ),
)
