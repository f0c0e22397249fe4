"""The checkpoint of open runs in `turnlog.finalizer`: what bounds a restart to a minute of the log.

Partition n of the topic is about partition n of the streams. Row `{n}/{org}/{run}`: an open run as
`processors.finalizer` packs it; row `{n}`: where in the two topics reading goes on. Row
`usage/{n}/{org}/{run}/{epoch}`: an estimate that nobody measured yet, row `usage/{n}`: where in
`turnlog.usage` reading goes on. The last row of a checkpoint is that of the offsets, so that rows
are never older than it; reading on from older offsets over newer rows changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from processors.estimates import RECORDED, Estimates
from processors.finalizer import Partition
from streams.finalizer.appends import Appends
from turnlog.config import Config
from turnlog.errors import DecodeError
from turnlog.events import decode, encode
from turnlog.kafka import read_all

TOPIC = "turnlog.finalizer"
_USAGE = b"usage/"
_STAMP_BYTES = 8


class Estimated(NamedTuple):
    """An estimate that stands in the checkpoint."""

    body: dict[str, Any]
    append_ms: int


@dataclass
class Stored:
    """What the checkpoint of a partition number holds.

    Attributes:
        runs: row of each open run, by `{org}/{run}`.
        estimates: those that were not measured.
        offsets: by topic, where reading goes on; a topic that is missing is read from its start.
        head_ms: append time at the head of `run-chunks` when it was written.
    """

    runs: dict[bytes, bytes] = field(default_factory=dict)
    estimates: list[Estimated] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=dict)
    head_ms: int = 0


def load(config: Config, number: int) -> Stored:
    """Read the checkpoint of a partition number.

    Raises:
        Unavailable: Kafka does not answer.
        DecodeError: a row is not ours.
    """
    rows: dict[bytes, bytes] = {}
    for message in read_all(config, TOPIC, [number]):
        key, value = message.key() or b"", message.value()
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = value
    return _stored(rows, str(number).encode())


def _stored(rows: Mapping[bytes, bytes], number: bytes) -> Stored:
    stored = Stored()
    for key, value in rows.items():
        if key in (number, _USAGE + number):
            place = _place(value)
            stored.head_ms = max(stored.head_ms, place.pop("head_ms", 0))
            stored.offsets.update(place)
        elif key.startswith(_USAGE):
            append_ms = int.from_bytes(value[:_STAMP_BYTES])
            stored.estimates.append(Estimated(decode(value[_STAMP_BYTES:]).body, append_ms))
        else:
            stored.runs[key.removeprefix(number + b"/")] = value
    return stored


def _place(value: bytes) -> dict[str, int]:
    try:
        place: dict[str, int] = orjson.loads(value)
    except orjson.JSONDecodeError:
        raise DecodeError("not a row of the finalizer's checkpoint") from None
    return place


def store_runs(
    appends: Appends, number: int, partition: Partition, offsets: Mapping[str, int]
) -> int:
    """Write what changed of the open runs, then the offsets; return how many rows it took.

    Raises:
        Unavailable: Kafka did not acknowledge it; start again from what is stored.
    """
    rows = 0
    for key, row in partition.changes():
        appends.put(TOPIC, b"%d/%s" % (number, key), row, number)
        rows += 1
    appends.settle()
    place = orjson.dumps({**offsets, "head_ms": partition.head_ms})
    appends.put(TOPIC, b"%d" % number, place, number)
    appends.settle()
    return rows


def store_estimates(
    appends: Appends, number: int, estimates: Estimates, topic: str, offset: int
) -> None:
    """Write what changed of the estimates, then where reading goes on; raises as `store_runs`."""
    for key, epoch, waiting in estimates.changes():
        row = None
        if waiting is not None:
            stamp = waiting.append_ms.to_bytes(_STAMP_BYTES)
            row = stamp + encode(RECORDED, waiting.body)
        appends.put(TOPIC, b"%s%d/%s/%d" % (_USAGE, number, key, epoch), row, number)
    appends.settle()
    place = orjson.dumps({topic: estimates.rewind(offset)})
    appends.put(TOPIC, b"%s%d" % (_USAGE, number), place, number)
    appends.settle()
