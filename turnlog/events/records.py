"""Kafka records: key, headers and value, all written from the body and from nothing else."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from turnlog.errors import UsageError
from turnlog.events.codec import complete, write
from turnlog.events.schema import EventType, event_type
from turnlog.ids import stream_key, uuid_text

Headers = list[tuple[str, bytes]]

STREAM_TOPICS = frozenset(
    ("turnlog.runs", "turnlog.run-chunks", "turnlog.turns", "turnlog.usage", "turnlog.refusals")
)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_ORGLESS = frozenset(("ledger.mark", "finalizer.tick"))
"""Written by a part of the stack about a partition, for no org."""


class Record(NamedTuple):
    """What goes to Kafka.

    Attributes:
        topic: Topic.
        key: Key, of which the body is the authority.
        value: The event in single-object encoding.
        headers: CloudEvents 1.0 in the binary mode of its Kafka binding.
        partition_by: Bytes whose murmur2 picks the partition: the key, except in topics that are
            partitioned by org alone.
    """

    topic: str
    key: bytes
    value: bytes
    headers: Headers
    partition_by: bytes


Body = Mapping[str, Any]


def _stream(body: Body) -> bytes:
    return stream_key(body["org"], body["conversation"], body["run"])


def _ledger(body: Body) -> bytes:
    parts = (body["producer_id"], body["topic"], body["partition"], body["producer_epoch"])
    return "/".join(map(str, parts)).encode()


def _org(body: Body) -> bytes:
    org: str = body["org"]
    return org.encode()


def _directory(body: Body) -> bytes:
    return f"{body['org']}/{body['kind']}/{body['id']}".encode()


def _erasure(body: Body) -> bytes:
    return f"{body['org']}/{body['request']}".encode()


def _pack(body: Body) -> bytes:
    return f"{body['org']}/{body['object']}".encode()


_KEYS: Mapping[str, Callable[[Body], bytes]] = {
    **dict.fromkeys(STREAM_TOPICS, _stream),
    "turnlog.ledger": _ledger,
    "turnlog.directory": _directory,
    "turnlog.billing": _org,
    "turnlog.audit": _org,
    "turnlog.erasures": _erasure,
    "turnlog.packs": _pack,
}
_BY_ORG = frozenset(("turnlog.directory", "turnlog.packs"))


def record_key(kind: EventType, body: Body) -> bytes:
    """Return the Kafka key of a complete body."""
    return _KEYS[kind.topic](body)


def partition_by(kind: EventType, body: Body, key: bytes) -> bytes:
    """Return the bytes whose murmur2 picks the partition: the key's, or the org's."""
    return _org(body) if kind.topic in _BY_ORG else key


def require_subject(kind: EventType, body: Body) -> None:
    """Look whether a complete body names what its key needs.

    Raises:
        UsageError: it does not.
    """
    if not body["org"] and kind.name not in _ORGLESS:
        raise UsageError(f"{kind.name} needs org")
    if kind.topic in STREAM_TOPICS and not body["conversation"] and not body["run"]:
        raise UsageError(f"{kind.name} needs a conversation or a run")


def run_headers(kind: EventType, body: Body) -> tuple[Headers, Headers]:
    """Return the headers before and after `ce_id`, which alone differs between a run's events."""
    org = body["org"]
    before = [("ce_specversion", b"1.0")]
    after = [
        ("ce_source", f"/turnlog/{org}".encode() if org else b"/turnlog"),
        ("ce_type", f"turnlog.{kind.name}".encode()),
        ("content-type", b"application/avro"),
    ]
    if _TRACEPARENT.fullmatch(body["traceparent"]):
        after.append(("traceparent", body["traceparent"].encode()))
    return before, after


def record(type: str, body: Body) -> Record:
    """Return the Kafka record of an event.

    Raises:
        UsageError: no such type, or a body that does not fit it.
        TooLarge: the value is over 950,000 bytes.
    """
    kind = event_type(type)
    full = complete(kind, body)
    require_subject(kind, full)
    value = write(kind, full)
    before, after = run_headers(kind, full)
    headers = [*before, ("ce_id", uuid_text(full["event_id"]).encode()), *after]
    key = record_key(kind, full)
    return Record(kind.topic, key, value, headers, partition_by(kind, full, key))


def key_of(type: str, body: Body) -> bytes:
    """Return the Kafka key that a decoded event must have; the body is the authority.

    Raises:
        UsageError: no such type.
    """
    return record_key(event_type(type), body)
