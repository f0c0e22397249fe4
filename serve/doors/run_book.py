"""Beginning, finding, taking over and ending the runs of remote clients."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from serve.appending.known import Begun, KnownRuns
from serve.appending.reserving import Reservation
from serve.appending.seen import Patient, Seen
from serve.doors.before import Before, ended_before, shown_before
from serve.doors.held import Held, HeldRuns
from serve.doors.life import RUNNING, Life, Lives
from serve.doors.problem import Problem
from serve.doors.route import Caller
from serve.doors.run_fields import Asked, digest
from serve.doors.server import Server
from turnlog.errors import NotFound, TooLarge, Unavailable, UsageError
from turnlog.ids import event_id, is_id
from turnlog.producer import Position, Producer
from turnlog.producer.fields import Began, began
from turnlog.producer.run import Run
from turnlog.producer.usage import Spoke


class Created(NamedTuple):
    """The answer to creating a run.

    Attributes:
        run: its id.
        conversation: empty where it has none.
        turn: id of its answer's turn, empty outside a conversation.
        position: where its beginning is.
        again: whether it was there before.
    """

    run: str
    conversation: str
    turn: str
    position: str
    again: bool


class Ended(NamedTuple):
    """The answer to ending a run.

    Attributes:
        status: how it ended.
        position: where its end is.
        again: whether this very call had ended it before.
    """

    status: str
    position: str
    again: bool


class RunBook:
    """The runs of a server process.

    Args:
        server: the server.
        known: told of runs that begin, for events appended to them.
        patient: shared by all that ask the same Redis.
    """

    def __init__(self, server: Server, known: KnownRuns, patient: Patient) -> None:
        self._config = server.config
        self._producers = server.producers
        self._known = known
        self._lives = Lives(server.redis, patient)
        self._seen = Seen(server.redis, patient)
        self._held = HeldRuns(server, self._lives)
        self._deciding: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    # Beginning.

    async def create(self, producer: Producer, asked: Asked) -> Created:
        """Begin a run, or find the one that the same call began before.

        Raises:
            Problem: 409, another run has this name or key; 429, too many are open; 503, another
                process is beginning it and does not come to an end.
            UsageError: a field is wrong.
            TooLarge: the request does not fit.
            Unavailable: it was not accepted: do not call the model.
        """
        began_ = began(asked.fields, producer.grant)
        if not asked.named:
            return await self._begin(producer, began_, asked)
        place = began_.common["org"], began_.common["run"]
        async with self._lock(*place), self._reserved(*place):
            again = await self._created_before(*place, asked)
            return again or await self._begin(producer, began_, asked)

    def _lock(self, org: str, run: str) -> asyncio.Lock:
        """Return what two calls that begin or take over one run wait at."""
        return self._deciding.setdefault((org, run), asyncio.Lock())

    @asynccontextmanager
    async def _reserved(self, org: str, run: str) -> AsyncIterator[None]:
        """Keep other processes from beginning a run; without Redis the log decides."""
        reservation = Reservation(self._seen, org, [event_id(org, run, "run.created", "1/0")])
        looked = await reservation.take(())
        if looked is not None and looked.pending:
            detail = "another call is beginning this run: try again"
            raise Problem(503, "unavailable", detail, headers={"Retry-After": "2"})
        try:
            yield
        finally:
            await reservation.give_back((), ())

    async def _created_before(self, org: str, run: str, asked: Asked) -> Created | None:
        held = self._held.get(org, run)
        here = held.life if held else self._held.over(org, run)
        life, asked_redis = (here, True) if here else await self._lives.find(org, run)
        if life is not None:
            if life.created != asked.said:
                raise Problem(409, "conflict", "another run has this name or idempotency key")
            return _created(run, life.begun, life.position, again=True)
        if asked_redis:
            return None
        # Only the view can tell; what is younger than it folds into one run all the same.
        found = (await self._known.find(org, [run])).runs.get(run)
        return None if found is None else _created(run, found, "", again=True)

    async def _begin(self, producer: Producer, began_: Began, asked: Asked) -> Created:
        self._held.require_room()
        run = Run(producer.writer, began_, self._held.opened)
        await run.__aenter__()
        common = began_.common
        org, begun = common["org"], _begun(run, common)
        life = Life(
            self._held.holder,
            producer.producer_id,
            common["writer_epoch"],
            time.time_ns() // 1000,
            RUNNING,
            asked.said,
            b"",
            _place(run.position),
            begun,
            common,
            began_.describes,
        )
        if not await self._lives.begin(org, run.run, life):
            # Begun at the same time elsewhere: one event and a repeat of it; the other holds it.
            self._held.opened.discard(run)
            return await self._created_before(org, run.run, asked) or _created(
                run.run, begun, life.position, again=True
            )
        await self._held.hold(org, producer, run, life)
        self._known.remember(org, run.run, begun)
        await self._known.share(org, {run.run: begun})
        return _created(run.run, begun, life.position, again=False)

    # Finding.

    async def open(self, caller: Caller, run: str) -> Held:
        """Return a run that is open, held here now; its client has shown a sign of life.

        Raises:
            NotFound: missing, or another org's or project's.
            Problem: 409, it has ended, or another process holds it; 503, it cannot be told.
        """
        found = await self._find(caller, run)
        if isinstance(found, Life):
            raise _ended()
        if found.life.ended:
            raise _ended()
        return found

    async def _find(self, caller: Caller, run: str) -> Held | Life:
        """Return a run that is held here now, or what is known of one that has ended."""
        held = self._held.get(caller.org, run)
        if held is not None:
            _require_project(caller, held.life.begun.project)
            return held
        if not is_id(run):
            raise NotFound("run: not found")
        over = self._held.over(caller.org, run)
        life, sure = (over, True) if over else await self._lives.find(caller.org, run)
        if life is None:
            raise await self._not_here(caller, run, sure)
        _require_project(caller, life.begun.project)
        if life.status != RUNNING:
            return life
        if life.holder != self._held.holder and await self._lives.is_alive(life.holder):
            raise Problem(409, "elsewhere", _ELSEWHERE)
        return await self._take_over(caller.org, run, life)

    async def _not_here(self, caller: Caller, run: str, sure: bool) -> Exception:
        """Return why a run of which there is no record cannot be gone on with."""
        found = await self._known.find(caller.org, [run])
        begun = found.runs.get(run)
        if begun is not None:
            _require_project(caller, begun.project)
            return Problem(409, "elsewhere", _NOT_OURS)
        if sure and found.sure:
            return NotFound("run: not found")
        return Unavailable("whether there is such a run is not known now")

    async def _take_over(self, org: str, run: str, life: Life) -> Held | Life:
        async with self._lock(org, run):
            held = self._held.get(org, run)
            if held is not None:
                return held
            before = await self._before(life)
            if before.whole:
                life = life._replace(status=before.status, position=before.position)
                await self._lives.write(org, run, life)
                return life
            return await self._taken_over(org, life, before.counted)

    async def _before(self, life: Life) -> Before:
        """Return how far a run's end has come: its holder may have died before it could answer.

        Raises:
            Unavailable: it had begun to end the run, and how far cannot be told now.
        """
        state = self._producers.state
        behind = state is not None and any(state.spool_events.get(lane) for lane in _OF_ENDS)
        try:
            if not behind:
                return await asyncio.to_thread(ended_before, self._config, life)
        except Unavailable:
            pass
        if life.ended:
            raise Unavailable("whether the run has ended is not known now")
        return Before()

    async def _taken_over(self, org: str, life: Life, counted: bool) -> Held:
        """Go on under the next epoch; the first such claim in the log owns the run."""
        self._held.require_room()
        producer = await self._producers.of(org)
        common = {**life.common, "writer_epoch": life.epoch + 1}
        spoke = Spoke(life.describes.get("provider", ""), life.describes.get("model", ""))
        again = Began(common, life.describes, {}, {}, spoke, None, "user", life.begun.locator)
        shown = await asyncio.to_thread(shown_before, self._config, producer.grant, life)
        run = Run(producer.writer, again, self._held.opened)
        await run.take_over(life.producer_id, life.began_us, shown, counted=counted)
        life = life._replace(
            holder=self._held.holder,
            producer_id=producer.producer_id,
            epoch=life.epoch + 1,
            ended=b"",
            position=_place(run.position),
        )
        await self._lives.write(org, run.run, life)
        held = await self._held.hold(org, producer, run, life)
        if shown is not None:
            # What was lost with the other process begins there: its client is told by `first`.
            held.noted, held.output_bytes = shown.pieces, shown.chars
        return held

    # Ending.

    async def end(self, caller: Caller, run: str, how: str, said: Mapping[str, Any]) -> Ended:
        """End a run; the same call again is answered alike.

        Args:
            caller: who asks.
            run: its id.
            how: complete, fail or cancel.
            said: arguments of that method of `Run`.

        Raises:
            NotFound, Problem: as `open`.
            UsageError: the usage is none; the run is still open.
            TooLarge: the response does not fit; the run is still open.
            Unavailable: it was not accepted; the same call again takes the run over and ends it.
        """
        call = digest({"how": how, **said})
        found = await self._find(caller, run)
        if isinstance(found, Life):
            return _again(found, call)
        async with found.lock:
            if found.life.ended:
                return _again(found.life, call)
            return await self._end(caller.org, found, how, said, call)

    async def _end(
        self, org: str, held: Held, how: str, said: Mapping[str, Any], call: bytes
    ) -> Ended:
        # Who finds the run without a holder knows by this that it may have ended.
        await self._lives.write(org, held.run.run, held.life._replace(ended=call))
        try:
            position = await getattr(held.run, how)(**said)
        except (UsageError, TooLarge):
            raise
        except Unavailable:
            if not held.run.is_open:
                self._held.drop(org, held.run.run)
            raise
        status = STATUS[how]
        held.life = held.life._replace(status=status, ended=call, position=_place(position))
        self._held.end(org, held.run.run, held.life)
        await self._lives.write(org, held.run.run, held.life)
        return Ended(status, held.life.position, again=False)


# Lanes of the spool in which the end of a run that was adopted may wait.
_OF_ENDS = ("runs", "usage")
STATUS = {"complete": "completed", "fail": "failed", "cancel": "cancelled"}
_ELSEWHERE = (
    "another process of this server holds the run: send all calls of one run to the same one, "
    "or try again a moment later if it is gone"
)
_NOT_OURS = (
    "the run was not created here, or its record is gone: append its end to /v1/events, "
    "after a run.taken_over with the next writer epoch"
)


def _again(life: Life, call: bytes) -> Ended:
    if life.ended != call:
        raise _ended()
    return Ended(life.status, life.position, again=True)


def _ended() -> Problem:
    return Problem(409, "ended", "the run has ended")


def _require_project(caller: Caller, project: str) -> None:
    if caller.project and caller.project != project:
        raise NotFound("run: not found")


def _begun(run: Run, common: Mapping[str, Any]) -> Begun:
    names = (common[name] for name in ("project", "user", "conversation", "turn"))
    return Begun(run.key_locator, *names)


def _created(run: str, begun: Begun, position: str, again: bool) -> Created:
    return Created(run, begun.conversation, begun.turn, position, again)


def _place(position: Position | None) -> str:
    return "" if position is None else str(position)
