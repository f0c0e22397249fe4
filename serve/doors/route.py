"""What a route is: method, path, who may call it, what it does, how it is described."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from aiohttp import web

from turnlog.apikeys import Role

__all__ = ["Caller", "Handler", "OpenHandler", "OpenRoute", "Role", "Route"]


class Caller(NamedTuple):
    """Who a request comes from, by its credential and by nothing else.

    Attributes:
        org: the org that the credential names.
        project: the project that it is bound to, empty where it is bound to none.
        role: what it may do.
        id: the public part of the key, or the subject of the token; safe to log.
    """

    org: str
    project: str
    role: Role
    id: str


Handler = Callable[[web.Request, Caller], Awaitable[web.StreamResponse]]
OpenHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Route(NamedTuple):
    """One row of the table of routes.

    Attributes:
        method: HTTP method.
        path: aiohttp's form, such as `/v1/runs/{run}/chunks`.
        roles: who may call it.
        handler: answers it.
        operation: its OpenAPI operation (without `security`, which the roles give).
        max_inflated_bytes: of the body after decompression; 413 above.
    """

    method: str
    path: str
    roles: frozenset[Role]
    handler: Handler
    operation: Mapping[str, Any]
    max_inflated_bytes: int = 1 << 20


class OpenRoute(NamedTuple):
    """A route that needs no credential, such as `/healthz`."""

    method: str
    path: str
    handler: OpenHandler
    operation: Mapping[str, Any]
