"""How the finalizer ends a run: `run.interrupted` with what had reached Kafka, and an estimate.

The content is that of a producer's own terminal event: the same fold makes `output` and `timeline`
out of the chunk batches. A run whose keys are erased ends without content, like one whose keys
never were; one whose keys cannot be read now is not ended yet.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple, cast

from confluent_kafka import Message

from processors.common import identity
from processors.estimates import (
    NO_SEQ,
    RECORDED,
    Shown,
    estimate,
    estimate_id,
    request_chars,
)
from streams.content import subject_of
from streams.dead import Dead
from turnlog.errors import DecodeError, Erased, FrameError, NoTree, TooLarge
from turnlog.events import Event, Record, decode, record
from turnlog.events.schema import COMMON
from turnlog.ids import event_id
from turnlog.keys import DataKey, KeySource, Locator, open_content, seal_content
from turnlog.keys.index import MAX_GEN
from turnlog.producer.output import MAX_INDEX, Chunk, Output
from turnlog.producer.usage import Spoke, given_usage, usage_body
from turnlog.providers.usage import unknown

logger = logging.getLogger(__name__)

ENDED = "run.interrupted"
WHY = "writer_lost"
CONFLICT = "conflict: another batch has this seq"
FOREIGN = "conflict: another run has this id"
UNCOUNTED = "the number of characters is out of bounds"

# Of one batch; a record has less than a million bytes, of which zstd makes at most so many.
MAX_CHARS = 2**31

# A run's events agree in these, or they are not of one run (docs/keys.md section 1).
_ONE_RUN = ("org", "run", "user", "conversation", "key_tree", "key_day", "key_gen")
_OWN = frozenset(
    ("event_id", "frame", "content_mac", "seq", "producer_seq", "occurred_at_us", "may_repeat")
    + ("writer_epoch", "producer_id", "producer_epoch", "schema_version")
)
_COPIED = tuple(field.name for field in COMMON if field.name not in _OWN)
_DESCRIBES = ("provider", "model", "region", "run_group", "versions", "idempotency_key")


class End(NamedTuple):
    """What is appended for a run, and the chunk batches that are not of it."""

    usage: Record
    interrupted: Record
    dead: list[Dead]


class Lost(NamedTuple):
    """A run that nobody ended.

    Attributes:
        began: its `run.created`, or `run.taken_over` where only that is known.
        epoch: the highest epoch seen.
        last_ms: append time of its last sign of life.
        batches: its records of `run-chunks`, in the order of the log.
    """

    began: Event
    epoch: int
    last_ms: int
    batches: Sequence[Message]


def end_of(lost: Lost, keys: KeySource) -> End:
    """Return the end of a run.

    Raises:
        KeyUnavailable: its keys cannot be derived now: try again.
    """
    body = lost.began.body
    dead: list[Dead] = []
    events = _of_the_run(lost, dead)
    key = _key(keys, ENDED, body)
    output, reasoning = _output(key, events, dead)
    request = _request_chars(lost.began, _key(keys, "run.created", body))
    chars = sum(event.body["chars"] for _, event in events) if key is None else output.chars
    shown = Shown(request, chars - reasoning, reasoning)
    own = _own(lost) | {"output_chars": chars, "ttft_us": _ttft_us(output)}
    interrupted = _sealed(body, own, output, key)
    return End(record(RECORDED, _usage(lost, shown)), interrupted, dead)


def output_of(lost: Lost, keys: KeySource) -> Output:
    """Return what a run has shown, for who goes on with it; empty where its key was destroyed.

    Raises:
        KeyUnavailable: its keys cannot be derived now.
    """
    dead: list[Dead] = []
    return _output(_key(keys, ENDED, lost.began.body), _of_the_run(lost, dead), dead)[0]


def _key(keys: KeySource, type_: str, body: Mapping[str, Any]) -> DataKey | None:
    """Return the key of what a type of event of this run holds; None where there is none."""
    locator = Locator(body["key_tree"], body["key_day"], body["key_gen"])
    if not (1 <= locator.day <= 31 and 0 <= locator.gen <= MAX_GEN):
        return None
    try:
        return keys.data_key(locator, subject_of(type_, body))
    except (Erased, NoTree):
        return None


def _of_the_run(lost: Lost, dead: list[Dead]) -> list[tuple[Message, Event]]:
    """Return the batches that count, in order: each seq once, and of it the first in the log."""
    known: dict[tuple[int, int], Event] = {}
    kept: list[tuple[Message, Event]] = []
    for message in lost.batches:
        try:
            event = decode(message.value() or b"")
        except DecodeError as error:
            dead.append(Dead(message, str(error)))
            continue
        if not 0 <= event.body["chars"] <= MAX_CHARS:
            dead.append(Dead(message, UNCOUNTED))
            continue
        if not _is_one_run(event.body, lost.began.body):
            dead.append(Dead(message, FOREIGN))
            continue
        first = known.setdefault(_order(event), event)
        if _differ(first, event):
            dead.append(Dead(message, CONFLICT))
        elif first is event:
            kept.append((message, event))
    return _continued(sorted(kept, key=lambda item: _order(item[1])))


def _order(event: Event) -> tuple[int, int]:
    return event.body["writer_epoch"], event.body["seq"]


def _is_one_run(body: Mapping[str, Any], began: Mapping[str, Any]) -> bool:
    return all(body[name] == began[name] for name in _ONE_RUN)


def _differ(first: Event, second: Event) -> bool:
    return identity(first.type, first.body) != identity(second.type, second.body)


def _continued(batches: list[tuple[Message, Event]]) -> list[tuple[Message, Event]]:
    """Let a later epoch's output replace what lower ones showed from its first offset on."""
    kept: list[tuple[Message, Event]] = []
    for message, event in batches:
        if kept and kept[-1][1].body["writer_epoch"] < event.body["writer_epoch"]:
            start = event.body["char_offset"]
            kept = [item for item in kept if item[1].body["char_offset"] < start]
        kept.append((message, event))
    return kept


def _output(
    key: DataKey | None, batches: Sequence[tuple[Message, Event]], dead: list[Dead]
) -> tuple[Output, int]:
    """Return the output and how many of its characters are reasoning."""
    output = Output()
    reasoning = 0
    for message, event in batches if key is not None else ():
        try:
            chunks = [_chunk(item) for item in _opened(cast(DataKey, key), event)["chunks"]]
        except (FrameError, KeyError, TypeError):
            dead.append(Dead(message, "the frame does not open into chunks"))
            continue
        for _ in output.batches(chunks):
            pass
        reasoning += sum(len(chunk.text) for chunk in chunks if chunk.kind == "reasoning")
    return output, reasoning


def _chunk(packed: Sequence[Any]) -> Chunk:
    chunk = Chunk(*packed)
    if tuple(map(type, chunk)) != (int, int, str, str, int, str, str):
        raise TypeError("not a chunk")
    if not (0 <= chunk.choice <= MAX_INDEX and abs(chunk.offset_us) < 1 << 63):
        raise TypeError("not a chunk")
    return chunk


def _opened(key: DataKey, event: Event) -> dict[str, Any]:
    body = event.body
    return open_content(
        key,
        body["frame"],
        org=body["org"],
        tree=body["key_tree"],
        event_id=body["event_id"],
        subject_id=body["run"],
        writer_epoch=body["writer_epoch"],
        seq=body["seq"],
        kind=event.type,
        content_mac=body["content_mac"],
    )


def _request_chars(began: Event, key: DataKey | None) -> int | None:
    """Return the characters of the request that a run began with; None where it cannot be read."""
    if key is None or began.type != "run.created" or not began.body["frame"]:
        return None
    try:
        request = _opened(key, began).get("request")
    except FrameError:
        return None
    return request_chars(request) if isinstance(request, bytes) and request else None


def _ttft_us(output: Output) -> int | None:
    first = next(islice(output.content().get("timeline", ()), 1), None)
    return None if first is None else int(first[0])


def _own(lost: Lost) -> dict[str, Any]:
    """Return what is the finalizer's own in an end; it names no producer, for there is none."""
    body = lost.began.body
    return {
        **{name: body[name] for name in _DESCRIBES if name in body},
        "writer_epoch": lost.epoch,
        "seq": NO_SEQ,
        "event_id": event_id(body["org"], body["run"], ENDED, f"{lost.epoch}/final"),
        "occurred_at_us": lost.last_ms * 1000,
        "status": "interrupted",
        "error_code": WHY,
        "provisional": True,
    }


def _sealed(
    began: Mapping[str, Any], own: dict[str, Any], output: Output, key: DataKey | None
) -> Record:
    body = {name: began[name] for name in _COPIED} | own
    content = output.content()
    if key is None or not content:
        return record(ENDED, body)
    place = {"org": body["org"], "tree": body["key_tree"], "event_id": body["event_id"]}
    try:
        frame, mac = seal_content(
            key,
            content,
            **place,
            subject_id=body["run"],
            writer_epoch=body["writer_epoch"],
            seq=body["seq"],
            kind=ENDED,
        )
        return record(ENDED, body | {"frame": frame, "content_mac": mac})
    except TooLarge:
        # As its own writer does: the run ends, and its output stands in the chunk batches.
        logger.warning("run %s ends without its output, which is too large", body["run"])
        return record(ENDED, body)


def _usage(lost: Lost, shown: Shown) -> dict[str, Any]:
    body = lost.began.body
    quality, reason, classes = estimate(shown)
    spoke = Spoke(body.get("provider", ""), body.get("model", ""))
    at_us = lost.last_ms * 1000
    used = given_usage(classes, spoke, spoke.model, at_us) if classes else unknown(reason)
    own = usage_body(replace(used, quality=quality, reason=reason), spoke, spoke.model)
    return {name: body[name] for name in _COPIED} | {
        **own,
        "writer_epoch": lost.epoch,
        "seq": NO_SEQ,
        "event_id": estimate_id(body["org"], body["run"], lost.epoch),
        "occurred_at_us": at_us,
    }
