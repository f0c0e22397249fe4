"""The aiohttp application over a table of routes: who asks, may they, and how a refusal looks."""

import time
from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web

from serve.doors.body import LIMIT
from serve.doors.problem import Problem
from serve.doors.refusals import answer, problem_of, problem_of_http
from serve.doors.route import OpenRoute, Route
from serve.doors.server import SERVER, Server
from turnlog.errors import TurnlogError

__all__ = ["SERVER", "build"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

SECURITY = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"))
_READS = frozenset(("GET", "HEAD"))


def build(server: Server, routes: Iterable[Route | OpenRoute] | None = None) -> web.Application:
    """Return the application.

    Args:
        server: what its handlers share.
        routes: rows of its table; the whole table when left out.
    """
    if routes is None:
        # Here, because the modules of the table import this one.
        from serve.doors.table import TABLE

        routes = TABLE
    app = web.Application(middlewares=[_answered])
    app[SERVER] = server
    for route in routes:
        handler = route.handler if isinstance(route, OpenRoute) else _guarded(server, route)
        app.router.add_route(route.method, route.path, handler)
        if route.method == "GET":
            app.router.add_route("HEAD", route.path, handler)
    app.on_response_prepare.append(_add_headers)
    return app


def _guarded(server: Server, route: Route) -> Handler:
    """Return what answers a route for those who may call it, while the server takes requests."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        if server.draining:
            raise _draining()
        caller = await server.callers.of(request.headers.get("Authorization", ""))
        if caller.role not in route.roles:
            raise Problem(403, "forbidden", f"the role {caller.role} may not do this")
        if route.method not in _READS:
            server.require_room()
        request[LIMIT] = route.max_inflated_bytes
        return await route.handler(request, caller)

    return guarded


def _draining() -> Problem:
    headers = {"Retry-After": "5", "Connection": "close"}
    return Problem(503, "draining", "the server is shutting down: ask another", headers=headers)


@web.middleware
async def _answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer, and count the answer; a handler's error becomes a problem document."""
    server = request.app[SERVER]
    begun = time.perf_counter()
    status = 500
    try:
        with server.request():
            response = await _reply(request, handler)
            status = response.status
            return response
    finally:
        seconds = time.perf_counter() - begun
        server.metrics.answered(_template(request), _method(request), status, seconds)


async def _reply(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Problem as problem:
        return answer(problem)
    except web.HTTPException as error:
        return answer(problem_of_http(error))
    except TurnlogError as error:
        return answer(problem_of(error))


def _template(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return "unmatched" if resource is None else resource.canonical


def _method(request: web.Request) -> str:
    return request.method if request.method in _METHODS else "other"


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    for name, value in SECURITY.items():
        response.headers.setdefault(name, value)
    # aiohttp's own says which versions run here.
    response.headers["Server"] = "turnlog"
