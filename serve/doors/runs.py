"""The life cycle of runs for gateways in any language: create, chunks, heartbeat, and an end.

A run has one writer, the process that created it for its client. A call that reaches another one is
told so (409 `elsewhere`) while that process lives; once it is lost, the call takes the run over
under the next writer epoch.
"""

from typing import Any
from weakref import WeakKeyDictionary

import orjson
from aiohttp import web

from serve.doors.append import DOOR, WRITERS, appender_of, scope_of
from serve.doors.body import read_body
from serve.doors.halves import parse_events
from serve.doors.route import Caller, Handler, Route
from serve.doors.run_book import RunBook
from serve.doors.run_fields import ENDS, read_asked, read_fields
from serve.doors.runs_openapi import CANCEL, CHUNKS, COMPLETE, CREATE, FAIL, HEARTBEAT
from serve.doors.server import SERVER, Server
from serve.doors.showing import show

MAX_BODY_BYTES = 56 << 20
"""What a frame holds, less what stands beside a response in it."""

CHUNKS_BYTES = 4 << 20
HEARTBEAT_S = 5

_BOOKS: WeakKeyDictionary[Server, RunBook] = WeakKeyDictionary()


def _book_of(server: Server) -> RunBook:
    book = _BOOKS.get(server)
    if book is None:
        shared = appender_of(server)
        book = _BOOKS[server] = RunBook(server, shared.known, shared.patient)
    return book


async def create(request: web.Request, caller: Caller) -> web.Response:
    """Begin a run: once it is answered, the model may be called."""
    server = request.app[SERVER]
    body = parse_events(await read_body(request))
    producer = await server.producers.of(caller.org)
    key = request.headers.get("Idempotency-Key")
    asked = read_asked(body, key, scope_of(producer, caller))
    found = await _book_of(server).create(producer, asked)
    outcome = "duplicate" if found.again else "accepted"
    server.metrics.event(DOOR, outcome)
    said = {"run": found.run, "conversation": found.conversation, "turn": found.turn}
    said |= _durable(found.position) | {"outcome": outcome}
    said = {name: value for name, value in said.items() if value}
    return _json(said | {"heartbeat_s": HEARTBEAT_S}, 200 if found.again else 201)


async def chunks(request: web.Request, caller: Caller) -> web.Response:
    """Note pieces of output that a reader was shown; nothing is accepted by it (law 1)."""
    held = await _book_of(request.app[SERVER]).open(caller, request.match_info["run"])
    count = await show(request, held)
    return _json({"run": held.run.run, "chunks": count, "noted": held.noted}, 202)


async def heartbeat(request: web.Request, caller: Caller) -> web.Response:
    """Take a sign of life of a client that has nothing to show."""
    held = await _book_of(request.app[SERVER]).open(caller, request.match_info["run"])
    return _json({"run": held.run.run, "status": "running", "noted": held.noted})


def _ending(how: str) -> Handler:
    async def end(request: web.Request, caller: Caller) -> web.Response:
        """End a run."""
        server, run = request.app[SERVER], request.match_info["run"]
        data = await read_body(request)
        said = read_fields(parse_events(data) if data.strip() else {}, ENDS[how])
        ended = await _book_of(server).end(caller, run, how, said)
        outcome = "duplicate" if ended.again else "accepted"
        server.metrics.event(DOOR, outcome)
        answer = {"run": run, "status": ended.status, "outcome": outcome}
        return _json(answer | _durable(ended.position))

    return end


def _durable(position: str) -> dict[str, str]:
    if not position:
        return {}
    return {"durable": "spool" if position.endswith("/-1") else "broker", "position": position}


def _json(value: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


_RUN = "/v1/runs/{run}"

ROUTES = (
    Route("POST", "/v1/runs", WRITERS, create, CREATE, MAX_BODY_BYTES),
    Route("POST", f"{_RUN}/chunks", WRITERS, chunks, CHUNKS, CHUNKS_BYTES),
    Route("POST", f"{_RUN}/heartbeat", WRITERS, heartbeat, HEARTBEAT),
    Route("POST", f"{_RUN}/complete", WRITERS, _ending("complete"), COMPLETE, MAX_BODY_BYTES),
    Route("POST", f"{_RUN}/fail", WRITERS, _ending("fail"), FAIL, MAX_BODY_BYTES),
    Route("POST", f"{_RUN}/cancel", WRITERS, _ending("cancel"), CANCEL, MAX_BODY_BYTES),
)
