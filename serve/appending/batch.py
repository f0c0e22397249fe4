"""Appending a batch: who repeats whom, under which key, and where each event is durable.

The order of steps is the guarantee. Reserve the ids, which finds the repeats; hand over what is
new; wait until it is durable; only then remember it and answer.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from redis.asyncio import Redis

from serve.appending.answers import (
    ACCEPTED,
    CONFLICT,
    DUPLICATE,
    ERASED,
    REFUSED,
    Answer,
    invalid,
    too_large,
)
from serve.appending.decided import Decisions
from serve.appending.given import Draft, Scope, read_event
from serve.appending.identity import identified, said_of, subject_of
from serve.appending.known import Begun, Found, KnownRuns
from serve.appending.reserving import Reservation
from serve.appending.seen import Looked, Mark, Patient, Seen
from turnlog.config import Config
from turnlog.errors import Erased, KeyStateError, TooLarge, TurnlogError, UsageError
from turnlog.ids import uuid_text
from turnlog.keys import Locator
from turnlog.keys.content import pack
from turnlog.producer import Position, Producer
from turnlog.producer.fields import DEFAULT_PROJECT
from turnlog.producer.large import is_large

NO_LOCATOR = Locator(bytes(16), 0, 0)
# An event that happened within this time cannot be a repeat of one that Redis has forgotten.
FORGOTTEN_AFTER_US = 23 * 3600 * 1_000_000
# A repeat that looked for a mark just before it was set finds the event here.
LINGER_S = 2.0
# A record that was handed over may still reach Kafka, whatever became of the wait for it.
MAYBE = "it may have been written: sent again with the same id it counts once"


class Given(NamedTuple):
    """One event of a request.

    Attributes:
        value: a value of JSON.
        source: CloudEvents' `source`; empty: none.
    """

    value: Any
    source: str = ""


@dataclass(slots=True)
class _Sent:
    """An event on its way; its repeats wait for it.

    Attributes:
        event_id: its identity.
        mark: what will be remembered of it.
        future: resolves once it is durable.
        begun: the run that begins with it, None for other events.
    """

    event_id: bytes
    mark: Mark
    future: "asyncio.Future[Position]"
    begun: tuple[str, Begun] | None = None


_Outcome = Answer | tuple[Answer, _Sent]


class Appender:
    """Appends events for the orgs of a process.

    Attributes:
        known: runs that have begun.
        patient: leaves Redis alone for a while once it does not answer.

    Args:
        seen: what was accepted in the last day.
        known: see above, like patient.
        decisions: what became of appends that ask for something.
        patient: shared by the three.
    """

    def __init__(
        self, seen: Seen, known: KnownRuns, decisions: Decisions, patient: Patient
    ) -> None:
        self.known = known
        self.patient = patient
        self._seen = seen
        self._decisions = decisions
        self._on_the_way: dict[bytes, _Sent] = {}

    @classmethod
    def over(cls, config: Config, redis: Redis) -> "Appender":
        """Return one over the parts of a stack."""
        patient = Patient()
        seen, known = Seen(redis, patient), KnownRuns(config, redis, patient)
        return cls(seen, known, Decisions(redis, patient), patient)

    async def append(
        self, producer: Producer, scope: Scope, events: Sequence[Given | Answer]
    ) -> list[Answer]:
        """Append events, each for itself, and answer each of them.

        Args:
            producer: writes for the org.
            scope: for whom.
            events: in order; what cannot be read is answered already.

        Returns:
            One answer an event, in order. None is given before the event is durable.
        """
        drafts = [_read(event, n, scope) for n, event in enumerate(events)]
        found = await self.known.find(scope.org, _asked_for(drafts))
        batch = _Batch(self._on_the_way, self.known, producer, scope, found)
        try:
            return await self._append(batch, scope.org, drafts)
        finally:
            for each in batch.sent:
                each.future.add_done_callback(partial(self._arrived, each.event_id))

    def _arrived(self, event_id: bytes, future: "asyncio.Future[Position]") -> None:
        """Forget an event that failed at once, and one that is durable a little later."""
        if future.cancelled() or future.exception() is not None:
            self._on_the_way.pop(event_id, None)
        else:
            loop = asyncio.get_running_loop()
            loop.call_later(LINGER_S, self._on_the_way.pop, event_id, None)

    async def _append(
        self, batch: "_Batch", org: str, drafts: Sequence[Draft | Answer]
    ) -> list[Answer]:
        ready = [batch.placed(draft) for draft in drafts]
        ids = [draft.body["event_id"] for draft in ready if isinstance(draft, Draft)]
        reservation = Reservation(self._seen, org, ids)
        try:
            batch.seen = await reservation.take(self._on_the_way)
            outcomes = await self._outcomes(batch, org, ready)
            durable = await self._remember(org, batch.sent)
            await reservation.give_back(durable, {each.event_id for each in batch.sent})
        finally:
            reservation.stop()
        answers = [each if isinstance(each, Answer) else _answered(*each) for each in outcomes]
        return await self._decisions.awaited(org, ready, answers)

    async def _outcomes(
        self, batch: "_Batch", org: str, ready: Sequence[Draft | Answer]
    ) -> list["_Outcome"]:
        """Hand over what is new, and wait until everything that is waited for is durable."""
        events = [draft for draft in ready if isinstance(draft, Draft)]
        again = [draft.body["run"] for draft in events if batch.may_begin_again(draft)]
        batch.begun_before = (await self.known.find(org, again)).runs
        outcomes = [await batch.outcome(draft) for draft in ready]
        sent = [each[1] for each in outcomes if not isinstance(each, Answer)]
        if sent:
            await asyncio.wait([each.future for each in sent])
        return outcomes

    async def _remember(self, org: str, sent: Sequence[_Sent]) -> Mapping[bytes, Mark]:
        """Mark what is durable; return the marks."""
        durable = [each for each in sent if each.future.exception() is None]
        begun = dict(each.begun for each in durable if each.begun)
        for run, how in begun.items():
            self.known.remember(org, run, how)
        await self.known.share(org, begun)
        marks = {
            each.event_id: each.mark._replace(position=str(each.future.result()))
            for each in durable
        }
        await self._seen.mark(org, marks)
        return marks


def _read(event: Given | Answer, n: int, scope: Scope) -> Draft | Answer:
    if isinstance(event, Answer):
        return event._replace(n=n)
    return read_event(event.value, n, scope, event.source)


def _asked_for(drafts: Iterable[Draft | Answer]) -> Iterator[str]:
    """Yield the runs that must be known before their events can be placed."""
    begun: set[str] = set()
    for draft in drafts:
        if isinstance(draft, Answer) or not draft.body.get("run"):
            continue
        run = draft.body["run"]
        if draft.kind.type == "run.created":
            begun.add(run)
        elif run not in begun and _joins(draft) and _needs_run(draft):
            yield run


def _needs_run(draft: Draft) -> bool:
    """Say whether its key or its place in the log depends on how its run began."""
    return draft.content is not None or not draft.body.get("conversation")


def _joins(draft: Draft) -> bool:
    """Say whether an event is one of a run that began before it."""
    return draft.kind.subject not in ("t", "d", "q")


class _Batch:
    """Decides the events of one batch in order.

    Attributes:
        seen: what the index knows of its events; None: Redis does not answer.
        begun_before: runs that begin here and may have begun before, as they did.
        sent: those that were handed over here.
    """

    def __init__(
        self,
        on_the_way: dict[bytes, _Sent],
        known: KnownRuns,
        producer: Producer,
        scope: Scope,
        found: Found,
    ) -> None:
        self.seen: Looked | None = None
        self.begun_before: Mapping[str, Begun] = {}
        self.sent: list[_Sent] = []
        self._on_the_way = on_the_way
        self._known = known
        self._writer = producer.writer
        self._scope = scope
        self._found = found
        self._begun: dict[str, Begun] = {}

    def placed(self, draft: Draft | Answer) -> Draft | Answer:
        """Return the draft as an event of its run, with its identity."""
        if isinstance(draft, Answer):
            return draft
        run = draft.body.get("run", "")
        wrong = None
        if run and _joins(draft):
            wrong = self._join(draft, self._begun.get(run) or self._found.runs.get(run))
        wrong = wrong or self._check_project(draft)
        if wrong is not None:
            return wrong
        if draft.kind.type == "run.created":
            self._begin(run, draft.body)
        identified(draft, self._scope)
        return draft

    def _begin(self, run: str, body: Mapping[str, Any]) -> None:
        names = (body.get(name, "") for name in ("user", "conversation", "turn"))
        self._begun.setdefault(run, Begun(NO_LOCATOR, body["project"], *names))

    def _join(self, draft: Draft, begun: Begun | None) -> Answer | None:
        """Fill in what the run's beginning says; return why the event is none of it."""
        bound = self._scope.project
        if begun is None or (bound and begun.project != bound):
            return self._unknown(draft) if draft.content else None
        for name in ("project", "user", "conversation"):
            own = getattr(begun, name)
            if draft.body.setdefault(name, own) != own:
                return invalid(draft.n, draft.id, name, "the run began with another one")
        draft.body.setdefault("turn", begun.turn)
        return None

    def _check_project(self, draft: Draft) -> Answer | None:
        project = draft.body.setdefault("project", self._scope.project or DEFAULT_PROJECT)
        if project in self._scope.projects:
            return None
        return invalid(draft.n, draft.id, "project", "there is no such project")

    def _unknown(self, draft: Draft) -> Answer:
        if self._found.sure:
            return invalid(draft.n, draft.id, "run", "no such run has begun")
        return Answer(
            draft.n, draft.id, 503, REFUSED, field="run", detail="its key is not known now"
        )

    async def outcome(self, draft: Draft | Answer) -> _Outcome:
        """Return the answer of an event, or with it what it waits for."""
        if isinstance(draft, Answer):
            return draft
        answer = Answer(draft.n, draft.id, 201, ACCEPTED, uuid_text(draft.body["event_id"]))
        if draft.kind.subject == "t":
            answer = answer._replace(turn=draft.body["turn"])
        try:
            return self._repeat(draft, answer) or await self._handed_over(draft, answer)
        except TurnlogError as error:
            return _refused(answer, error)

    def _repeat(self, draft: Draft, answer: Answer) -> _Outcome | None:
        """Judge an event whose identity is taken; None where it is not."""
        event_id = draft.body["event_id"]
        first = self._on_the_way.get(event_id)
        mark = first.mark if first else self._marked(event_id)
        if mark is None:
            return self._written_elsewhere(event_id, answer)
        if said_of(draft, self._mac(draft, mark.locator)) != mark.said:
            detail = "another event has this identity"
            return answer._replace(status=409, outcome=CONFLICT, detail=detail)
        if draft.kind.type == "run.created":
            run = draft.body["run"]
            self._begun[run] = self._begun[run]._replace(locator=mark.locator)
        again = answer._replace(status=200, outcome=DUPLICATE)
        if first is not None:
            return again, first
        via = "spool" if mark.position.endswith("/-1") else "broker"
        return again._replace(durable=via, position=mark.position)

    def _marked(self, event_id: bytes) -> Mark | None:
        return None if self.seen is None else self.seen.marks.get(event_id)

    def _written_elsewhere(self, event_id: bytes, answer: Answer) -> Answer | None:
        """Refuse an event while another request writes one of its identity, and does not end."""
        if self.seen is None or event_id not in self.seen.pending:
            return None
        detail = "another request is writing an event of this identity: send it again"
        return answer._replace(status=503, outcome=REFUSED, detail=detail)

    def _mac(self, draft: Draft, locator: Locator) -> bytes:
        if draft.content is None:
            return b""
        key = self._writer.grant.data_key(locator, subject_of(draft))
        return key.content_mac(pack(draft.content))

    async def _handed_over(self, draft: Draft, answer: Answer) -> _Outcome:
        body, content, type_ = draft.body, draft.content, draft.kind.type
        locator = self._locator(draft)
        subject = None if content is None else subject_of(draft)
        body["may_repeat"] = self._may_repeat(draft)
        stream, own, sealer = self._writer.single(type_, body, content, subject, locator)
        way = stream.way(type_)
        if content is not None and sealer is not None and is_large(content):
            # A repeat that comes while it is sealed finds its MAC only afterwards.
            future = await stream.hand_over_large(way, type_, own, content, sealer)
        else:
            future = stream.hand_over(way, type_, own, content, sealer)
        said = said_of(draft, own.get("content_mac", b""))
        mark = Mark(said, locator or NO_LOCATOR, "")
        sent = _Sent(body["event_id"], mark, future)
        self._note(draft, sent, locator)
        return answer, sent

    def _note(self, draft: Draft, sent: _Sent, locator: Locator | None) -> None:
        self.sent.append(sent)
        self._on_the_way[sent.event_id] = sent
        if draft.kind.type != "run.created" or locator is None:
            return
        run = draft.body["run"]
        begun = self._begun[run]._replace(locator=locator)
        self._begun[run] = begun
        sent.begun = run, begun

    def may_begin_again(self, draft: Draft) -> bool:
        """Say whether a run may have begun before under a key locator that must be found."""
        return draft.kind.type == "run.created" and self._may_repeat(draft)

    def _may_repeat(self, draft: Draft) -> bool:
        """Say whether this may stand in the log already, as far as is known."""
        if not draft.id and draft.kind.identity == "id":
            return False
        happened_us = draft.body["occurred_at_us"]
        recent = draft.timed and self._scope.at_us - happened_us < FORGOTTEN_AFTER_US
        doubtful = self.seen is None or draft.body["event_id"] in self.seen.doubtful
        return doubtful or not recent

    def _locator(self, draft: Draft) -> Locator | None:
        """Return under which key locator an event is sealed; None: it has no content."""
        kind, run = draft.kind, draft.body.get("run", "")
        if kind.type == "run.created":
            known = self._known.here(self._scope.org, run) or self.begun_before.get(run)
            return known.locator if known else self._new_locator(draft)
        if draft.content is None:
            return None
        if kind.begins:
            return self._new_locator(draft)
        begun = self._begun.get(run) or self._found.runs.get(run)
        assert begun is not None  # `_join` refused it otherwise
        if begun.locator == NO_LOCATOR:
            raise UsageError("the beginning of its run was not accepted")
        return begun.locator

    def _new_locator(self, draft: Draft) -> Locator:
        subject = subject_of(draft)
        return self._writer.grant.begin(
            subject.org,
            draft.body["project"],
            user=subject.user,
            conversation=subject.conversation,
            subject_id=subject.id,
            kind=subject.kind,
        )


def _answered(answer: Answer, sent: _Sent) -> Answer:
    """Return the answer of an event that was waited for; a repeat's is that of the first."""
    error = sent.future.exception()
    if isinstance(error, TurnlogError):
        refused = _refused(answer, error)
        if refused.status == 503:
            return refused._replace(detail=f"{refused.detail}; {MAYBE}")
        return refused
    if error is not None:
        raise error
    position = sent.future.result()
    return answer._replace(durable=position.via, position=str(position))


def _refused(answer: Answer, error: TurnlogError) -> Answer:
    """Return the answer to an event that this error stopped."""
    if isinstance(error, Erased):
        return answer._replace(status=409, outcome=ERASED, detail="its key was destroyed")
    if isinstance(error, TooLarge):
        return too_large(answer.n, answer.id, str(error))
    if isinstance(error, UsageError):
        return invalid(answer.n, answer.id, "", str(error))
    what = "its key cannot be had now" if isinstance(error, KeyStateError) else str(error)
    return answer._replace(status=503, outcome=REFUSED, detail=what)
