"""One event as its sender gives it, read into a draft or refused with the field named. Pure."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any, NamedTuple

from processors.usage import CLASSES
from serve.appending.answers import Answer, invalid, too_large
from serve.appending.catalogue import KINDS, Form, Kind
from serve.appending.values import readers, text, time_us, whole
from turnlog.errors import TooLarge, UsageError
from turnlog.events import TYPES
from turnlog.ids import shaped
from turnlog.keys.content import pack
from turnlog.producer.fields import ROLES, Names, as_bytes
from turnlog.producer.usage import Spoke, given_usage, usage_body

MAX_EVENT_BYTES = 8 << 20
"""Content of one event. An inline image has a few MB; 413 is for what is no single event."""

MAX_ID_CHARS = 1024
_SHOWN_CHARS = 64
_BASE64 = "$base64"
_BASICS = frozenset(("id", "type", "time", "org", "content"))
_QUALITIES = ("measured", "estimated", "unknown")
_OUTCOMES = ("success", "failure", "partial", "unknown")


class Scope(NamedTuple):
    """For whom events are appended.

    Attributes:
        org: the org's id, from the credential.
        project: the project that the credential is bound to; empty: to none.
        projects: those of the org.
        id_key: the org's, 32 bytes; secret.
        at_us: time at which the batch arrived, UTC microseconds.
    """

    org: str
    project: str
    projects: tuple[str, ...]
    id_key: bytes
    at_us: int

    def __repr__(self) -> str:
        return f"Scope({self.org}/{self.project})"


class Draft(NamedTuple):
    """An event that can be, before its key and identity are looked up.

    Attributes:
        n: place in its batch.
        id: what its sender calls it; empty: nothing.
        natural: what its identity is made of where its sender names it; empty: nothing.
        kind: its type.
        body: its fields, with org and occurred_at_us.
        content: its content, None where it has none.
        timed: whether its sender said when it happened.
    """

    n: int
    id: str
    natural: str
    kind: Kind
    body: dict[str, Any]
    content: dict[str, Any] | None
    timed: bool


def read_event(given: Any, n: int, scope: Scope, source: str = "") -> Draft | Answer:
    """Read one event.

    Args:
        given: a value of JSON.
        n: place in its batch.
        scope: for whom it is appended.
        source: CloudEvents' `source`, under which its `id` is one; empty: the org's own.

    Returns:
        The draft, or the answer `invalid` that names the field.
    """
    return _Reader(n, scope, source).read(given)


class _Reader:
    """Reads one event; `self._field` is what it is at, for the answer."""

    def __init__(self, n: int, scope: Scope, source: str) -> None:
        self._n = n
        self._scope = scope
        self._source = source
        self._names = Names(scope.id_key)
        self._field = ""
        self._id = ""

    def read(self, given: Any) -> Draft | Answer:
        try:
            return self._read(given)
        except TooLarge as error:
            return too_large(self._n, self._id, str(error))
        except UsageError as error:
            return invalid(self._n, self._id, self._field, str(error))

    def _read(self, given: Any) -> Draft:
        if not isinstance(given, Mapping):
            raise UsageError("an event is an object")
        self._id = self._read_id(given)
        kind = self._kind(given)
        self._check_org(given)
        at_us = self._time(given)
        body = self._body(given, kind)
        body |= {"org": self._scope.org, "occurred_at_us": at_us}
        self._check_project(body)
        self._check(kind, body)
        if kind.type.startswith("usage."):
            body = self._used(given, body)
        content = self._content(given, kind, body)
        natural = f"{self._source}\0{self._id}" if self._source else self._id
        return Draft(self._n, self._id, natural, kind, body, content, given.get("time") is not None)

    def _read_id(self, given: Mapping[str, Any]) -> str:
        self._field = "id"
        value = given.get("id")
        if value is None:
            return ""
        if not 0 < len(text(value)) <= MAX_ID_CHARS:
            raise UsageError(f"must have 1 to {MAX_ID_CHARS} characters")
        return str(value)

    def _kind(self, given: Mapping[str, Any]) -> Kind:
        self._field = "type"
        name = text(given.get("type", "")).removeprefix("turnlog.")
        kind = KINDS.get(name)
        if kind is not None:
            return kind
        if name in TYPES:
            raise UsageError("events of this type are not appended from outside")
        raise UsageError("there is no such type" if name else "an event needs a type")

    def _check_org(self, given: Mapping[str, Any]) -> None:
        self._field = "org"
        if given.get("org", self._scope.org) != self._scope.org:
            raise UsageError("the organisation is that of the credential")

    def _time(self, given: Mapping[str, Any]) -> int:
        self._field = "time"
        value = given.get("time")
        return self._scope.at_us if value is None else time_us(value)

    def _body(self, given: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
        read, body = readers(kind.type), {}
        for name, value in given.items():
            if name in _BASICS:
                continue
            self._field = shaped(name[:_SHOWN_CHARS]) or "other"
            if name not in kind.fields:
                takes = ", ".join(sorted(_BASICS | kind.fields))
                raise UsageError(f"{kind.type} takes no such field; it takes {takes}")
            if name != "usage":
                body[name] = read[name](value, self._names)
        for name in kind.needs:
            self._field = name
            if body.get(name) in (None, ""):
                raise UsageError(f"{kind.type} needs it")
        return body

    def _check_project(self, body: Mapping[str, Any]) -> None:
        self._field = "project"
        bound = self._scope.project
        if bound and body.get("project", bound) != bound:
            raise UsageError("the credential is bound to another project")

    def _check(self, kind: Kind, body: dict[str, Any]) -> None:
        self._field = "conversation"
        if not body.get("conversation") and not body.get("run"):
            raise UsageError(f"{kind.type} needs a conversation or a run")
        self._check_numbers(kind, body)
        if kind.type == "turn.appended":
            body["run"] = body.get("answer_run", "")
            self._one_of(body, "role", ROLES, "assistant" if body.get("answer_run") else "user")
        if kind.type == "task.outcome":
            self._one_of(body, "outcome", _OUTCOMES, "unknown")

    def _check_numbers(self, kind: Kind, body: Mapping[str, Any]) -> None:
        least = {"writer_epoch": 1 if kind.identity != "id" else 0, "seq": 0, "http_status": 0}
        for name, bound in least.items():
            self._field = name
            if body.get(name, bound) < bound:
                raise UsageError(f"must be at least {bound}")
        self._field = "writer_epoch"
        if body.get("writer_epoch") and not body.get("run"):
            raise UsageError("only a run's events are numbered")

    def _one_of(
        self, body: dict[str, Any], name: str, allowed: tuple[str, ...], default: str
    ) -> None:
        self._field = name
        if body.setdefault(name, default) not in allowed:
            raise UsageError(f"must be one of {', '.join(allowed)}")

    # Usage.

    def _used(self, given: Mapping[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        """Return the body with its classes, cost and quality, as a run's own end books them."""
        counted = {name: body[name] for name in CLASSES if name in body}
        self._field = "usage"
        block = given.get("usage")
        if block is not None and counted:
            raise UsageError("give the usage block or the classes, not both")
        provider, model = body.get("provider", ""), body.get("model", "")
        spoke = Spoke(provider, model)
        usage = given_usage(block or counted, spoke, model, body["occurred_at_us"])
        self._one_of(body, "quality", _QUALITIES, usage.quality)
        self._field = "sign"
        if body.setdefault("sign", 1) not in (1, -1):
            raise UsageError("must be 1 or -1")
        return usage_body(usage, spoke, model) | body

    # Content.

    def _content(
        self, given: Mapping[str, Any], kind: Kind, body: dict[str, Any]
    ) -> dict[str, Any] | None:
        self._field = "content"
        raw = given.get("content")
        if raw is not None and not isinstance(raw, Mapping):
            raise UsageError("must be an object")
        content = self._fields_of(raw or {}, kind)
        self._check_turn(kind, body, content)
        if kind.type == "chunk.batch":
            content["chunks"] = self._chunks(content.get("chunks", []), body)
        is_silent = not kind.subject or body.get("answer_run")
        if is_silent or not (content or self._names.source):
            return None
        if self._names.source:
            content["source"] = self._names.source
        return self._bounded(content)

    def _fields_of(self, raw: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for name, value in raw.items():
            self._field = f"content.{shaped(name[:_SHOWN_CHARS])}"
            form = kind.content.get(name)
            if form is None:
                takes = ", ".join(kind.content) or "none"
                raise UsageError(f"{kind.type} has no such content; it has {takes}")
            if value is not None:
                content[name] = _IN_FORM[form](value)
        return content

    def _check_turn(self, kind: Kind, body: Mapping[str, Any], content: Mapping[str, Any]) -> None:
        if kind.type != "turn.appended":
            return
        self._field = "content.text"
        if body.get("answer_run"):
            if content:
                raise UsageError("an answer names its run and has no text of its own")
        elif "text" not in content:
            raise UsageError("a turn needs its text, or answer_run")

    def _chunks(self, given: list[Any], body: dict[str, Any]) -> list[list[Any]]:
        self._field = "content.chunks"
        chunks = [_chunk(item) for item in given]
        if not chunks:
            raise UsageError("a batch needs chunks")
        body.setdefault("chunks", len(chunks))
        body.setdefault("chars", sum(len(chunk[3]) for chunk in chunks))
        body.setdefault("last_seq", body.get("first_seq", 0) + len(chunks) - 1)
        return chunks

    def _bounded(self, content: dict[str, Any]) -> dict[str, Any]:
        self._field = "content"
        if _at_most(content) > MAX_EVENT_BYTES and len(pack(content)) > MAX_EVENT_BYTES:
            raise TooLarge(f"content of one event is at most {MAX_EVENT_BYTES} bytes")
        return content


def _text(value: Any) -> str:
    # A lone surrogate of a provider's JSON is content and kept: frames hold it.
    if type(value) is not str:
        raise UsageError("must be text")
    return value


def content_bytes(value: Any) -> bytes:
    """Return text as UTF-8, `{"$base64": …}` as its bytes, any other JSON as JSON.

    Raises:
        UsageError: it is none of these.
    """
    if isinstance(value, Mapping) and value.keys() == {_BASE64}:
        try:
            return base64.b64decode(text(value[_BASE64]), validate=True)
        except binascii.Error:
            raise UsageError("is not base64") from None
    if isinstance(value, str | bytes | Mapping):
        return as_bytes(value, "it")
    return as_bytes({"": value}, "it")[4:-1]  # the JSON of any other value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise UsageError("must be a list")
    return value


_IN_FORM: Mapping[Form, Any] = {"text": _text, "bytes": content_bytes, "list": _list}
_CHUNK_FIELDS = ("offset_us", "choice", "kind", "text", "call", "id", "name")
_CHUNK_KINDS = ("text", "reasoning", "refusal", "tool_call")


def _chunk(item: Any) -> list[Any]:
    """Return a piece as `chunk.batch` packs it (`turnlog.producer.output`): a list of fields."""
    if isinstance(item, list) and len(item) <= len(_CHUNK_FIELDS):
        item = dict(zip(_CHUNK_FIELDS, item, strict=False))
    if not isinstance(item, Mapping) or not item.keys() <= frozenset(_CHUNK_FIELDS):
        raise UsageError(f"a chunk is an object of {', '.join(_CHUNK_FIELDS)}")
    kind = item.get("kind", "text")
    if kind not in _CHUNK_KINDS:
        raise UsageError(f"a chunk's kind is one of {', '.join(_CHUNK_KINDS)}")
    packed: list[Any] = [whole(item.get("offset_us", 0)), whole(item.get("choice", 0)), kind]
    packed.append(_text(item.get("text", "")))
    if kind == "tool_call":
        packed += [whole(item.get("call", 0)), *(_text(item.get(n, "")) for n in ("id", "name"))]
    return packed


def _at_most(value: Any) -> int:
    """Return what a content is at most in bytes, without packing it."""
    if isinstance(value, str):
        return 4 * len(value)
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_at_most(name) + _at_most(item) for name, item in value.items())
    return sum(map(_at_most, value)) if isinstance(value, list) else 9
