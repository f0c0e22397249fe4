"""Whether the server lives, whether it takes requests and why not, and what it has counted."""

from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web

from serve.doors.metrics import MEDIA_TYPE, RUNGS
from serve.doors.openapi import Schema, json_answer
from serve.doors.route import OpenRoute
from serve.doors.server import SERVER, Server


async def healthz(request: web.Request) -> web.Response:
    """Say that the process answers."""
    return _json({"ok": True}, 200)


async def readyz(request: web.Request) -> web.Response:
    """Say whether requests are taken; a part that is away is named and need not be a reason."""
    said = await readiness(request.app[SERVER])
    return _json(said, 200 if said["ready"] else 503)


async def readiness(server: Server) -> dict[str, Any]:
    """Return the answer of `/readyz`."""
    state = server.producers.state
    keys = server.parts.keys()
    rung = None if state is None else state.rung
    return {
        "ready": not server.draining
        and keys["state"] != "unknown"
        and rung not in (None, "refusing"),
        "draining": server.draining,
        "parts": await server.parts.answering(),
        "keys": keys,
        "ladder": {
            "rung": rung,
            "unacknowledged": state.unacknowledged if state else 0,
            "spool_events": sum(state.spool_events.values()) if state else 0,
            "spool_bytes": state.spool_bytes if state else 0,
        },
    }


async def metrics(request: web.Request) -> web.Response:
    """Give the counts."""
    server = request.app[SERVER]
    text = server.metrics.text(server.producers.state, server.open_requests, server.draining)
    return web.Response(body=text.encode(), headers={"Content-Type": MEDIA_TYPE})


def _json(value: dict[str, Any], status: int) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


_OK: Schema = {
    "type": "object",
    "properties": {"ok": {"type": "boolean", "const": True}},
    "required": ["ok"],
}
_READINESS: Schema = {
    "type": "object",
    "description": "Whether requests are taken, and how the parts are.",
    "properties": {
        "ready": {"type": "boolean"},
        "draining": {"type": "boolean", "description": "The server is shutting down."},
        "parts": {
            "type": "object",
            "description": "Which answer. One that is away need not stop the server: without Kafka"
            " events go to the disk, without Redis repeats are told later, without the key keeper"
            " nothing changes for a day.",
            "additionalProperties": {"type": "boolean"},
        },
        "keys": {
            "type": "object",
            "description": "How old the knowledge of API keys may be. `stale`: over a minute, so"
            " that a revocation may not hold here yet.",
            "properties": {
                "state": {"enum": ["ok", "stale", "unknown"]},
                "age_s": {"type": ["number", "null"]},
            },
        },
        "ladder": {
            "type": "object",
            "description": "Where events go now, and what waits.",
            "properties": {
                "rung": {"enum": [*RUNGS, None]},
                "unacknowledged": {"type": "integer"},
                "spool_events": {"type": "integer"},
                "spool_bytes": {"type": "integer"},
            },
        },
    },
    "required": ["ready", "draining", "parts", "keys", "ladder"],
}
_READINESS_REF = {"$ref": "#/components/schemas/Readiness"}

SCHEMAS: Mapping[str, Schema] = {"Readiness": _READINESS}
ROUTES = (
    OpenRoute(
        "GET",
        "/healthz",
        healthz,
        {
            "summary": "The process answers",
            "responses": {"200": json_answer("It does.", _OK)},
        },
    ),
    OpenRoute(
        "GET",
        "/readyz",
        readyz,
        {
            "summary": "The server takes requests",
            "responses": {
                "200": json_answer("It does.", _READINESS_REF),
                "503": json_answer("It does not.", _READINESS_REF),
            },
        },
    ),
    OpenRoute(
        "GET",
        "/metrics",
        metrics,
        {
            "summary": "Counts for Prometheus",
            "responses": {
                "200": {
                    "description": "The text form, version 0.0.4. No label names an org.",
                    "content": {"text/plain": {"schema": {"type": "string"}}},
                }
            },
        },
    ),
)
