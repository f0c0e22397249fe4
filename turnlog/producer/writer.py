"""From a body and its content to a record in a lane: seal, number, encode, hand over."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from turnlog.errors import TooLarge, UsageError
from turnlog.events import TYPES, Constants, Encoder, Record, key_of
from turnlog.events.schema import COMMON
from turnlog.ids import event_id
from turnlog.keys import MAX_FRAME_BYTES, DataKey, Grant, Locator, Sealer, Subject
from turnlog.producer.large import carrying, sealed_large
from turnlog.producer.transport import Lane, Position, Transport

Body = Mapping[str, Any]

_SHARED = frozenset(field.name for field in (*COMMON[:3], *COMMON[10:]))
# Their partition is that of the org, not of the key; the keeper and the sinks write them.
_NOT_OURS = frozenset(("turnlog.directory", "turnlog.packs"))


class Way:
    """How the events of one type of a stream go out.

    Attributes:
        record: makes the Kafka record of an event's own fields.
        lane: where it goes.
        prefix: of the event ids, where a run numbers them.
        next_seq: a list of one, shared by the types of a topic.
    """

    __slots__ = ("lane", "next_seq", "prefix", "record")

    def __init__(self, record: Callable[[Mapping[str, Any]], Record], lane: Lane) -> None:
        self.record = record
        self.lane = lane
        self.prefix = b""
        self.next_seq = [0]


class Writer:
    """Writes events under one producer id and epoch. Lives on the event loop's thread.

    Attributes:
        refusal: why it takes nothing any more, where it does not.

    Args:
        transport: takes the records.
        grant: says which orgs may be written for and derives the data keys; may be renewed.
    """

    def __init__(self, transport: Transport, grant: Grant) -> None:
        self.transport = transport
        self.grant = grant
        self.producer_id = transport.producer_id
        self.refusal = ""
        self._loop = asyncio.get_running_loop()

    def check(self) -> None:
        """Make sure that this is the process and the event loop that the producer was opened in.

        Raises:
            UsageError: it is not.
        """
        if self.refusal:
            raise UsageError(self.refusal)
        if _running_loop() is not self._loop:
            raise UsageError(
                "a Producer belongs to the event loop that opened it; threads use SyncProducer"
            )

    def append(
        self,
        type: str,
        body: Body,
        content: Mapping[str, Any] | None = None,
        subject: Subject | None = None,
        locator: Locator | None = None,
    ) -> asyncio.Future[Position]:
        """Hand a single event over; see `Producer.append`."""
        stream, own, sealer = self.single(type, body, content, subject, locator)
        return stream.hand_over(stream.way(type), type, own, content, sealer)

    async def append_large(
        self,
        type: str,
        body: Body,
        content: Mapping[str, Any],
        subject: Subject,
        locator: Locator,
    ) -> asyncio.Future[Position]:
        """Do as `append` with content that may not fit a record."""
        stream, own, sealer = self.single(type, body, content, subject, locator)
        assert sealer is not None  # it has content
        return await stream.hand_over_large(stream.way(type), type, own, content, sealer)

    def single(
        self,
        type: str,
        body: Body,
        content: Mapping[str, Any] | None,
        subject: Subject | None,
        locator: Locator | None,
    ) -> tuple["Stream", dict[str, Any], Sealer | None]:
        """Return a stream of one event, the event's own fields, and what seals its content.

        Raises:
            UsageError: a shared field does not fit, or content is nobody's.
            Erased: the key of the content was destroyed.
        """
        _check_types(type, body, subject, locator)
        shared = {name: value for name, value in body.items() if name in _SHARED}
        own = {name: value for name, value in body.items() if name not in _SHARED}
        if locator is not None:
            shared["key_tree"], shared["key_day"], shared["key_gen"] = locator
        if "event_id" not in own:
            own["event_id"] = natural_event_id(type, body)
        stream = Stream(self, shared, subject.id if subject else "")
        sealer = None
        if content is not None:
            if subject is None or locator is None:
                raise UsageError(f"{type} has content: say whose it is and under which locator")
            sealer = stream.sealer(self.grant.data_key(locator, subject))
        return stream, own, sealer


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
        writer.check()
        org = str(shared.get("org", ""))
        if org not in writer.grant.orgs:
            raise UsageError(f"the credential does not name org {org[:64]!r}")
        epoch = writer.transport.producer_epoch
        own = {"producer_id": writer.producer_id, "producer_epoch": epoch}
        self._set(writer, Constants({**shared, **own}), subject_id)

    def beside(self, changes: Mapping[str, Any], subject_id: str) -> "Stream":
        """Return a stream that differs in some shared fields, for another subject.

        Raises:
            UsageError: a value does not fit its field.
        """
        made = Stream.__new__(Stream)
        made._set(self._writer, self._constants.but(changes), subject_id)
        return made

    def _set(self, writer: Writer, constants: Constants, subject_id: str) -> None:
        self._writer = writer
        self._transport = writer.transport
        self._constants = constants
        self._subject_id = subject_id
        self._ways: dict[str, Way] = {}

    @property
    def fields(self) -> Mapping[str, Any]:
        """The shared fields."""
        return self._constants.values

    def sealer(self, key: DataKey) -> Sealer:
        """Return what seals under a key of the subject."""
        shared = self._constants.values
        return Sealer(
            key,
            org=shared["org"],
            tree=shared["key_tree"],
            subject_id=self._subject_id,
            writer_epoch=shared["writer_epoch"],
        )

    def hand_over(
        self,
        way: Way,
        type: str,
        own: dict[str, Any],
        content: Mapping[str, Any] | None,
        sealer: Sealer | None,
    ) -> asyncio.Future[Position]:
        """Seal, number and encode an event, and hand it to the transport.

        Args:
            way: that of the type.
            type: event type.
            own: the fields that are not shared, `event_id` and `occurred_at_us` at least; frame,
                content_mac and producer_seq are filled in, in place.
            content: content fields; None: the event has none.
            sealer: seals them.

        Raises:
            UsageError: a field does not fit.
            TooLarge: the frame is over 786,432 bytes or the record over 950,000.
            Unavailable: the transport takes nothing.
        """
        if sealer is not None and content is not None:
            own["frame"], own["content_mac"] = sealer.seal(
                content, own["event_id"], own.get("seq", 0), type
            )
        lane = way.lane
        own["producer_seq"] = lane.next_seq
        _, key, value, headers, _ = way.record(own)
        return self._transport.send(lane, key, value, headers)

    async def hand_over_large(
        self,
        way: Way,
        type: str,
        own: dict[str, Any],
        content: Mapping[str, Any],
        sealer: Sealer,
    ) -> asyncio.Future[Position]:
        """Do as `hand_over` with content that may not fit a record, sealed in a thread.

        Raises:
            TooLarge: it is over 64 MiB, or does not fit a frame and there is no store for it.
        """
        work = partial(sealed_large, sealer, content, own, type)
        frame, pointer = await asyncio.to_thread(work)
        if pointer is not None and not self._transport.takes_large():
            raise TooLarge(f"a frame of {len(frame)} bytes, over {MAX_FRAME_BYTES}")
        lane = way.lane
        own["producer_seq"] = lane.next_seq
        _, key, value, headers, _ = way.record(own)
        if pointer is not None:
            headers = carrying(headers, pointer, frame)
        return self._transport.send(lane, key, value, headers)

    def way(self, type: str) -> Way:
        """Return how events of a type go out.

        Raises:
            UsageError: a producer writes no such type, or a shared field does not fit.
            Unavailable: its topic does not exist.
        """
        way = self._ways.get(type)
        if way is None:
            way = self._ways[type] = self._new_way(type)
        return way

    def _new_way(self, type: str) -> Way:
        kind = TYPES.get(type)
        if kind is None or kind.topic in _NOT_OURS:
            raise UsageError(f"a producer writes no {type[:64]!r}")
        encoder = Encoder.of(type, self._constants)
        key = encoder.key or key_of(type, self._constants.values)
        return Way(encoder.record, self._transport.lane(kind.topic, key))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _check_types(type: Any, body: Any, subject: Any, locator: Any) -> None:
    if not isinstance(type, str) or not isinstance(body, Mapping):
        raise UsageError("an event has a type, str, and a body, a mapping")
    if not isinstance(subject, Subject | None) or not isinstance(locator, Locator | None):
        raise UsageError("content is of a Subject, under a Locator")


def natural_event_id(type: str, body: Body) -> bytes:
    """Return the identity of a run's event: natural id `epoch/seq` (DESIGN.md section 3).

    Raises:
        UsageError: the event is not a run's, so its writer must say what makes it one of its kind.
    """
    org, run = body.get("org"), body.get("run")
    epoch, seq = body.get("writer_epoch"), body.get("seq", 0)
    if not run or not epoch:
        raise UsageError(f"{type[:64]!r} needs event_id: it has no writer epoch and seq of its own")
    if not (isinstance(org, str) and isinstance(run, str)):
        raise UsageError(f"{type[:64]!r}: org and run are text")
    if not (isinstance(epoch, int) and isinstance(seq, int)):
        raise UsageError(f"{type[:64]!r}: writer_epoch and seq are whole numbers")
    try:
        return event_id(org, run, type, f"{epoch}/{seq}")
    except UnicodeEncodeError:
        raise UsageError(f"{type[:64]!r}: its type, org or run is not Unicode text") from None
