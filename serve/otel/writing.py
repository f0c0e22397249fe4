"""Spans into the log: which are new, each as a run, and usage that children repeat taken back.

The order of steps is the guarantee. What is known is looked up; what is new is written, its usage
last; when that is durable the index of traces is told, and what it then shows to be booked twice is
taken back. Every event has an identity of its own, so a repeat of any step adds nothing.
"""

import asyncio
import hmac
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack
from redis.asyncio import Redis
from redis.exceptions import RedisError

from serve.importer.events import (
    Event,
    Ids,
    Scope,
    conversation_created,
    events_of,
    ids_of,
    usage_recorded,
)
from serve.importer.found import Known, Views
from serve.importer.judge import Judge, Verdict
from serve.otel.kinds import Kind
from serve.otel.lineage import covered
from serve.otel.reading import Call, Reading, read, source_id, without_content
from serve.otel.spans import Found, Refused, Span
from sinks.redis import traces
from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.ids import event_id
from turnlog.producer import Position, Producer

logger = logging.getLogger(__name__)

RECORDED, DUPLICATE, NOT_RECORDED, REJECTED = "recorded", "duplicate", "not_recorded", "rejected"
CORRECTED = "usage.corrected"
IN_CHILDREN = "in_children"
VIEW_ANSWER_S = 10.0
# Runs that are handed over before others of the event loop have their turn.
_AT_ONCE = 16


class Outcome(NamedTuple):
    """What became of one span.

    Attributes:
        trace: trace id in hex, as far as it could be read.
        span: span id in hex, see trace.
        outcome: recorded, duplicate, not_recorded or rejected.
        reason: why, for the last two; what a person should know, for the first.
        run: id of the run, empty where there is none.
    """

    trace: str
    span: str
    outcome: str
    reason: str = ""
    run: str = ""


@dataclass(slots=True)
class _Work:
    """One call on its way."""

    span: Span
    kind: Kind
    call: Call
    ids: Ids
    events: list[Event]
    said: bytes
    verdict: Verdict | None = None


class Spans:
    """Takes the spans of one org's requests.

    Args:
        config: where the views are.
        redis: for the index of traces.
        producer: writes.
        org: whose spans.
        project: one of the org's.
    """

    def __init__(
        self, config: Config, redis: Redis, producer: Producer, org: str, project: str
    ) -> None:
        self._config = config
        self._redis = redis
        self._producer = producer
        self._id_key = producer.grant.id_key(org)
        self._scope = Scope(org, project, self._id_key, time.time_ns() // 1000)

    async def take(self, found: Sequence[Found]) -> list[Outcome]:
        """Write what is new of these spans; return what became of each, in order.

        Raises:
            Unavailable: a part does not answer. What was written stays, and the same spans a
                second time go on from there.
        """
        works: dict[tuple[str, str], _Work] = {}
        readings, outcomes = await asyncio.to_thread(self._prepared, found, works)
        await self._judge(list(works.values()))
        await self._write([w for w in works.values() if w.verdict and w.verdict.kind == "write"])
        await self._settle(readings, works)
        return [o if isinstance(o, Outcome) else _outcome(o) for o in outcomes]

    def _prepared(
        self, found: Sequence[Found], works: dict[tuple[str, str], _Work]
    ) -> tuple[list[Reading], list[Outcome | _Work]]:
        """Read spans and make their events, all that takes time and waits for nothing."""
        readings: list[Reading] = []
        outcomes: list[Outcome | _Work] = []
        for item in found:
            if isinstance(item, Refused):
                outcomes.append(Outcome(item.trace, item.id, REJECTED, item.reason))
                continue
            readings.append(read(item, self._id_key, self._scope.at_us))
            outcomes.append(self._first(readings[-1], works))
        return readings, outcomes

    def _first(self, item: Reading, works: dict[tuple[str, str], _Work]) -> Outcome | _Work:
        """Return the outcome of what is no call, or a repeat within the request; else its work."""
        span = item.span
        if item.call is None:
            return Outcome(span.trace, span.id, NOT_RECORDED, item.kind.value)
        work = self._work(item, item.call)
        before = works.setdefault((span.trace, span.id), work)
        if before is work:
            return work
        same = before.said == work.said
        outcome, reason = (DUPLICATE, "") if same else (REJECTED, "conflict")
        return Outcome(span.trace, span.id, outcome, reason, work.ids.run)

    def _work(self, item: Reading, call: Call) -> _Work:
        source = call.exchange.source
        ids = ids_of(call.exchange, self._scope)
        events = list(events_of(call.exchange, ids, self._scope, call.told))
        mac = hmac.new(self._id_key, b"otlp\0", "sha256")
        mac.update(len(source.request).to_bytes(8) + source.request + source.response)
        return _Work(item.span, item.kind, call, ids, events, mac.digest()[:16])

    async def _judge(self, works: Sequence[_Work]) -> None:
        """Decide which calls are new: by the index of traces, else by the views."""
        seen = await self._said(works)
        for work in works:
            held = seen.get((work.span.trace, work.span.id))
            if held is not None:
                kind = "already" if held == work.said else "rejected"
                work.verdict = Verdict(kind, "" if kind == "already" else "conflict")
        left = [work for work in works if work.verdict is None]
        if left:
            known = await self._known([work.ids.run for work in left])
            await asyncio.to_thread(self._judge_all, left, known)

    def _judge_all(self, works: Iterable[_Work], known: Mapping[str, Known]) -> None:
        with Judge(self._config, lambda: self._producer.grant, self._scope, opens=False) as judge:
            for work in works:
                held, user = known.get(work.ids.run), work.call.told.user
                work.verdict = judge.judge(work.events, work.ids, held, user)
                if work.verdict.reason == "too_large":
                    self._lighten(work)
                    work.verdict = judge.judge(work.events, work.ids, held, user)

    def _lighten(self, work: _Work) -> None:
        """Leave out content that does not fit: what bills is kept all the same."""
        work.call = without_content(work.call)
        work.events = list(events_of(work.call.exchange, work.ids, self._scope, work.call.told))

    async def _said(self, works: Sequence[_Work]) -> dict[tuple[str, str], bytes]:
        spans: dict[str, list[str]] = {}
        for work in works:
            spans.setdefault(work.span.trace, []).append(work.span.id)
        if not spans:
            return {}
        try:
            found = await traces.said(self._redis, self._scope.org, spans)
        except (RedisError, OSError) as error:
            logger.warning("redis does not answer: %s", type(error).__name__)
            return {}
        return {(t, span): held for t, known in found.items() for span, held in known.said.items()}

    async def _known(self, runs: Sequence[str]) -> dict[str, Known]:
        views = Views(self._config, self._scope.org, patience_s=0)
        try:
            async with asyncio.timeout(VIEW_ANSWER_S):
                return await asyncio.to_thread(views.runs, runs)
        except TimeoutError:
            raise Unavailable("the view of runs does not answer") from None

    async def _write(self, works: Sequence[_Work]) -> None:
        """Write runs: all but their usage, and when that is durable, the usage."""
        created: set[str] = set()
        accepted = []
        for at, work in enumerate(works, 1):
            accepted += list(self._append(work, created))
            if at % _AT_ONCE == 0:
                await asyncio.sleep(0)
        await _all(accepted)
        await _all([self._send(self._usage(work), work.verdict) for work in works])

    def _append(self, work: _Work, created: set[str]) -> Iterator["asyncio.Future[Position]"]:
        conversation = work.ids.conversation
        if conversation and conversation not in created:
            created.add(conversation)
            yield self._send(conversation_created(work.call.exchange, work.ids, self._scope), None)
        for event in work.events:
            yield self._send(event, work.verdict)

    def _send(self, event: Event, verdict: Verdict | None) -> "asyncio.Future[Position]":
        own_text = event.subject is not None and event.subject.kind == "t"
        locator = verdict and (verdict.turn_locator if own_text else verdict.locator)
        return self._producer.append(event.type, event.body, event.content, event.subject, locator)

    def _usage(self, work: _Work) -> Event:
        call = work.call
        return usage_recorded(call.exchange, call.exchange.usage, work.ids, self._scope, call.told)

    async def _settle(
        self, readings: Sequence[Reading], works: Mapping[tuple[str, str], _Work]
    ) -> None:
        """Tell the index of traces, and take back what a call repeats of those below it."""
        here: dict[str, traces.Known] = {}
        for item in readings:
            known = here.setdefault(item.span.trace, traces.Known())
            known.parents.setdefault(item.span.id, item.span.parent)
        for work in works.values():
            if work.verdict is not None and work.verdict.kind in ("write", "already"):
                self._noted(here[work.span.trace], work)
        for trace, known in (await self._index(here)).items():
            await self._take_back(trace, known)

    def _noted(self, known: traces.Known, work: _Work) -> None:
        known.said[work.span.id] = work.said
        if work.call.exchange.usage.quality == "measured":
            body = self._usage(work).body
            known.booked[work.span.id] = msgpack.packb([work.kind.value, body])

    async def _index(self, here: Mapping[str, traces.Known]) -> Mapping[str, traces.Known]:
        """Return all that is known of the traces; without Redis, what this request says."""
        if not here:
            return {}
        try:
            return await traces.note(self._redis, self._scope.org, here)
        except (RedisError, OSError) as error:
            logger.warning("calls in other requests are not seen: %s", type(error).__name__)
            return here

    async def _take_back(self, trace: str, known: traces.Known) -> None:
        held = {span: msgpack.unpackb(packed) for span, packed in known.booked.items()}
        booked = {span: family for span, (family, _) in held.items()}
        spans = sorted(covered(known.parents, booked) - known.undone)
        if not spans:
            return
        events = [_negation(source_id(trace, span), held[span][1]) for span in spans]
        await _all([self._send(event, None) for event in events])
        try:
            await traces.undone(self._redis, self._scope.org, trace, spans)
        except (RedisError, OSError) as error:
            logger.warning("redis does not answer: %s", type(error).__name__)


def _negation(source: str, booked: Mapping[str, Any]) -> Event:
    """Return the event that takes back what was booked for a call that holds another."""
    identity = event_id(booked["org"], booked["run"], CORRECTED, f"{source}/{IN_CHILDREN}")
    own = {"event_id": identity, "sign": -1, "reason": IN_CHILDREN, "corrects": booked["event_id"]}
    return Event(CORRECTED, {**booked, **own})


_OUTCOMES = {"write": RECORDED, "already": DUPLICATE}


def _outcome(work: _Work) -> Outcome:
    verdict, span = work.verdict, work.span
    assert verdict is not None
    kind = _OUTCOMES.get(verdict.kind, REJECTED)
    reason = verdict.reason or ("erased" if verdict.kind == "erased" else "")
    if kind == RECORDED:
        reason = next(iter(work.call.exchange.warnings), "")
    return Outcome(span.trace, span.id, kind, reason, work.ids.run)


async def _all(futures: Sequence["asyncio.Future[Position]"]) -> None:
    """Wait for every acknowledgement before the first failure is raised."""
    for result in await asyncio.gather(*futures, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
