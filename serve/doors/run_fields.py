"""What a client says of a run, read with each wrong field named. Pure."""

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple, cast

from serve.appending.given import Scope, content_bytes
from serve.appending.values import text, whole
from serve.doors.problem import Problem
from turnlog.errors import UsageError
from turnlog.ids import SHAPE, client_id
from turnlog.keys.content import pack
from turnlog.producer.fields import DEFAULT_PROJECT, RunFields

Read = Callable[[Any], Any]

MAX_KEY_CHARS = 1024


class Asked(NamedTuple):
    """A run that a client wants to begin.

    Attributes:
        fields: as `turnlog.producer.fields.began` takes them.
        said: digest of what was asked, 16 bytes: the same again is a repeat.
        named: whether the client named the run, or a key that makes its name.
    """

    fields: RunFields
    said: bytes
    named: bool


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise UsageError("must be true or false")
    return value


def _texts(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise UsageError("must be an object")
    return {text(name): text(item) for name, item in value.items()}


def _spoken(value: Any) -> str:
    # Content: a lone surrogate of a provider's JSON is kept.
    if type(value) is not str:
        raise UsageError("must be text")
    return value


def _usage(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError("must be an object of numbers")
    return value


def _status(value: Any) -> int:
    status = whole(value)
    if not 0 <= status <= 999:
        raise UsageError("must be an HTTP status")
    return status


_OTHER: Mapping[str, Read] = {
    "request": content_bytes,
    "input": _spoken,
    "versions": _texts,
    "streaming": _flag,
}
# An import's word, and the org is the credential's.
_WITHHELD = frozenset(("org", "source_ref"))
_BEGINS: Mapping[str, Read] = {
    name: _OTHER.get(name, text) for name in RunFields.__annotations__ if name not in _WITHHELD
}
_USED: Mapping[str, Read] = {"response": content_bytes, "usage": _usage}
ENDS: Mapping[str, Mapping[str, Read]] = {
    "complete": {**_USED, "finish_reason": text, "model": text, "http_status": _status},
    "fail": {**_USED, "error": _spoken, "error_code": text, "http_status": _status, "model": text},
    "cancel": _USED,
}
"""What may be said of each end, and how it is read."""


def read_asked(body: Any, key: str | None, scope: Scope) -> Asked:
    """Read the body that creates a run.

    Args:
        body: JSON.
        key: the header Idempotency-Key, None where there is none.
        scope: for whom.

    Raises:
        Problem: 400, with the field; 404, there is no such project.
    """
    org, project, projects = scope.org, scope.project, scope.projects
    given = dict(body) if isinstance(body, Mapping) else body
    if isinstance(given, dict) and given.get("org") == org:
        del given["org"]
    fields = read_fields(given, _BEGINS)
    bound = fields.setdefault("project", project or DEFAULT_PROJECT)
    if bound not in projects or (project and bound != project):
        raise Problem(404, "not_found", "there is no such project", "project")
    said = digest(fields)
    _name(fields, key, scope.id_key)
    named = bool(fields.get("run"))
    return Asked(cast(RunFields, fields | {"org": org}), said, named)


def _name(fields: dict[str, Any], key: str | None, id_key: bytes) -> None:
    """Give the run, and its answer's turn, the names that its idempotency key makes."""
    if key is not None and not (0 < len(key) <= MAX_KEY_CHARS and key.isascii()):
        raise _wrong("Idempotency-Key", f"must have 1 to {MAX_KEY_CHARS} ASCII characters")
    own = fields.get("idempotency_key", "")
    if key and own and key != own:
        differs = "differs from the header Idempotency-Key"
        raise Problem(409, "conflict", differs, "idempotency_key")
    key = key or own
    if not key:
        return
    fields["idempotency_key"] = key
    # The colon makes it no id, so that it is always keyed with the org's id key.
    if not fields.get("run"):
        fields["run"] = client_id(f"key:{key}", id_key, "run")
    if fields.get("conversation") and not fields.get("turn"):
        fields["turn"] = client_id(f"key:{key}", id_key, "turn")


def read_fields(body: Any, readers: Mapping[str, Read]) -> dict[str, Any]:
    """Read an object field by field; what is null is left out.

    Raises:
        Problem: 400, with the field.
    """
    if not isinstance(body, Mapping):
        raise Problem(400, "invalid", "the body must be an object")
    found = {}
    for name, value in body.items():
        if name not in readers:
            raise _wrong(name, f"there is no such field; there are {', '.join(readers)}")
        if value is None:
            continue
        try:
            found[name] = readers[name](value)
        except UsageError as error:
            raise _wrong(name, str(error)) from None
    return found


def _wrong(field: str, detail: str) -> Problem:
    return Problem(400, "invalid", detail, field if SHAPE.fullmatch(field) else "other")


def digest(said: Mapping[str, Any]) -> bytes:
    """Return a digest of 16 bytes of what a call says."""
    return sha256(pack(said)).digest()[:16]
