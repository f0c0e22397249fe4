"""Content of one event: found by the locator and read from its object by one ranged GET.

Until the locator has the event, it is read at its Kafka position by a seek. So nothing is ever
unreadable in between.
"""

import logging
import time
from collections.abc import Mapping
from functools import cached_property
from types import TracebackType
from typing import Any, NamedTuple, cast

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from sinks.clickhouse.locator import LocatorRow, LocatorTable
from sinks.packs.store import PackStore
from streams.keys_reader import KeyReader
from turnlog.config import Config
from turnlog.errors import DecodeError, FrameError, NoTree, TurnlogError, Unavailable
from turnlog.events import Event, decode
from turnlog.kafka import reader_settings
from turnlog.keys import Locator, Subject, open_content
from turnlog.keys.outside import pointer_in
from turnlog.passing import in_words, passes

logger = logging.getLogger(__name__)

SEEK_TIMEOUT_S = 10.0


class Sealed(NamedTuple):
    """One event's frame and all that is needed to open it.

    Attributes:
        ref: where the frame was read, `s3://bucket/key#offset:length` or
            `kafka://topic/partition/offset`.
        type: event type, which is the kind in the frame's AAD.
        body: the identity of the event: org, conversation, run, turn, user, event_id,
            writer_epoch, seq, key locator, content_mac.
        frame: ciphertext; empty when the event has no content.
    """

    ref: str
    type: str
    body: dict[str, Any]
    frame: bytes


class Content:
    """Reads and opens the content of single events.

    Args:
        config: where the parts are. Connections are made when they are first needed.
        orgs: the only orgs whose keys are needed; all by default.
    """

    def __init__(self, config: Config, *orgs: str) -> None:
        self._config = config
        self._orgs = orgs or None

    def __enter__(self) -> "Content":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave Kafka and the key rows."""
        for name in ("_consumer", "_keys"):
            if name in self.__dict__:
                self.__dict__.pop(name).close()

    @cached_property
    def _store(self) -> PackStore:
        return PackStore(self._config)

    @cached_property
    def _table(self) -> LocatorTable:
        table = LocatorTable(self._config)
        table.ensure()
        return table

    @cached_property
    def _keys(self) -> KeyReader:
        return KeyReader(self._config, self._orgs)

    @cached_property
    def _consumer(self) -> Consumer:
        return Consumer(reader_settings(self._config, "read_committed"))

    def open(self, org: str, topic: str, partition: int, offset: int) -> dict[str, Any]:
        """Return the content fields of the event at a coordinate; none when it has no content.

        Raises:
            Erased: its key was destroyed.
            KeyUnavailable: key rows are missing or do not open: retry.
            FrameError: the frame does not open; the message names coordinate and object.
            PackError: the object is missing or damaged.
            TurnlogError: the coordinate holds no event of this org.
            Unavailable: a part does not answer.
        """
        return self.unseal(self.sealed(org, topic, partition, offset))

    def unseal(self, sealed: Sealed) -> dict[str, Any]:
        """Open a frame that was read; raises as `open` does."""
        if not sealed.frame:
            return {}
        body = sealed.body
        frame = self._whole(body["org"], sealed.frame)
        locator = Locator(body["key_tree"], body["key_day"], body["key_gen"])
        subject = subject_of(sealed.type, body)
        try:
            key = self._keys.data_key(locator, subject)
            return open_content(
                key,
                frame,
                org=body["org"],
                tree=body["key_tree"],
                event_id=body["event_id"],
                subject_id=subject.id,
                writer_epoch=body["writer_epoch"],
                seq=body["seq"],
                kind=sealed.type,
                content_mac=body["content_mac"],
            )
        except (FrameError, NoTree) as error:
            place = f"{body['topic']}/{body['partition']}/{body['offset']} ({sealed.ref})"
            raise FrameError(f"the frame of {place} does not open: {error}") from error

    def _whole(self, org: str, frame: bytes) -> bytes:
        """Return the frame itself where a pointer to it stands in its place."""
        pointer = pointer_in(frame, org)
        if pointer is None:
            return frame
        return pointer.checked(self._store.read(self._store.name(pointer.key), 0, pointer.length))

    def sealed(self, org: str, topic: str, partition: int, offset: int) -> Sealed:
        """Return the frame at a coordinate and what opens it; raises as `open` does."""
        row = self._table.find(org, topic, partition, offset)
        return self._archived(row) if row else self._in_log(org, topic, partition, offset)

    def _archived(self, row: LocatorRow) -> Sealed:
        frame = self._store.read(row.object, row.frame_offset, row.frame_bytes)
        return Sealed(
            object_ref(row.object, row.frame_offset, row.frame_bytes),
            row.type,
            row._asdict(),
            frame,
        )

    def _in_log(self, org: str, topic: str, partition: int, offset: int) -> Sealed:
        ref = log_ref(topic, partition, offset)
        message = self._seek(topic, partition, offset)
        if message is None:
            # It may have been archived since, and forgotten by Kafka.
            row = self._table.find(org, topic, partition, offset)
            if row is None:
                raise TurnlogError(f"{ref}: neither in Kafka any more nor in the locator")
            return self._archived(row)
        event = _event(message, org, ref)
        place = {"topic": topic, "partition": partition, "offset": offset}
        return Sealed(ref, event.type, event.body | place, event.body["frame"])

    def _seek(self, topic: str, partition: int, offset: int) -> Message | None:
        """Return the record at an offset; None when Kafka holds none there."""
        self._consumer.assign([TopicPartition(topic, partition, offset)])
        deadline = time.monotonic() + SEEK_TIMEOUT_S
        try:
            while time.monotonic() < deadline:
                message = self._consumer.poll(0.2)
                if message is not None and not _passing(message):
                    here = message.error() is None and message.offset() == offset
                    return message if here else None
        finally:
            self._consumer.unassign()
        raise Unavailable("kafka does not answer: no record in time")


def subject_of(type_: str, body: Mapping[str, Any]) -> Subject:
    """Return whose key seals the content of an event of this type."""
    kind, id_ = _subject_kind(type_, body)
    return Subject(body["org"], body["user"], body["conversation"], id_, kind)


def _subject_kind(type_: str, body: Mapping[str, Any]) -> tuple[str, str]:
    if type_ == "run.created":
        return "q", body["run"]
    if type_.startswith("turn."):
        return "t", body["turn"]
    if type_.startswith("conversation."):
        return "d", body["conversation"]
    return "o", body["run"]


def object_ref(object_: str, offset: int, length: int) -> str:
    """Return `s3://bucket/key#offset:length`."""
    return f"{object_}#{offset}:{length}"


def log_ref(topic: str, partition: int, offset: int) -> str:
    """Return `kafka://topic/partition/offset`."""
    return f"kafka://{topic}/{partition}/{offset}"


def _event(message: Message, org: str, ref: str) -> Event:
    try:
        event = decode(cast(bytes, message.value()))
    except DecodeError as error:
        raise DecodeError(f"{ref}: {error}") from error
    if event.body["org"] != org:
        raise TurnlogError(f"{ref}: not an event of this org")
    return event


def _passing(message: Message) -> bool:
    """Tell whether to go on waiting: librdkafka mends what passes by itself."""
    error = message.error()
    if error is None or error.code() == KafkaError._PARTITION_EOF:
        return False
    if passes(error):
        return True
    raise Unavailable(f"kafka does not answer: {in_words(error)}")
