"""From a body and its content to a record in a lane: seal, number, encode, hand over."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from turnlog.errors import UsageError
from turnlog.events import TYPES, Encoder, Record, key_of
from turnlog.events.schema import COMMON
from turnlog.ids import event_id, new_id
from turnlog.keys import DataKey, Grant, Locator, Subject, seal_content
from turnlog.producer.transport import Lane, Position, Transport

Body = Mapping[str, Any]

_SHARED = frozenset(field.name for field in (*COMMON[:3], *COMMON[10:]))
# Their partition is that of the org, not of the key; the keeper and the sinks write them.
_NOT_OURS = frozenset(("turnlog.directory", "turnlog.packs"))


class _Way(NamedTuple):
    """How events of one type go out."""

    record: Callable[[Mapping[str, Any]], Record]
    lane: Lane


class Writer:
    """Writes events under one producer id and epoch. Lives on the event loop's thread.

    Args:
        transport: takes the records.
        grant: says which orgs may be written for and derives the data keys; may be renewed.
    """

    def __init__(self, transport: Transport, grant: Grant) -> None:
        self.transport = transport
        self.grant = grant
        self.producer_id = new_id("producer")

    def append(
        self,
        type: str,
        body: Body,
        content: Mapping[str, Any] | None = None,
        subject: Subject | None = None,
        locator: Locator | None = None,
    ) -> asyncio.Future[Position]:
        """Hand a single event over; see `Producer.append`."""
        shared = {name: value for name, value in body.items() if name in _SHARED}
        own = {name: value for name, value in body.items() if name not in _SHARED}
        if locator is not None:
            shared["key_tree"], shared["key_day"], shared["key_gen"] = locator
        if "event_id" not in own:
            own["event_id"] = natural_event_id(type, body)
        key = None
        if content is not None:
            if subject is None or locator is None:
                raise UsageError(f"{type} has content: say whose it is and under which locator")
            key = self.grant.data_key(locator, subject)
        return Stream(self, shared, subject.id if subject else "").put(type, own, content, key)


class Stream:
    """Events that share their constant fields, such as those of one run: packed once a type.

    Args:
        writer: whose events they are.
        shared: org, conversation, run and the common fields that are the same in all of them, key
            locator included.
        subject_id: id of the run, turn or artefact whose content they hold.

    Raises:
        UsageError: the credential does not name the org.
    """

    def __init__(self, writer: Writer, shared: Mapping[str, Any], subject_id: str) -> None:
        self._org = str(shared.get("org", ""))
        if self._org not in writer.grant.orgs:
            raise UsageError(f"the credential does not name org {self._org[:64]!r}")
        self._transport = writer.transport
        self._shared = {
            **shared,
            "producer_id": writer.producer_id,
            "producer_epoch": writer.transport.producer_epoch,
        }
        self._subject_id = subject_id
        self._tree = shared.get("key_tree", b"")
        self._writer_epoch = shared.get("writer_epoch", 0)
        self._ways: dict[str, _Way] = {}
        self._encoder: Encoder | None = None

    def put(
        self,
        type: str,
        own: dict[str, Any],
        content: Mapping[str, Any] | None = None,
        key: DataKey | None = None,
    ) -> asyncio.Future[Position]:
        """Seal, number and encode an event, and hand it to the transport.

        Args:
            type: event type.
            own: the fields that are not shared, `event_id` and `occurred_at_us` at least; frame,
                content_mac and producer_seq are filled in, in place.
            content: content fields; None: the event has none.
            key: what they are sealed under.

        Raises:
            UsageError: a field does not fit.
            TooLarge: the frame is over 786,432 bytes or the record over 950,000.
            Unavailable: the transport takes nothing.
        """
        record, lane = self._ways.get(type) or self._way(type)
        if content is not None and key is not None:
            own["frame"], own["content_mac"] = seal_content(
                key,
                content,
                org=self._org,
                tree=self._tree,
                event_id=own["event_id"],
                subject_id=self._subject_id,
                writer_epoch=self._writer_epoch,
                seq=own.get("seq", 0),
                kind=type,
            )
        own["producer_seq"] = lane.next_seq
        _, key_bytes, value, headers, _ = record(own)
        return self._transport.send(lane, key_bytes, value, headers)

    def _way(self, type: str) -> _Way:
        kind = TYPES.get(type)
        if kind is None or kind.topic in _NOT_OURS:
            raise UsageError(f"a producer writes no {type[:64]!r}")
        first = self._encoder
        encoder = first.sibling(type) if first else Encoder(type, self._shared)
        self._encoder = encoder
        key = encoder.key or key_of(type, self._shared)
        way = _Way(encoder.record, self._transport.lane(kind.topic, key))
        self._ways[type] = way
        return way


def natural_event_id(type: str, body: Body) -> bytes:
    """Return the identity of a run's event: natural id `epoch/seq` (DESIGN.md section 3).

    Raises:
        UsageError: the event is not a run's, so its writer must say what makes it one of its kind.
    """
    if not body.get("run") or not body.get("writer_epoch"):
        raise UsageError(f"{type} needs event_id: it has no writer epoch and seq of its own")
    return event_id(body["org"], body["run"], type, f"{body['writer_epoch']}/{body.get('seq', 0)}")
