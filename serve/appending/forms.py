"""The forms in which a request may bring events, each read into a list of them. Pure.

JSON: one event, a list of them, or `{"events": [...]}`. CloudEvents 1.0 (HTTP protocol binding and
JSON event format): structured, batched, binary. Avro: one object with its fingerprint, or a
container of one of our schemas.
"""

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from typing import Any, NamedTuple
from urllib.parse import unquote

import fastavro
from fastavro.schema import SchemaParseException, fingerprint, to_parsing_canonical_form

from serve.appending.answers import Answer, invalid
from serve.appending.batch import Given
from serve.appending.values import plain, text
from turnlog.errors import DecodeError, FrameError, UsageError
from turnlog.events import TYPES, decode
from turnlog.events.codec import REFUSALS
from turnlog.events.schema import EventType, by_fingerprint
from turnlog.ids import uuid_text
from turnlog.keys.content import unpack

JSON = "application/json"
CLOUDEVENT, CLOUDEVENTS = "application/cloudevents+json", "application/cloudevents-batch+json"
AVRO = frozenset(("avro/binary", "application/avro", "application/vnd.apache.avro"))
MEDIA_TYPES = (JSON, CLOUDEVENT, CLOUDEVENTS, *sorted(AVRO))

MAX_EVENTS = 1000
"""Of one request: what is answered together also waits together."""

MAX_SOURCE_CHARS = 1024

_OBJECT, _CONTAINER = b"\xc3\x01", b"Obj\x01"
_CE = "ce-"
_SPEC = "1.0"
# What our own writers fill in.
_FILLED = frozenset(
    (
        "frame",
        "content_mac",
        "producer_seq",
        "producer_id",
        "producer_epoch",
        "may_repeat",
        "key_tree",
        "key_day",
        "key_gen",
        "schema_version",
        "time_basis",
        "status",
        "event_id",
        "occurred_at_us",
    )
)

Event = Given | Answer
ReadJson = Callable[[bytes], Any]


class Request(NamedTuple):
    """The events of a request.

    Attributes:
        events: in order.
        alone: whether its form is that of a single event, which the HTTP status answers.
    """

    events: list[Event]
    alone: bool


class Unreadable(NamedTuple):
    """Why a whole request cannot be read.

    Attributes:
        status: 400, 413 or 415.
        detail: for a person.
        field: the header that is wrong, empty where none is.
    """

    status: int
    detail: str
    field: str = ""


def read_request(
    media_type: str, headers: Mapping[str, str], data: bytes, read_json: ReadJson
) -> Request | Unreadable:
    """Return the events of a request.

    Args:
        media_type: its content type, without parameters.
        headers: of the request; those of CloudEvents begin with `ce-`.
        data: its inflated body.
        read_json: reads strict JSON.
    """
    if "ce-specversion" in headers:
        return Request([_binary(media_type, headers, data, read_json)], alone=True)
    if media_type in AVRO:
        return _avro(data)
    if media_type == CLOUDEVENT:
        return Request([_structured(read_json(data))], alone=True)
    if media_type == CLOUDEVENTS:
        return _listed(read_json(data), _structured)
    if media_type in (JSON, ""):
        return read_plain(read_json(data))
    return Unreadable(415, f"events come as {', '.join(MEDIA_TYPES)}", "Content-Type")


def read_plain(value: Any) -> Request | Unreadable:
    """Return the events of a JSON document."""
    if isinstance(value, Mapping):
        if "events" not in value or "type" in value:
            return Request([Given(value)], alone=True)
        if value.keys() != {"events"}:
            return Unreadable(400, "beside `events` a batch has nothing")
        value = value["events"]
    return _listed(value, Given)


def _listed(value: Any, read: Callable[[Any], Event]) -> Request | Unreadable:
    if not isinstance(value, list):
        return Unreadable(400, "a batch is a list of events")
    if len(value) > MAX_EVENTS:
        return Unreadable(413, f"a batch has at most {MAX_EVENTS} events")
    return Request([read(item) for item in value], alone=False)


# CloudEvents.


def _structured(value: Any) -> Event:
    """Read a CloudEvent in its JSON format."""
    if not isinstance(value, Mapping):
        return invalid(0, "", "", "a CloudEvent is an object")
    attributes = {name: item for name, item in value.items() if name not in ("data", "data_base64")}
    data = value.get("data")
    if "data_base64" in value:
        try:
            raw = base64.b64decode(value["data_base64"], validate=True)
        except (TypeError, ValueError, binascii.Error):
            return invalid(0, _id_of(attributes), "data_base64", "is not base64")
        return _of_object(attributes, raw)
    return _with_data(attributes, data)


def _binary(media_type: str, headers: Mapping[str, str], data: bytes, read_json: ReadJson) -> Event:
    """Read a CloudEvent whose attributes are headers and whose data is the body."""
    attributes = {
        name[len(_CE) :].lower(): unquote(value)
        for name, value in headers.items()
        if name.lower().startswith(_CE)
    }
    if media_type in AVRO:
        return _of_object(attributes, data)
    if media_type not in (JSON, ""):
        return invalid(0, _id_of(attributes), "datacontenttype", "must be JSON or Avro")
    return _with_data(attributes, read_json(data) if data else None)


def _with_data(attributes: Mapping[str, Any], data: Any) -> Event:
    if data is not None and not isinstance(data, Mapping):
        return invalid(0, _id_of(attributes), "data", "must be an object: the event's fields")
    twice = {"id", "type", "time"} & (data or {}).keys()
    if twice:
        return invalid(0, _id_of(attributes), f"data.{min(twice)}", "is an attribute")
    return _event(attributes, data or {})


def _of_object(attributes: Mapping[str, Any], data: bytes) -> Event:
    """Read a CloudEvent whose data is one Avro object of ours."""
    try:
        event = decode(data)
        fields = _fields(TYPES[event.type], event.body)
    except (DecodeError, FrameError, UsageError) as error:
        return invalid(0, _id_of(attributes), "data", str(error))
    if str(attributes.get("type")).removeprefix("turnlog.") != event.type:
        return invalid(0, _id_of(attributes), "type", "is not that of the data")
    return _event(attributes, {n: v for n, v in fields.items() if n not in ("type", "time", "id")})


def _event(attributes: Mapping[str, Any], data: Mapping[str, Any]) -> Event:
    """Put the attributes of a CloudEvent and the fields of its data together."""
    id_ = _id_of(attributes)
    if attributes.get("specversion") != _SPEC:
        return invalid(0, id_, "specversion", f"must be {_SPEC}")
    for name in ("id", "source", "type"):
        if not isinstance(attributes.get(name), str) or not attributes[name]:
            return invalid(0, id_, name, "a CloudEvent needs it")
    source: str = attributes["source"]
    try:
        if len(text(source)) > MAX_SOURCE_CHARS:
            return invalid(0, id_, "source", f"has at most {MAX_SOURCE_CHARS} characters")
    except UsageError as error:
        return invalid(0, id_, "source", str(error))
    given = dict(data)
    for name in ("id", "type", "time"):
        if attributes.get(name) is not None:
            given[name] = attributes[name]
    if attributes.get("traceparent") and "traceparent" not in given:
        given["traceparent"] = attributes["traceparent"]
    return Given(given, source)


def _id_of(attributes: Mapping[str, Any]) -> str:
    id_ = attributes.get("id")
    return id_ if isinstance(id_, str) and len(id_) <= 64 and id_.isprintable() else ""


# Avro.


def _avro(data: bytes) -> Request | Unreadable:
    if data[:2] == _OBJECT:
        try:
            event = decode(data)
            return Request([Given(_fields(TYPES[event.type], event.body))], alone=True)
        except (DecodeError, FrameError, UsageError) as error:
            return Unreadable(400, str(error))
    if data[:4] != _CONTAINER:
        return Unreadable(400, "neither one Avro object with its fingerprint nor a container")
    return _container(data)


def _container(data: bytes) -> Request | Unreadable:
    try:
        reader = fastavro.reader(BytesIO(data))
        kind = _kind_of(reader.writer_schema)
        if reader.codec != "null":
            return Unreadable(400, "the container is compressed: compress the body instead")
        events: list[Event] = []
        for body in reader:
            if len(events) == MAX_EVENTS:
                return Unreadable(413, f"a container has at most {MAX_EVENTS} events")
            events.append(_given(kind, body, len(events)))
    except DecodeError as error:
        return Unreadable(400, str(error))
    except (*REFUSALS, OSError, RecursionError, SchemaParseException):
        return Unreadable(400, "the container cannot be read")
    return Request(events, alone=False)


def _kind_of(schema: Any) -> EventType:
    """Return the version of the type that a container holds.

    Raises:
        UnknownSchema: it is none of ours.
    """
    mark = fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")
    return by_fingerprint(bytes.fromhex(mark))


def _given(kind: EventType, body: Any, n: int) -> Event:
    try:
        return Given(_fields(kind, body))
    except (FrameError, UsageError) as error:
        return invalid(n, "", "frame", str(error))


def _fields(kind: EventType, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return an Avro body as the fields that JSON would have.

    Raises:
        FrameError: `frame` is not the content as a msgpack map.
        UsageError: the content has what frames cannot hold.
    """
    fields: dict[str, Any] = {"type": kind.name, "time": body["occurred_at_us"]}
    fields |= {name: _plain(value) for name, value in _said(kind, body)}
    if any(body["event_id"]):
        fields["id"] = uuid_text(body["event_id"])
    if body["frame"]:
        fields["content"] = plain(unpack(body["frame"]))
    return fields


def _said(kind: EventType, body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields that say something: in Avro every field is there, most of them empty."""
    for field in kind.fields:
        value = body[field.name]
        # The org has no default, and is the credential's where nothing is said of it.
        is_said = value != field.default and (value or field.name != "org")
        if field.name not in _FILLED and is_said:
            yield field.name, value


def _plain(value: Any) -> Any:
    return uuid_text(value) if isinstance(value, bytes) else value
