"""The OpenAPI document as one HTML page, drawn here: no script, nothing loaded from anywhere."""

import json
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

Node = Mapping[str, Any]

STYLE = """
:root{color-scheme:light dark;--ink:#1c2128;--dim:#57606a;--line:#d0d7de;--soft:#f6f8fa;
--page:#fff;--get:#0a6640;--post:#0550ae;--bad:#a40e26}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--dim:#9da7b1;--line:#3d444d;--soft:#161b22;
--page:#0d1117;--get:#56d364;--post:#79c0ff;--bad:#ff7b72}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.55 system-ui,sans-serif}
.all{display:grid;grid-template-columns:17rem minmax(0,1fr);max-width:78rem;margin:0 auto}
nav{position:sticky;top:0;align-self:start;max-height:100vh;overflow:auto;padding:2rem 1rem;
font-size:.85rem;border-right:1px solid var(--line)}
nav a{display:block;padding:.15rem 0;color:var(--ink);text-decoration:none;overflow-wrap:anywhere}
nav a:hover,nav a:focus{text-decoration:underline}
nav h2{font-size:.75rem;text-transform:uppercase;letter-spacing:.06em;color:var(--dim);
margin:1.2rem 0 .3rem}
main{padding:2rem 2.5rem;min-width:0}
h1{margin:0 0 .5rem;font-size:1.9rem}
section{border-top:1px solid var(--line);padding:1.6rem 0}
section h2{margin:0 0 .4rem;font-size:1.2rem;overflow-wrap:anywhere}
h3{margin:1.2rem 0 .4rem;font-size:.95rem}
code,pre{font:.875em/1.5 ui-monospace,monospace}
code{background:var(--soft);padding:.1em .3em;border-radius:4px;overflow-wrap:anywhere}
pre{background:var(--soft);border:1px solid var(--line);border-radius:6px;padding:.8rem;
overflow:auto;margin:.4rem 0}
.method{font:700 .8rem ui-monospace,monospace;margin-right:.5rem}
.get{color:var(--get)}.post{color:var(--post)}.delete,.bad{color:var(--bad)}
.dim{color:var(--dim)}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:left;vertical-align:top;padding:.35rem .6rem .35rem 0;
border-bottom:1px solid var(--line)}
th{font-weight:600;color:var(--dim)}
details{margin:.3rem 0}
summary{cursor:pointer}
@media(max-width:48rem){.all{display:block}nav{position:static;max-height:none;border-right:0;
border-bottom:1px solid var(--line)}main{padding:1.2rem}}
"""


def page(document: Node) -> str:
    """Return the page of an OpenAPI document."""
    drawn = _Page(document)
    info = document["info"]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(info['title'])} HTTP API</title><style>{STYLE}</style></head>"
        f'<body><div class="all"><nav aria-label="Calls">{drawn.index()}</nav><main>'
        f"<h1>{escape(info['title'])} <span class=dim>{escape(info['version'])}</span></h1>"
        f"{_prose(info['description'])}"
        f"<pre>{escape(_TRY)}</pre>"
        '<p><a href="/openapi.json">openapi.json</a></p>'
        f"{''.join(drawn.sections())}{drawn.shared()}</main></div></body></html>"
    )


_TRY = """KEY=$(turnlog apikey create --org local --role admin)
curl -H "Authorization: Bearer $KEY" http://127.0.0.1:8640/v1/runs/run_01..."""

# Every call has it among its answers: it is drawn once.
_SHARED = "#/components/schemas/Problem"
_ANY = "#/components/schemas/Json"


class _Page:
    def __init__(self, document: Node) -> None:
        self._schemas: Node = document["components"]["schemas"]
        self._calls = [
            (method, path, operation)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
        ]

    def index(self) -> str:
        tags: dict[str, list[str]] = {}
        for method, path, operation in self._calls:
            link = (
                f'<a href="#{escape(operation["operationId"])}">{_method(method)}{escape(path)}</a>'
            )
            tags.setdefault(operation["tags"][0], []).append(link)
        return "".join(f"<h2>{escape(tag)}</h2>{''.join(links)}" for tag, links in tags.items())

    def sections(self) -> Iterator[str]:
        for method, path, operation in self._calls:
            yield f'<section id="{escape(operation["operationId"])}">'
            yield f"<h2>{_method(method)}<code>{escape(path)}</code></h2>"
            yield f"<p><strong>{escape(operation.get('summary', ''))}</strong></p>"
            yield _prose(operation.get("description", ""))
            yield _roles(operation)
            yield from self._parameters(operation.get("parameters", ()))
            yield from self._body(operation)
            yield from self._answers(operation.get("responses", {}))
            yield "</section>"

    def shared(self) -> str:
        """Return what the answers of all calls refer to."""
        return (
            f'<section id="problem"><h2>Problem</h2>{self._schema({"$ref": _SHARED}, 0)}</section>'
        )

    def _parameters(self, parameters: list[Node]) -> Iterator[str]:
        if not parameters:
            return
        yield "<h3>Parameters</h3><table><tr><th>Name<th>In<th>Type<th>Meaning</tr>"
        for parameter in parameters:
            need = " <span class=bad>required</span>" if parameter.get("required") else ""
            yield f"<tr><td><code>{escape(parameter['name'])}</code>{need}"
            yield f"<td>{escape(parameter['in'])}<td>{self._type(parameter.get('schema', {}))}"
            yield f"<td>{_inline(parameter.get('description', ''))}</tr>"
        yield "</table>"

    def _body(self, operation: Node) -> Iterator[str]:
        body = operation.get("requestBody")
        if body is None:
            return
        limit = operation["x-turnlog-max-inflated-bytes"]
        yield f"<h3>Request body</h3><p class=dim>At most {limit:,} bytes after decompression.</p>"
        yield _prose(body.get("description", ""))
        yield from self._content(body["content"])

    def _answers(self, responses: Node) -> Iterator[str]:
        yield "<h3>Answers</h3>"
        for status, response in responses.items():
            bad = " class=bad" if status >= "400" else ""
            yield f"<details><summary><code{bad}>{escape(status)}</code> "
            yield f"{_inline(response['description'])}</summary>"
            for name, header in response.get("headers", {}).items():
                yield f"<p><code>{escape(name)}</code> {_inline(header.get('description', ''))}</p>"
            yield from self._content(response.get("content", {}))
            yield "</details>"

    def _content(self, content: Node) -> Iterator[str]:
        for media_type, media in content.items():
            schema = media.get("schema", {})
            shared = schema.get("$ref") == _SHARED
            link = ' <a href="#problem">Problem</a>' if shared else ""
            yield f"<p><code>{escape(media_type)}</code>{link}</p>"
            yield "" if shared else self._schema(schema, 0)
            yield from _examples(media)

    def _resolved(self, schema: Node) -> Node:
        name = schema.get("$ref", "").rpartition("/")[2]
        if not name:
            return schema
        # What stands beside a reference is said of this place.
        return {"title": name, **self._schemas[name], **schema}

    def _schema(self, schema: Node, depth: int) -> str:
        """Return a schema as a table of its fields, those within them folded away."""
        found = self._resolved(schema)
        if depth > 6 or schema.get("$ref") == _ANY:
            return ""
        parts = [_prose(found.get("description", "")) if depth == 0 else ""]
        parts += [self._fields(found, depth)] if found.get("properties") else []
        for name in ("oneOf", "anyOf"):
            for choice in found.get(name, ()):
                inner = self._schema(choice, depth + 1)
                parts.append(f"<details><summary>{self._type(choice)}</summary>{inner}</details>")
        if "items" in found:
            parts.append(self._schema(found["items"], depth + 1))
        return "".join(parts)

    def _fields(self, schema: Node, depth: int) -> str:
        required = schema.get("required", ())
        rows = []
        for name, field in schema["properties"].items():
            need = " <span class=bad>required</span>" if name in required else ""
            said = _inline(self._resolved(field).get("description", ""))
            inner = self._schema(field, depth + 1)
            folded = f"<details><summary>fields</summary>{inner}</details>" if inner else ""
            rows.append(
                f"<tr><td><code>{escape(name)}</code>{need}"
                f"<td>{self._type(field)}<td>{said}{folded}</tr>"
            )
        return f"<table><tr><th>Field<th>Type<th>Meaning</tr>{''.join(rows)}</table>"

    def _type(self, schema: Node) -> str:
        found = self._resolved(schema)
        kind = found.get("type", "")
        named = " or ".join(kind) if isinstance(kind, list) else kind
        if "items" in found:
            named = f"array of {self._plain(found['items'])}"
        words = [escape(named or found.get("title", "") or self._choices(found))]
        if "enum" in found:
            words.append(" ".join(f"<code>{_value(value)}</code>" for value in found["enum"]))
        words += [f"{label} {escape(str(found[name]))}" for name, label in _LIMITS if name in found]
        return "<br>".join(word for word in words if word)

    def _plain(self, schema: Node) -> str:
        found = self._resolved(schema)
        return str(found.get("title") or found.get("type") or self._choices(found))

    def _choices(self, schema: Node) -> str:
        return "one of" if {"oneOf", "anyOf", "enum"} & schema.keys() else "anything"


_LIMITS = (
    ("const", "always"),
    ("format", "format"),
    ("pattern", "pattern"),
    ("minimum", "at least"),
    ("maximum", "at most"),
    ("minLength", "length at least"),
    ("maxLength", "length at most"),
    ("minItems", "items at least"),
    ("maxItems", "items at most"),
    ("default", "default"),
)


def _examples(media: Node) -> Iterator[str]:
    shown = [("Example", media["example"])] if "example" in media else []
    shown += [
        (example.get("summary", name), example["value"])
        for name, example in media.get("examples", {}).items()
        if "value" in example
    ]
    for name, value in shown:
        text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
        yield f"<p class=dim>{escape(name)}</p><pre>{escape(text)}</pre>"


def _roles(operation: Node) -> str:
    roles = operation.get("x-turnlog-roles")
    if roles is None:
        return '<p class="dim">Open: needs no credential.</p>'
    return "<p class=dim>Roles: " + " ".join(f"<code>{escape(role)}</code>" for role in roles)


def _value(value: Any) -> str:
    return escape(value if isinstance(value, str) else json.dumps(value))


def _method(method: str) -> str:
    return f'<span class="method {escape(method)}">{escape(method.upper())}</span>'


def _prose(text: str) -> str:
    parts = [part for part in text.split("\n\n") if part.strip()]
    return "".join(f"<p>{_inline(part)}</p>" for part in parts)


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
