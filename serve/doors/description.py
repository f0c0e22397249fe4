"""The server's own description: `/openapi.json` for programs, `/docs` for people."""

import base64
import hashlib
from functools import cache

import orjson
from aiohttp import web

from serve.doors.openapi import document
from serve.doors.page import STYLE, page
from serve.doors.route import OpenRoute

_CSP = (
    "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none';"
    " style-src 'sha256-{}'"
)


@cache
def _document() -> bytes:
    # Here, because the table has this module's routes too.
    from serve.doors.table import SCHEMAS, TABLE

    return orjson.dumps(document(TABLE, SCHEMAS), option=orjson.OPT_NON_STR_KEYS)


@cache
def _page() -> bytes:
    return page(orjson.loads(_document())).encode()


async def root(request: web.Request) -> web.Response:
    """Say where to read on."""
    return web.Response(body=orjson.dumps(_LINKS), content_type="application/json")


async def openapi(request: web.Request) -> web.Response:
    """Give the OpenAPI document."""
    return web.Response(body=_document(), content_type="application/json")


async def docs(request: web.Request) -> web.Response:
    """Give the document as a page that loads nothing from anywhere."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    return web.Response(
        body=_page(),
        content_type="text/html",
        charset="utf-8",
        headers={"Content-Security-Policy": _CSP.format(digest)},
    )


_LINKS = {"docs": "/docs", "openapi": "/openapi.json"}
ROUTES = (
    OpenRoute(
        "GET",
        "/",
        root,
        {
            "summary": "Where to read on",
            "responses": {
                "200": {
                    "description": "Paths of this server.",
                    "content": {"application/json": {"schema": {"type": "object"}}},
                }
            },
        },
    ),
    OpenRoute(
        "GET",
        "/openapi.json",
        openapi,
        {
            "summary": "This document",
            "responses": {
                "200": {
                    "description": "OpenAPI 3.1.",
                    "content": {"application/json": {"schema": {"type": "object"}}},
                }
            },
        },
    ),
    OpenRoute(
        "GET",
        "/docs",
        docs,
        {
            "summary": "This document as a page",
            "responses": {
                "200": {
                    "description": "HTML; nothing is loaded from elsewhere.",
                    "content": {"text/html": {"schema": {"type": "string"}}},
                }
            },
        },
    ),
)
