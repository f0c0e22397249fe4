"""One row of the finalizer's checkpoint: what it says, or that it is none of ours.

Nothing of a row is believed before all of it is looked at: whatever could be written there by
another program, an operator or another version is refused, never guessed at.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson
from confluent_kafka import Message

from processors import estimates as usage
from processors.estimates import is_estimate
from processors.finalizer import TOPICS, OpenRun
from turnlog.errors import DecodeError
from turnlog.events import Event, decode

RUNS, CHUNKS = TOPICS
USAGE = b"usage/"
HEAD = "head_ms"

_STAMP_BYTES = 8
_ID = b"[A-Za-z0-9_-]{1,64}"
# Brokers' clocks differ; what lies further ahead of the row's own append time was not seen by it.
_CLOCKS_MS = 3_600_000


class Estimated(NamedTuple):
    """An estimate that stands in the checkpoint."""

    body: dict[str, Any]
    append_ms: int


class Row(NamedTuple):
    """What a row says: an open run, an estimate, or offsets.

    Attributes:
        value: its bytes.
        run: `{org}/{run}` of an open run, else empty.
        estimated: the estimate.
        offsets: by topic, where reading goes on.
        head_ms: append time at the head of `run-chunks`, 0 where it is not said.
    """

    value: bytes
    run: bytes = b""
    estimated: Estimated | None = None
    offsets: Mapping[str, int] = MappingProxyType({})
    head_ms: int = 0


class Rows:
    """Reads the rows of a partition number.

    Args:
        number: of the partition.
        ends: the offset behind the last record of each topic; nothing leads behind it.
    """

    def __init__(self, number: int, ends: Mapping[str, int]) -> None:
        self._ends = ends
        self._place = b"%d" % number
        self._run = re.compile(rb"%d/(%s/%s)" % (number, _ID, _ID))
        self._estimate = re.compile(rb"usage/%d/%s/%s/-?\d{1,19}" % (number, _ID, _ID))

    def place_of(self, key: bytes) -> bytes:
        """Return the key of the offsets that rest on a row; empty for a key that is not ours."""
        if key == self._place or self._run.fullmatch(key):
            return self._place
        is_usage = key == USAGE + self._place or self._estimate.fullmatch(key)
        return USAGE + self._place if is_usage else b""

    def read(self, key: bytes, message: Message) -> Row:
        """Return what a row says.

        Raises:
            DecodeError: it is not ours; the message names what is wrong, never what is there.
        """
        value, latest_ms = message.value() or b"", message.timestamp()[1] + _CLOCKS_MS
        place = self.place_of(key)
        if not place:
            raise DecodeError("the key is none of the finalizer's checkpoint")
        if key == place:
            names = (usage.TOPIC,) if place.startswith(USAGE) else (*TOPICS, HEAD)
            return self._offsets(value, names, latest_ms)
        if place.startswith(USAGE):
            return Row(value, estimated=self._estimated(key, value, latest_ms))
        return self._open_run(key, value, latest_ms)

    def _offsets(self, value: bytes, names: tuple[str, ...], latest_ms: int) -> Row:
        found = _numbers(value, names)
        head_ms = found.pop(HEAD, 0)
        if head_ms > latest_ms:
            raise DecodeError("the head lies behind the row's own append time")
        if any(offset > self._ends[topic] for topic, offset in found.items()):
            raise DecodeError("an offset lies behind the end of its topic")
        return Row(value, offsets=found, head_ms=head_ms)

    def _open_run(self, key: bytes, value: bytes, latest_ms: int) -> Row:
        run = OpenRun.of_row(value)
        last = max(run.batches(), default=-1)
        if run.opened >= self._ends[RUNS] or last >= self._ends[CHUNKS]:
            raise DecodeError("an offset of the run lies behind the end of its topic")
        if run.last_ms > latest_ms:
            raise DecodeError("the run lives behind the row's own append time")
        return Row(value, run=key.removeprefix(self._place + b"/"))

    def _estimated(self, key: bytes, value: bytes, latest_ms: int) -> Estimated:
        append_ms = int.from_bytes(value[:_STAMP_BYTES])
        event = decode(value[_STAMP_BYTES:])
        if not is_estimate(event) or key != estimate_key(self._place, event):
            raise DecodeError("the row is not the estimate that its key names")
        if append_ms > latest_ms:
            raise DecodeError("the estimate lies behind the row's own append time")
        return Estimated(event.body, append_ms)


def packed(append_ms: int, value: bytes) -> bytes:
    """Return the row of an estimate, an event that was appended at a time."""
    return append_ms.to_bytes(_STAMP_BYTES) + value


def estimate_key(number: bytes, event: Event) -> bytes:
    """Return the key of an estimate's row."""
    body = event.body
    return USAGE + number + f"/{body['org']}/{body['run']}/{body['writer_epoch']}".encode()


def _numbers(value: bytes, names: tuple[str, ...]) -> dict[str, int]:
    """Return a JSON object of these names and of numbers from 0 on."""
    try:
        found = orjson.loads(value)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict) or found.keys() != set(names):
        raise DecodeError("the row has not the names that its key asks for")
    if any(type(number) is not int or number < 0 for number in found.values()):
        raise DecodeError("a number of the row is none")
    return found
