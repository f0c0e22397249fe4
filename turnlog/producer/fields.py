"""What a caller says about a run or turn, brought into the form that events hold."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, Required, TypedDict, get_args, get_origin

import orjson

from turnlog.errors import UsageError
from turnlog.ids import client_id, is_id, new_id, shaped
from turnlog.keys import Grant, Locator
from turnlog.producer.usage import Spoke

Content = bytes | str | Mapping[str, Any]

DEFAULT_PROJECT = "default"
ROLES = ("user", "assistant", "tool", "system", "developer")


class RunFields(TypedDict, total=False):
    """Everything that `Producer.run` takes; only `org` must be given.

    user, conversation, run, turn and parent_run may be any text: what is not an id is stored as
    one that nobody without the org's id key can connect with it, and kept in the frame.

    Keys:
        org: must be named by the producer's credential.
        project: `default` when left out.
        user: who acts.
        conversation: conversation that the run answers in; left out: none.
        run: the run's id; made when left out.
        turn: id of the answer's turn; made when left out. Only with a conversation.
        provider: provider of the model, such as `openai`.
        model: model asked for.
        request: the request as sent. A mapping is written as JSON.
        method: HTTP method of the request, like host, path and content_type kept in the frame.
        host: see method.
        path: see method.
        content_type: see method.
        input: text of the input turn that this run answers. Only with a conversation.
        input_role: who speaks in it, `user` when left out.
        region: region of the provider that serves it.
        run_group: group of runs that belong together.
        versions: versions in force by what they version: prompt, model, index, tool.
        idempotency_key: the client's, for the run.
        source_ref: id that an import's source gives to the exchange.
        streaming: True when the answer was asked for as a stream.
        parent_run: run that started this one.
        correlation_id: groups events across runs and services.
        causation_id: what caused the run.
        traceparent: W3C trace context.
    """

    org: Required[str]
    project: str
    user: str
    conversation: str
    run: str
    turn: str
    provider: str
    model: str
    request: Content
    method: str
    host: str
    path: str
    content_type: str
    input: str
    input_role: str
    region: str
    run_group: str
    versions: Mapping[str, str]
    idempotency_key: str
    source_ref: str
    streaming: bool
    parent_run: str
    correlation_id: str
    causation_id: str
    traceparent: str


_PLAIN = {str: "text", int: "a whole number", bool: "True or False", bytes: "bytes"}
_TRACE = ("correlation_id", "causation_id", "traceparent")
# Fields that the events of a run's beginning and end share, beside the common ones.
_DESCRIBES = ("provider", "model", "region", "run_group", "idempotency_key")
_REQUEST = ("method", "host", "path", "content_type")


class Names:
    """Turns what a client brought into ids and values, and remembers what it replaced."""

    def __init__(self, id_key: bytes) -> None:
        self._id_key = id_key
        self.source: dict[str, str] = {}

    def id(self, kind: str, value: str, field: str = "") -> str:
        """Return a value as an id; the empty one stays empty.

        Raises:
            UsageError: it is not Unicode text (lone surrogates).
        """
        if not value or is_id(value):
            return value
        try:
            stored = client_id(value, self._id_key, kind)
        except UnicodeEncodeError:
            raise UsageError(f"{field or kind} is not Unicode text") from None
        self.source[field or kind] = value
        return stored

    def value(self, field: str, value: str) -> str:
        """Return a value in its shape, `other` where it has none."""
        stored = shaped(value)
        if stored != value:
            self.source[field] = value
        return stored


class Began(NamedTuple):
    """A run's fields as its events hold them.

    Attributes:
        common: fields that every event of the run shares.
        describes: provider, model, region, run group, versions, idempotency key.
        created: what only `run.created` has.
        request: content of `run.created`.
        spoke: with whom, for reading usage.
        input: text of the input turn, None where there is none.
        input_role: who speaks in it.
        locator: where the run's keys sit, None for one that begins now.
    """

    common: dict[str, Any]
    describes: dict[str, Any]
    created: dict[str, Any]
    request: dict[str, Any]
    spoke: Spoke
    input: str | None
    input_role: str
    locator: Locator | None = None


def began(given: RunFields, grant: Grant) -> Began:
    """Check a run's fields and bring them into form.

    Raises:
        UsageError: a field is unknown, of the wrong type, or not allowed by the credential.
    """
    fields: Mapping[str, Any] = given
    check_fields(fields, RunFields, "a run")
    org, project = allowed(grant, fields["org"], fields.get("project", DEFAULT_PROJECT))
    names = Names(grant.id_key(org))
    conversation = names.id("conversation", fields.get("conversation", ""))
    if not conversation and ("input" in fields or "turn" in fields):
        raise UsageError("a turn needs a conversation")
    role = checked_role(fields.get("input_role", "user"))
    common = {
        "org": org,
        "project": project,
        "conversation": conversation,
        "run": names.id("run", fields.get("run", "")) or new_id("run"),
        "turn": names.id("turn", fields.get("turn", "")) if conversation else "",
        "user": names.id("user", fields.get("user", "")),
        "writer_epoch": 1,
        **{field: names.value(field, fields.get(field, "")) for field in _TRACE},
    }
    if conversation and not common["turn"]:
        common["turn"] = new_id("turn")
    describes: dict[str, Any] = {
        field: names.value(field, fields.get(field, "")) for field in _DESCRIBES
    }
    describes["versions"] = _versions(names, fields.get("versions", {}))
    created = {
        "source_ref": names.value("source_ref", fields.get("source_ref", "")),
        "streaming": fields.get("streaming", False),
        "parent_run": names.id("run", fields.get("parent_run", ""), "parent_run"),
    }
    return Began(
        common,
        describes,
        created,
        _request(fields, names.source),
        Spoke(*(fields.get(name, "") for name in ("provider", "model", "method", "host", "path"))),
        fields.get("input"),
        role,
    )


def checked_role(role: str) -> str:
    """Return a turn's role if it is one.

    Raises:
        UsageError: it is none.
    """
    if role not in ROLES:
        raise UsageError(f"a turn's role is one of {', '.join(ROLES)}")
    return role


def allowed(grant: Grant, org: str, project: str) -> tuple[str, str]:
    """Return org and project if the credential names them.

    Raises:
        UsageError: it does not. A project that does not exist and another org's are told alike.
    """
    if org not in grant.orgs:
        raise UsageError(f"the credential does not name org {org[:64]!r}")
    if project not in grant.projects(org):
        raise UsageError(f"org {org} has no project {project[:64]!r}")
    return org, project


def as_bytes(value: Content, field: str) -> bytes:
    """Return a request or response as the bytes that are stored; a mapping becomes JSON.

    Raises:
        UsageError: it is neither bytes, text nor a mapping of JSON values.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        # What JSON of a client may bring as `\ud83d` alone has no UTF-8; keep it all the same.
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, Mapping):
        return _json(value, field)
    raise UsageError(f"{field} must be bytes, text or a mapping")


def _json(value: Mapping[str, Any], field: str) -> bytes:
    try:
        return orjson.dumps(dict(value))
    except TypeError:
        pass
    try:  # orjson refuses lone surrogates and integers over 64 bits
        return json.dumps(dict(value), separators=(",", ":")).encode()
    except (RecursionError, TypeError, ValueError):
        raise UsageError(f"{field} holds what JSON cannot") from None


def check_fields(fields: Mapping[str, Any], shape: Any, what: str) -> None:
    """Check the names and types of what a caller gave against a TypedDict.

    Raises:
        UsageError: a field is missing, unknown or of the wrong type; its value is never named.
    """
    known = _types(shape)
    unknown = fields.keys() - known.keys()
    if unknown:
        raise UsageError(f"{what} has no field {min(unknown)}")
    missing = shape.__required_keys__ - fields.keys()
    if missing:
        raise UsageError(f"{what} needs {min(missing)}")
    for name, value in fields.items():
        wanted = known[name]
        if wanted is not None and type(value) is not wanted:
            raise UsageError(f"{name} must be {_PLAIN[wanted]}")


@cache
def _types(shape: Any) -> Mapping[str, type | None]:
    """Return the type that each field of a TypedDict must have, None where it may have several."""
    plain = {
        name: get_args(annotation)[0] if get_origin(annotation) is Required else annotation
        for name, annotation in shape.__annotations__.items()
    }
    return {name: kind if kind in _PLAIN else None for name, kind in plain.items()}


def _versions(names: Names, versions: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(versions, Mapping) or not all(
        isinstance(part, str) for item in versions.items() for part in item
    ):
        raise UsageError("versions must be a mapping of text to text")
    return {
        names.value("versions", name): names.value(f"versions.{name}", value)
        for name, value in versions.items()
    }


def _request(fields: Mapping[str, Any], source: dict[str, str]) -> dict[str, Any]:
    content: dict[str, Any] = {name: fields[name] for name in _REQUEST if fields.get(name)}
    if "request" in fields and fields["request"] is not None:
        content["request"] = as_bytes(fields["request"], "request")
    if source:
        content["source"] = source
    return content
