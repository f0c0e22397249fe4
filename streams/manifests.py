"""Manifests: the events of `turnlog.packs`, one per org and object, that make an object exist."""

import logging
import time
from typing import Any, NamedTuple, cast

from confluent_kafka import KafkaError, Message, Producer

from processors.packs import Span
from sinks.packs.layout import OrgPart, Range
from sinks.packs.writer import PackSummary
from turnlog.config import Config
from turnlog.errors import DecodeError, Unavailable
from turnlog.events import Event, decode, key_of, record
from turnlog.ids import event_id
from turnlog.kafka import not_written, partition_of, partitions_of, producer_settings, read_all

logger = logging.getLogger(__name__)

TOPIC = "turnlog.packs"
PACK_ADDED = "pack.added"
WRITE_TIMEOUT_S = 60.0


class Manifest(NamedTuple):
    """What of one org an object holds; the fields are those of `pack.added`."""

    org: str
    object: str
    kind: str
    size_bytes: int
    records: int
    footer_offset: int
    footer_bytes: int
    digest: bytes
    ranges: tuple[Range, ...]

    @property
    def spans(self) -> list[Span]:
        """What it lists, to be claimed."""
        return [Span(self.org, r.topic, r.partition, r.first, r.last) for r in self.ranges]


def manifest_of(message: Message) -> Manifest:
    """Read a record of `turnlog.packs`.

    Raises:
        DecodeError: it is not a manifest, or its key is another's.
    """
    event = decode(message.value() or b"")
    if event.type != PACK_ADDED:
        raise DecodeError(f"{event.type} is not a manifest")
    if message.key() != key_of(event.type, event.body):
        raise DecodeError("the key disagrees with the body")
    return _manifest(event)


def _manifest(event: Event) -> Manifest:
    body = event.body
    return Manifest(
        body["org"],
        body["object"],
        body["kind"],
        body["bytes"],
        body["records"],
        body["footer_offset"],
        body["footer_bytes"],
        body["digest"],
        tuple(Range(**found) for found in body["ranges"]),
    )


def live_manifests(config: Config) -> list[Manifest]:
    """Return the manifests that are not removed, those of one org in the order of the log.

    What is none is left out and told, in one line for all: the locator makes a dead letter of each.

    Raises:
        Unavailable: Kafka does not answer.
    """
    found: dict[bytes, Manifest] = {}
    odd: list[str] = []
    for message in read_all(config, TOPIC):
        key = message.key() or b""
        if message.value() is None:
            found.pop(key, None)
            continue
        try:
            found.setdefault(key, manifest_of(message))
        except DecodeError:
            odd.append(f"{message.partition()}/{message.offset()}")
    if odd:
        logger.warning("%s: %d records are no manifests, the first is %s", TOPIC, len(odd), odd[0])
    return list(found.values())


class Manifests:
    """Writes manifests; on return they are acknowledged."""

    def __init__(self, config: Config) -> None:
        self._producer = Producer(producer_settings(config))
        self._partitions = len(partitions_of(config, TOPIC))
        self._errors: list[str] = []

    def write(self, name: str, kind: str, summary: PackSummary) -> None:
        """Write the manifest of each org in an object.

        Raises:
            Unavailable: one was not acknowledged; the object may or may not exist for its org.
        """
        for part in summary.orgs:
            self._produce(_body(name, kind, summary, part))
        left = self._producer.flush(WRITE_TIMEOUT_S)
        if left or self._errors:
            raise Unavailable(f"manifests of {name} not acknowledged: {self._errors or left}")

    def _produce(self, body: dict[str, Any]) -> None:
        made = record(PACK_ADDED, body)
        self._producer.produce(
            made.topic,
            made.value,
            made.key,
            partition=partition_of(made.partition_by, self._partitions),
            headers=cast(Any, made.headers),
            on_delivery=self._delivered,
        )

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if trouble := not_written(error, message):
            self._errors.append(trouble)


def _body(name: str, kind: str, summary: PackSummary, part: OrgPart) -> dict[str, Any]:
    return {
        "org": part.org,
        "event_id": event_id(part.org, "", PACK_ADDED, name),
        "occurred_at_us": time.time_ns() // 1000,
        "object": name,
        "kind": kind,
        "bytes": summary.size_bytes,
        "records": part.records,
        "footer_offset": summary.footer_offset,
        "footer_bytes": summary.footer_bytes,
        "digest": summary.digest,
        "ranges": [found._asdict() for found in part.ranges],
    }
