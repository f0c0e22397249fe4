"""The OpenAPI 3.1 document, made from the table of routes: what is not served is not in it."""

import re
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

from serve.doors.refusals import MEDIA_TYPE
from serve.doors.route import OpenRoute, Role, Route

Schema = Mapping[str, Any]

PROBLEM: Schema = {
    "type": "object",
    "description": "Why a request was refused (RFC 9457). `title` is a word that programs compare.",
    "properties": {
        "type": {"type": "string", "const": "about:blank"},
        "title": {"type": "string", "examples": ["too_large"]},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string", "description": "A sentence for a person."},
        "field": {"type": "string", "description": "The field that is wrong, where one is."},
    },
    "required": ["type", "title", "status", "detail"],
    "additionalProperties": False,
}

_JSON_REF: Schema = {"$ref": "#/components/schemas/Json"}
JSON: Schema = {
    "title": "any JSON",
    "description": "Any JSON that `serve.doors.strict_json` takes: numbers fit 64 bits.",
    "anyOf": [
        {"type": ["string", "boolean", "null"]},
        {"type": "number", "minimum": -(2**63), "maximum": 2**64 - 1},
        {"type": "array", "items": _JSON_REF},
        {"type": "object", "additionalProperties": _JSON_REF},
    ],
}

_REFUSED = {
    400: "Not such as this call takes; `field` names what is wrong.",
    401: "No credential, or one that is not good: unknown, revoked, expired. One answer for all.",
    403: "The role of the credential may not do this.",
    404: "Missing, erased, or another org's: one answer for all three.",
    408: "The body did not come in time.",
    413: "The body is too large, counted after decompression.",
    415: "A content type or encoding that is not taken.",
    429: "Too much waits for Kafka: try again after `Retry-After`.",
    503: "A part is away or the server is shutting down: try again after `Retry-After`.",
}
_RETRIED = frozenset((429, 503))
_PARAMETER = re.compile(r"{(\w+)}")

_ABOUT = """The HTTP door of Turnlog, the system of record for LLM runs.

Every call but the open ones needs `Authorization: Bearer …`: an API key (`turnlog apikey create`)
or a token of the identity provider that the server trusts. The org is that of the credential and
nothing in a request changes it. Bodies may be compressed with gzip, zstd or deflate. Every refusal
is a problem document."""


def document(table: Iterable[Route | OpenRoute], schemas: Mapping[str, Schema]) -> dict[str, Any]:
    """Return the document.

    Args:
        table: the routes that are served.
        schemas: what their operations refer to as `#/components/schemas/…`.
    """
    paths: dict[str, dict[str, Any]] = {}
    for route in table:
        operation = _open(route) if isinstance(route, OpenRoute) else _guarded(route)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Turnlog", "version": version("turnlog"), "description": _ABOUT},
        "paths": paths,
        "components": {
            "schemas": {"Problem": PROBLEM, "Json": JSON, **schemas},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


_PROBLEM: Schema = {"content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}


def _open(route: OpenRoute) -> dict[str, Any]:
    return {**_named(route), "tags": ["server"], "security": [], **route.operation}


def _guarded(route: Route) -> dict[str, Any]:
    operation = {**_named(route), "tags": [_tag(route.path)], **route.operation}
    parameters = _path_parameters(route.path, operation.get("parameters", ()))
    if parameters:
        operation["parameters"] = parameters
    if "requestBody" in operation:
        operation["requestBody"] = _body(operation["requestBody"])
        operation["x-turnlog-max-inflated-bytes"] = route.max_inflated_bytes
    return {
        **operation,
        "security": [{"bearer": []}],
        "x-turnlog-roles": [role for role in Role if role in route.roles],
        "responses": _answers(route, operation.get("responses", {})),
    }


def _body(body: Mapping[str, Any]) -> dict[str, Any]:
    content = {
        kind: {**media, "schema": _closed(media["schema"])} if "schema" in media else media
        for kind, media in body["content"].items()
    }
    return {**body, "content": content}


def _closed(schema: Schema) -> dict[str, Any]:
    """Return a schema in which what is left open is JSON as we take it."""
    made = dict(schema)
    if not _SAYING & schema.keys():
        return {**made, **_JSON_REF}
    for name in ("oneOf", "anyOf", "allOf"):
        if name in made:
            made[name] = [_closed(choice) for choice in made[name]]
    if schema.get("type") == "object":
        if "properties" in made:
            fields = made["properties"].items()
            made["properties"] = {name: _closed(field) for name, field in fields}
        made.setdefault("additionalProperties", _JSON_REF)
    if schema.get("type") == "array":
        made["items"] = _closed(made.get("items", {}))
    return made


_SAYING = frozenset(("type", "enum", "const", "$ref", "oneOf", "anyOf", "allOf", "not"))


def _answers(route: Route, own: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return an operation's own answers and those that every such route gives.

    A status that is both (400 with an answer an event, and 400 for a body that is no JSON) has the
    content of both; a refusal that says nothing of its content is a problem.
    """
    answers = _refusals(route)
    for status, said in own.items():
        common = answers.get(status) or (_PROBLEM if status >= "400" else {})
        content = {**common.get("content", {}), **said.get("content", {})}
        answers[status] = {**common, **said, **({"content": content} if content else {})}
    return dict(sorted(answers.items()))


def _named(route: Route | OpenRoute) -> dict[str, Any]:
    words = re.findall(r"\w+", route.path) or ["root"]
    return {"operationId": "_".join((route.method.lower(), *words))}


def _tag(path: str) -> str:
    return path.split("/")[2] if path.count("/") > 1 else "server"


def _path_parameters(path: str, given: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the parameters, with those of the path that the operation does not describe."""
    said = list(given)
    described = {parameter.get("name") for parameter in said if parameter.get("in") == "path"}
    return said + [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(path)
        if name not in described
    ]


def _refusals(route: Route) -> dict[str, Any]:
    statuses = [400, 401, 403, 404, 503]
    if route.method not in ("GET", "HEAD"):
        statuses += [408, 413, 415, 429]
    return {str(status): refusal(status) for status in sorted(statuses)}


def refusal(status: int, description: str = "") -> dict[str, Any]:
    """Return a refused answer as a response of an operation."""
    said = {"description": description or _REFUSED[status], **_PROBLEM}
    return {**said, "headers": _RETRY_AFTER} if status in _RETRIED else said


_RETRY_AFTER = {
    "Retry-After": {
        "description": "Seconds.",
        "schema": {"type": "string", "pattern": "^[0-9]+$"},
    }
}


def json_answer(description: str, schema: Schema) -> dict[str, Any]:
    """Return an answer in JSON as a response of an operation."""
    return {"description": description, "content": {"application/json": {"schema": schema}}}
