"""ClickHouse's HTTP interface over the engine."""

import asyncio
import logging
from collections.abc import Mapping
from typing import NamedTuple

import orjson
from aiohttp import web

from local.clickhouse import codec, request, statement
from local.clickhouse.engine import (
    NOT_IMPLEMENTED,
    SYNTAX_ERROR,
    Answer,
    Engine,
    EngineError,
    Query,
    Work,
    engine_error,
)

logger = logging.getLogger(__name__)

_ENGINE = web.AppKey("engine", Engine)
_LARGEST_BODY = 2 << 30
AUTHENTICATION_FAILED = 516
CANNOT_DECOMPRESS = 271

# The server's own choice of status; a client decides by it whether a retry may help.
_STATUS = {
    SYNTAX_ERROR: 400,
    CANNOT_DECOMPRESS: 400,
    NOT_IMPLEMENTED: 501,
    AUTHENTICATION_FAILED: 403,
    60: 404,  # UNKNOWN_TABLE
    81: 404,  # UNKNOWN_DATABASE
    164: 403,  # READONLY
    497: 403,  # ACCESS_DENIED
    115: 404,  # UNKNOWN_SETTING
    46: 404,  # UNKNOWN_FUNCTION
    47: 404,  # UNKNOWN_IDENTIFIER
    27: 400,  # CANNOT_PARSE_INPUT_ASSERTION_FAILED
    53: 400,  # TYPE_MISMATCH
    241: 500,  # MEMORY_LIMIT_EXCEEDED
}
_TYPES = {"JSON": "application/json; charset=UTF-8", "CSV": "text/csv; charset=UTF-8"}
_TEXT = "text/plain; charset=UTF-8"
_BYTES = "application/octet-stream"


class Call(NamedTuple):
    """A request in full: what it asks for, its text and data in one, how its answer may be sent."""

    asked: request.Request
    text: bytes
    accepted: str
    readonly: bool


def application(engine: Engine) -> web.Application:
    """Return the server over an engine."""
    app = web.Application(client_max_size=_LARGEST_BODY)
    app[_ENGINE] = engine
    app.router.add_get("/ping", _ok)
    app.router.add_get("/replicas_status", _ok)
    app.router.add_route("GET", "/", _answer)
    app.router.add_route("POST", "/", _answer)
    return app


async def _ok(http: web.Request) -> web.Response:
    return web.Response(text="Ok.\n")


async def _answer(http: web.Request) -> web.Response:
    engine = http.app[_ENGINE]
    asked = request.read(http.query, http.headers)
    try:
        with engine.registered(Query(asked.query_id, user=asked.user)) as query:
            call = await _read(http, asked)
            if not call.text.strip():
                return web.Response(text="Ok.\n")
            return await _run(engine, query, call)
    except EngineError as error:
        return _failure(engine, asked, error)


async def _read(http: web.Request, asked: request.Request) -> Call:
    """Read the rest of the request.

    Raises:
        EngineError: the caller is not known, or the body is of a form that is not spoken here.
    """
    _authenticate(asked)
    if asked.native_framing:
        raise _not_implemented("compress and decompress; use Content-Encoding")
    fields: Mapping[str, str] = http.query
    body = b""
    if http.content_type == "multipart/form-data":
        fields = {**http.query, **await _form(http)}
        asked = request.read({**fields, "query_id": asked.query_id}, http.headers)
    else:
        body = await _body(http)
    head = fields.get("query", "").encode("utf-8", "surrogateescape")
    text = b"\n".join(part for part in (head, body) if part)
    accepts = asked.settings.get("enable_http_compression") == "1"
    accepted = codec.accepted(http.headers.get("Accept-Encoding", "")) if accepts else ""
    return Call(asked, text, accepted, readonly=http.method == "GET")


def _authenticate(asked: request.Request) -> None:
    if (asked.user, asked.password) != ("default", ""):
        text = f"{asked.user}: the local engine knows only the user default, who has no password"
        raise engine_error(AUTHENTICATION_FAILED, "AUTHENTICATION_FAILED", text)


def _not_implemented(what: str) -> EngineError:
    text = f"The local engine does not speak {what}"
    return engine_error(NOT_IMPLEMENTED, "NOT_IMPLEMENTED", text)


async def _form(http: web.Request) -> dict[str, str]:
    form = await http.post()
    if any(not isinstance(value, str) for value in form.values()):
        raise _not_implemented("external tables")
    return {name: str(value) for name, value in form.items()}


async def _body(http: web.Request) -> bytes:
    encoding = http.headers.get("Content-Encoding", "").lower()
    body = await http.read()
    try:
        return await asyncio.to_thread(codec.decompress, body, encoding)
    except codec.UnknownEncoding:
        raise _not_implemented(f"the content encoding {encoding}") from None
    except codec.BrokenBody as error:
        raise engine_error(CANNOT_DECOMPRESS, "CANNOT_DECOMPRESS", str(error)) from None


async def _run(engine: Engine, query: Query, call: Call) -> web.Response:
    asked = call.asked
    insert = statement.insert_with_data(call.text)
    sql = call.text[: insert.data_start] if insert else call.text
    query.sql = sql[:1000].decode(errors="replace")
    if insert is None and statement.several(sql):
        text = "Syntax error (Multi-statements are not allowed)"
        raise engine_error(SYNTAX_ERROR, "SYNTAX_ERROR", text)
    kill = statement.kill(query.sql) if not insert else None
    if kill is not None:
        answer = await engine.kill(kill, asked.parameters, query)
        return await _success(engine, call, answer, kill.format)
    work = _work(call, sql, insert)
    with engine.session(asked.session_id, asked.session_timeout_s, asked.session_check) as session:
        answer = await engine.run(query, work, session)
    form = asked.format if insert else statement.output_format(sql, asked.format)
    return await _success(engine, call, answer, form)


def _work(call: Call, sql: bytes, insert: statement.Insert | None) -> Work:
    asked = call.asked
    settings = {**asked.settings, "readonly": "2"} if call.readonly else asked.settings
    data = call.text[insert.data_start :] if insert else b""
    return Work(sql, asked.format, asked.database, settings, asked.parameters, insert, data)


async def _success(engine: Engine, call: Call, answer: Answer, form: str) -> web.Response:
    body, encoding = await asyncio.to_thread(codec.compress, answer.body, call.accepted)
    headers = _headers(engine, call.asked)
    headers["X-ClickHouse-Format"] = form
    summary = {name: str(value) for name, value in answer.summary.items()}
    headers["X-ClickHouse-Summary"] = orjson.dumps(summary).decode()
    headers["Content-Type"] = _content_type(form)
    if encoding:
        headers["Content-Encoding"] = encoding
    return web.Response(body=body, headers=headers)


def _failure(engine: Engine, asked: request.Request, error: EngineError) -> web.Response:
    headers = _headers(engine, asked)
    headers["X-ClickHouse-Exception-Code"] = str(error.code)
    headers["Content-Type"] = _TEXT
    body = f"{error} (version {engine.version})\n".encode(errors="replace")
    return web.Response(status=_STATUS.get(error.code, 500), body=body, headers=headers)


def _headers(engine: Engine, asked: request.Request) -> dict[str, str]:
    return {
        "X-ClickHouse-Query-Id": asked.query_id,
        "X-ClickHouse-Server-Display-Name": "turnlog-local",
        "X-ClickHouse-Timezone": engine.timezone,
    }


def _content_type(form: str) -> str:
    for prefix, content_type in _TYPES.items():
        if form.startswith(prefix):
            return content_type
    return _TEXT if form.startswith(("TabSeparated", "TSV", "Pretty", "Vertical")) else _BYTES
