"""The document has every route that is served, and the page shows every call of the document."""

import re
from html.parser import HTMLParser
from typing import Any

from serve.doors.route import OpenRoute, Role
from serve.doors.table import TABLE
from tests.serve.doors.door import Door


def test_the_document_has_every_route_and_its_roles(door: Door) -> None:
    document = door.ask("GET", "/openapi.json").json
    assert document["openapi"].startswith("3.1.")
    described = {
        (method.upper(), path): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    assert set(described) == {(route.method, route.path) for route in TABLE}
    for route in TABLE:
        operation = described[route.method, route.path]
        assert operation["summary"], route.path
        assert operation["responses"], route.path
        if isinstance(route, OpenRoute):
            assert operation["security"] == []
        else:
            assert operation["security"] == [{"bearer": []}]
            assert operation["x-turnlog-roles"] == [r for r in Role if r in route.roles]
            named = {p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", route.path))
            limit = operation.get("x-turnlog-max-inflated-bytes", route.max_inflated_bytes)
            assert limit == route.max_inflated_bytes
    ids = [operation["operationId"] for operation in described.values()]
    assert len(set(ids)) == len(ids)


def test_every_reference_of_the_document_leads_somewhere(door: Door) -> None:
    answer = door.ask("GET", "/openapi.json")
    schemas = answer.json["components"]["schemas"]
    for name in re.findall(r'"\$ref":"#/components/schemas/([^"]+)"', answer.body.decode()):
        assert name in schemas, name


def test_what_a_request_leaves_open_is_json_of_64_bits(door: Door) -> None:
    for methods in door.ask("GET", "/openapi.json").json["paths"].values():
        for operation in methods.values():
            body = operation.get("requestBody", {"content": {}})
            for kind, media in body["content"].items():
                assert_closed(media["schema"], kind)


def assert_closed(schema: dict[str, Any], place: str) -> None:
    assert {"type", "enum", "const", "$ref", "oneOf", "anyOf", "allOf"} & schema.keys(), place
    if schema.get("type") == "object":
        assert "additionalProperties" in schema, place
    if schema.get("type") == "array":
        assert "items" in schema, place
    for name, field in schema.get("properties", {}).items():
        assert_closed(field, f"{place} {name}")
    for choice in schema.get("oneOf", []) + schema.get("anyOf", []):
        assert_closed(choice, f"{place} choice")


class Page(HTMLParser):
    VOID = frozenset(("meta", "br", "link", "img"))
    LOADING = frozenset(("script", "link", "img", "iframe", "object", "embed", "source"))

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loading: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if "id" in found:
            self.ids.add(found["id"] or "")
        if tag == "a":
            self.links.append(found["href"] or "")
        if tag in self.LOADING or "src" in found or "style" in found:
            self.loading.append(tag)


def test_the_page_shows_every_call_and_loads_nothing(door: Door) -> None:
    answer = door.ask("GET", "/docs")
    assert answer.headers["Content-Type"].startswith("text/html")
    assert "script-src" not in answer.headers["Content-Security-Policy"]
    text, page = answer.body.decode(), Page()
    page.feed(text)
    document = door.ask("GET", "/openapi.json").json
    ids = {op["operationId"] for ops in document["paths"].values() for op in ops.values()}
    assert ids <= page.ids
    assert {f"#{id}" for id in ids} <= set(page.links)
    assert page.loading == []
    assert all(link.startswith(("#", "/")) for link in page.links)
    assert "url(" not in text and "@import" not in text
    for route in TABLE:
        assert f"<code>{route.path}</code>" in text
