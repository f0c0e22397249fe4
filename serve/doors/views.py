"""Reading views over HTTP: one run, as its caller's role may see it."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import orjson
from aiohttp import web

from processors.usage import CLASSES
from serve.doors.append import appender_of
from serve.doors.life import Lives
from serve.doors.openapi import Schema, json_answer
from serve.doors.route import Caller, Role, Route
from serve.doors.server import SERVER, Server
from serve.runs_api import STATUSES, find_run, run_summary
from turnlog.errors import NotFound
from turnlog.ids import client_id, is_id

_ALL = frozenset(Role)
_CONTENT = frozenset(("output", "error"))
_STATUS = ("run", "status")


async def run(request: web.Request, caller: Caller) -> web.Response:
    """Answer with one run of the caller's org, and of its project where the key is bound to one."""
    server = request.app[SERVER]
    id = await _run_id(server, caller.org, request.match_info["run"])
    found = _shown(await _found(server, caller, id), caller.role)
    return web.Response(body=orjson.dumps(found), content_type="application/json")


async def _found(server: Server, caller: Caller, id: str) -> dict[str, Any]:
    """Return a run as the view has it, or its status alone while it is too young for the view.

    Raises:
        NotFound: missing, erased, or another org's or project's.
    """
    summary = partial(run_summary, server.config, caller.org, id, project=caller.project or None)
    try:
        return await asyncio.to_thread(summary)
    except NotFound:
        life, _ = await Lives(server.redis, appender_of(server).patient).find(caller.org, id)
        if life is None or caller.project not in ("", life.begun.project):
            raise
    if await asyncio.to_thread(_in_view, server, caller.org, id):
        # It came in meanwhile; or it was erased, and is not found again.
        return await asyncio.to_thread(summary)
    return {"run": id, "status": life.status}


def _in_view(server: Server, org: str, id: str) -> bool:
    try:
        find_run(server.config, org, id)
    except NotFound:
        return False
    return True


async def _run_id(server: Server, org: str, named: str) -> str:
    """Return the id of a run that is named by its id or by what its client called it."""
    if is_id(named):
        return named
    producer = await server.producers.of(org)
    return client_id(named, producer.grant.id_key(org), "run")


def _shown(summary: Mapping[str, Any], role: Role) -> dict[str, Any]:
    if role is Role.PRODUCER:
        return {name: summary[name] for name in _STATUS}
    if role is Role.AUDITOR:
        return {name: value for name, value in summary.items() if name not in _CONTENT}
    return dict(summary)


_TEXT = {"type": "string"}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_COUNT_OR_NULL = {"type": ["integer", "null"]}
_TIME = {"type": ["string", "null"], "description": "UTC, ISO 8601 with microseconds."}
_RUN: Schema = {
    "type": "object",
    "properties": {
        "run": _TEXT,
        "status": {"enum": list(STATUSES)},
        "source_ref": {**_TEXT_OR_NULL, "description": "What an import found it under."},
        "conversation": _TEXT_OR_NULL,
        "provider": _TEXT,
        "model": _TEXT,
        "started_at": _TIME,
        "ended_at": _TIME,
        "usage": {
            "type": "object",
            "description": "Disjoint token classes; null where the quality is `unknown`.",
            "properties": {
                **dict.fromkeys(CLASSES, _COUNT_OR_NULL),
                "quality": {"enum": ["measured", "estimated", "unknown"]},
            },
        },
        "usage_reason": {**_TEXT_OR_NULL, "description": "Why the usage is unknown."},
        "cost_nano_usd": _COUNT_OR_NULL,
        "content_ref": {**_TEXT_OR_NULL, "description": "Where its ciphertext stands."},
        "request_ref": _TEXT_OR_NULL,
        "output": {
            "type": "array",
            "description": "What was shown, a choice each; empty while it runs.",
            "items": {"type": "object"},
        },
        "error": {"description": "What the provider said, where it failed."},
    },
    "required": list(_STATUS),
}

SCHEMAS: Mapping[str, Schema] = {"Run": _RUN}
ROUTES = (
    Route(
        "GET",
        "/v1/runs/{run}",
        _ALL,
        run,
        {
            "summary": "One run",
            "description": "As the runs view has it. An auditor gets no content (`output` and"
            " `error`), a producer the status alone. A key that is bound to a project sees the"
            " runs of that project. Of a run that was begun here a moment ago and is not in the"
            " view yet, everyone gets the status alone.",
            "parameters": [
                {
                    "name": "run",
                    "in": "path",
                    "required": True,
                    "description": "Its id, or what its client called it.",
                    "schema": {"type": "string", "minLength": 1, "maxLength": 1024},
                }
            ],
            "responses": {"200": json_answer("The run.", {"$ref": "#/components/schemas/Run"})},
        },
    ),
)
