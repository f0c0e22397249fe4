"""Events: their types, their bytes, their Kafka records, and slices of bytes without decoding."""

from turnlog.events.codec import MAX_RECORD_BYTES, Event, common_fields, decode, encode
from turnlog.events.fast import Constants, Encoder
from turnlog.events.records import Headers, Record, key_of, record
from turnlog.events.schema import TYPES, EventType, by_fingerprint
from turnlog.events.slices import (
    Prefix,
    event_id_of,
    key_prefixes,
    marked_may_repeat,
    prefix,
    slice_frame,
    with_frame,
    without_frame,
)

__all__ = [
    "MAX_RECORD_BYTES",
    "TYPES",
    "Constants",
    "Encoder",
    "Event",
    "EventType",
    "Headers",
    "Prefix",
    "Record",
    "by_fingerprint",
    "common_fields",
    "decode",
    "encode",
    "event_id_of",
    "key_of",
    "marked_may_repeat",
    "key_prefixes",
    "prefix",
    "record",
    "slice_frame",
    "with_frame",
    "without_frame",
]
