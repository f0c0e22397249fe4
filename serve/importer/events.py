"""The events of one exchange: pure, from what a line says to bodies and contents.

Natural ids are `{the line's id}/{place}`, so the same line always gives the same events.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from turnlog.ids import client_id, event_id, shaped
from turnlog.keys import Subject
from turnlog.producer.output import BATCH_BYTES, Chunk, Output
from turnlog.providers import Choice, Exchange, Usage

# Places of a line's events in its natural ids; chunk batches count on from the last.
_CREATED, _INPUT, _ANSWER, _TERMINAL, _USAGE, _BATCHES = range(6)


@dataclass(frozen=True, slots=True)
class Scope:
    """For whom an import writes.

    Attributes:
        org: the org's id.
        project: the project's id.
        id_key: the org's, 32 bytes; secret.
        at_us: time of the import, UTC microseconds.
    """

    org: str
    project: str
    id_key: bytes
    at_us: int

    def __repr__(self) -> str:
        return f"Scope({self.org}/{self.project})"


@dataclass(frozen=True, slots=True)
class Told:
    """What a source says beyond the exchange itself; a recorded line says nothing of it.

    Attributes:
        began_us: when the request went out, UTC microseconds; None: not said.
        ended_us: when the answer was whole; None: the time of the import stands in.
        ttft_us: from the request to the first token, microseconds.
        total_us: from the request to the end, microseconds.
        user: who acts, as an id.
        place: of the conversation's two turns, their turn_seq; None: the line's own `n` decides.
        describes: region and versions, in their shapes.
        trace: correlation_id and traceparent.
        replaced: values that are stored as ids or as `other`, for the frame.
    """

    began_us: int | None = None
    ended_us: int | None = None
    ttft_us: int | None = None
    total_us: int | None = None
    user: str = ""
    place: int | None = None
    describes: Mapping[str, Any] = field(default_factory=dict)
    trace: Mapping[str, str] = field(default_factory=dict)
    replaced: Mapping[str, str] = field(default_factory=dict)


NOTHING_TOLD = Told()


class Event(NamedTuple):
    """One event before it is sealed; `subject` is None where it has no content."""

    type: str
    body: dict[str, Any]
    content: dict[str, Any] | None = None
    subject: Subject | None = None


class Ids(NamedTuple):
    """Ids of one line, all derived from its own; conversation and turns empty without a file."""

    run: str
    conversation: str
    input: str
    answer: str
    response_ref: str


def ids_of(exchange: Exchange, scope: Scope) -> Ids:
    """Return the ids of a line."""
    source, key = exchange.source, scope.id_key
    run = client_id(source.id, key, "run")
    # The name of the kind makes it no id, so that a response id is never stored as it is.
    ref = exchange.response_id and client_id(f"response:{exchange.response_id}", key, "response")
    if not source.file:
        return Ids(run, "", "", "", ref)
    spoken = client_id(f"{source.id}/input", key, "turn")
    answer = client_id(f"{source.id}/answer", key, "turn")
    return Ids(run, client_id(source.file, key, "conversation"), spoken, answer, ref)


def conversation_created(exchange: Exchange, ids: Ids, scope: Scope) -> Event:
    """Return the event that begins a line's conversation; all lines of a file give the same."""
    file = exchange.source.file
    own = {"source_ref": shaped(file)}
    body = {"conversation": ids.conversation, **_common(scope, NOTHING_TOLD), **own}
    natural = (scope.org, ids.conversation, "conversation.created", f"{file}/0")
    return Event("conversation.created", body | {"event_id": event_id(*natural)})


def events_of(
    exchange: Exchange, ids: Ids, scope: Scope, told: Told = NOTHING_TOLD
) -> Iterator[Event]:
    """Yield a line's events in the order in which they are written; the usage comes after all."""
    run = _RunEvents(exchange, ids, scope, told)
    yield run.created()
    if ids.conversation:
        if exchange.message is not None:
            yield run.input()
        yield run.answer()
    yield from run.batches()
    yield run.terminal()


def usage_recorded(
    exchange: Exchange, usage: Usage, ids: Ids, scope: Scope, told: Told = NOTHING_TOLD
) -> Event:
    """Return the event that books a line's usage, and with which the line is complete."""
    run = _RunEvents(exchange, ids, scope, told)
    counted = usage.quality == "measured"
    own = {
        **run.describes(exchange.model),
        "quality": usage.quality,
        "reason": usage.reason,
        **usage.classes,
        "cost_nano_usd": usage.cost_nano_usd,
        "price_version": usage.price_version,
        "provider_usage": dict(usage.provider_usage),
        "response_ref": ids.response_ref if counted else "",
    }
    return run.event("usage.recorded", _USAGE, own)


def usage_corrected(
    exchange: Exchange, usage: Usage, ids: Ids, scope: Scope, told: Told = NOTHING_TOLD
) -> Event:
    """Return the event that books usage which an earlier reading did not understand.

    What it corrects is unknown and counts nothing, so it takes nothing back.
    """
    recorded = usage_recorded(exchange, usage, ids, scope, told).body
    natural = f"{exchange.source.id}/again"
    own = {
        "event_id": event_id(scope.org, ids.run, "usage.corrected", natural),
        "corrects": recorded["event_id"],
        "reason": "read_again",
    }
    return Event("usage.corrected", {**recorded, **own})


class _RunEvents:
    """Makes the events of one line's run and turns."""

    def __init__(self, exchange: Exchange, ids: Ids, scope: Scope, told: Told) -> None:
        self._exchange = exchange
        self._ids = ids
        self._scope = scope
        self._told = told
        self._output = Output()
        self._common = _common(scope, told) | {
            "conversation": ids.conversation,
            "run": ids.run,
            "turn": ids.answer,
            "writer_epoch": 1,
        }

    def event(
        self,
        type: str,
        place: int,
        own: Mapping[str, Any],
        content: dict[str, Any] | None = None,
        key: str = "o",
    ) -> Event:
        natural = f"{self._exchange.source.id}/{place}"
        identity = event_id(self._scope.org, self._ids.run, type, natural)
        body = {**self._common, **own, "event_id": identity}
        org, user = self._scope.org, self._told.user
        subject = Subject(org, user, self._ids.conversation, self._ids.run, key)
        return Event(type, body, content, subject if content else None)

    def describes(self, model: str) -> dict[str, str]:
        return {"provider": shaped(self._exchange.source.provider), "model": shaped(model)}

    def began(self) -> dict[str, int]:
        """Return the time of what stands before the answer, where it is known."""
        at_us = self._told.began_us
        return {} if at_us is None else {"occurred_at_us": at_us}

    def turn_seq(self, place: int) -> int:
        """Return the turn_seq of the line's input (1) or answer (2)."""
        if self._told.place is not None:
            return self._told.place + place
        return 2 * self._exchange.source.n + place

    def created(self) -> Event:
        source = self._exchange.source
        own = {
            **self.describes(self._exchange.request_model),
            **self._told.describes,
            **self.began(),
            "source_ref": shaped(source.id),
            "streaming": source.streaming,
        }
        content: dict[str, Any] = {
            "request": source.request,
            "method": source.method,
            "host": source.host,
            "path": source.path,
            "content_type": source.request_content_type,
            "source": _replaced(
                source_ref=source.id,
                provider=source.provider,
                model=self._exchange.request_model,
                file=source.file,
            )
            | dict(self._told.replaced),
        }
        return self.event("run.created", _CREATED, own, _filled(content, "request"), "q")

    def input(self) -> Event:
        message, ids, org = self._exchange.message, self._ids, self._scope.org
        assert message is not None
        natural = f"{self._exchange.source.id}/{_INPUT}"
        own = self.began() | {
            "conversation": ids.conversation,
            "turn": ids.input,
            "role": message.role,
            "name": shaped(message.name),
            "import_seq": self.turn_seq(1),
            "event_id": event_id(org, ids.conversation, "turn.appended", natural),
        }
        source = _replaced(name=message.name)
        content = _filled({"text": message.text, "raw": message.raw, "source": source}, "text")
        subject = Subject(org, self._told.user, ids.conversation, ids.input, "t")
        body = _common(self._scope, self._told) | own
        return Event("turn.appended", body, content, subject)

    def answer(self) -> Event:
        own = self.began() | {
            "role": "assistant",
            "answer_run": self._ids.run,
            "import_seq": self.turn_seq(2),
            "writer_epoch": 0,
        }
        return self.event("turn.appended", _ANSWER, own)

    def batches(self) -> Iterator[Event]:
        """Yield chunk batches of about 16 KB; when a chunk was shown, nobody recorded."""
        seq = 0
        for group in _groups(self._exchange):
            for batch in self._output.batches(group):
                own = batch.body | {"seq": seq}
                yield self.event("chunk.batch", _BATCHES + seq, own, batch.content)
                seq += 1

    def terminal(self) -> Event:
        exchange = self._exchange
        own = {
            **self.describes(exchange.model),
            **self._told.describes,
            "ttft_us": self._told.ttft_us,
            "total_us": self._told.total_us,
            "status": exchange.status,
            "finish_reason": shaped(exchange.finish_reason),
            "error_code": exchange.error_code,
            "http_status": exchange.source.status,
            "output_chars": self._output.chars,
            "seq": 1,
        }
        content: dict[str, Any] = {
            "response": exchange.source.response,
            "output": [_choice(choice) for choice in exchange.choices],
            "error": exchange.error,
            "source": _replaced(model=exchange.model, finish_reason=exchange.finish_reason),
        }
        return self.event(f"run.{exchange.status}", _TERMINAL, own, _filled(content, "response"))


def _common(scope: Scope, told: Told) -> dict[str, Any]:
    timed = told.ended_us is not None
    return {
        "org": scope.org,
        "project": scope.project,
        "user": told.user,
        "occurred_at_us": told.ended_us if timed else scope.at_us,
        "time_basis": "event" if timed else "import",
        "may_repeat": True,
        **told.trace,
    }


def _replaced(**values: str) -> dict[str, str]:
    """Return the values that are outside their shape: the frame keeps what the body cannot."""
    return {name: value for name, value in values.items() if shaped(value) != value}


def _filled(content: dict[str, Any], always: str) -> dict[str, Any]:
    """Return the content without what is empty; `always` stays, so that empty bytes are bytes."""
    return {name: value for name, value in content.items() if value or name == always}


def _choice(choice: Choice) -> dict[str, Any]:
    calls = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in choice.tool_calls]
    parts = {
        "text": choice.text,
        "reasoning": choice.reasoning,
        "refusal": choice.refusal,
        "tool_calls": calls,
    }
    return {"index": choice.index} | {name: value for name, value in parts.items() if value}


def _groups(exchange: Exchange) -> Iterator[list[Chunk]]:
    """Yield the pieces of a stream in groups of about 16 KB of UTF-8."""
    group: list[Chunk] = []
    size = 0
    for piece in exchange.chunks:
        group.append(
            Chunk(0, piece.choice, piece.kind, piece.text, piece.call, piece.id, piece.name)
        )
        size += len(piece.text.encode())
        if size >= BATCH_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
