"""Runs: one row per (run, epoch, seq); the state of a run is read from its rows.

`fold` says what that state is, event by event in the order of the log; `serve.runs_query` asks the
table for the same in SQL, and a test holds the two together.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from processors.common import Row, canonical_row
from turnlog.events import Event

TOPIC = "turnlog.runs"
TYPES = (
    "run.created",
    "run.started",
    "run.taken_over",
    "run.cancel_requested",
    "run.output_retracted",
    "run.completed",
    "run.failed",
    "run.cancelled",
    "run.interrupted",
)
TERMINAL = ("run.completed", "run.failed", "run.cancelled", "run.interrupted")
CREATED, TAKEN_OVER = "run.created", "run.taken_over"
PROVISIONAL_SEQ = (1 << 63) - 1
"""The seq of the finalizer's `run.interrupted`: behind everything of the run's own writer."""

FINAL_AFTER_MS = 7 * 86_400_000
"""A provisional end that nobody superseded for so long is final (DESIGN.md section 4)."""

# Of a takeover it counts who it is by: the first in the log owns the epoch, and the same epoch
# claimed by another producer is a conflict, not a repeat (`processors.common.identity`).
NUMBERS = ("producer_id",)


# Under what the content of a run is sealed.
SUBJECT = ("user", "conversation", "key_tree", "key_day", "key_gen")


class Subjects:
    """Whose content each run's is, said by its first event with content in a partition.

    What says otherwise is a conflict and never read under a second key (keys.md section 6, attack
    10). Events without content may be anybody's, such as a request to cancel.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, str, str], tuple[Any, ...]] = {}

    def agrees(self, partition: int, body: Mapping[str, Any]) -> bool:
        """Tell whether an event is of the subject that its run began with."""
        if not body["content_mac"]:
            return True
        own = tuple(body[name] for name in SUBJECT)
        return self._known.setdefault((partition, body["org"], body["run"]), own) == own

    def missing(self, place: tuple[int, str, str]) -> bool:
        """Tell whether nothing is known of a run, given as partition, org and run."""
        return place not in self._known

    def learn(self, place: tuple[int, str, str], subject: tuple[Any, ...]) -> None:
        """Take in what is known from elsewhere."""
        self._known[place] = subject

    def forget(self, keep: int) -> None:
        """Forget the runs that were met first, all but so many."""
        for place in list(self._known)[: max(0, len(self._known) - keep)]:
            del self._known[place]


def canonical(event: Event) -> Row | None:
    """Return `(stream key, event_id, row)`; None where the event is not of this view or refused."""
    return canonical_row(event) if event.type in TYPES else None


class Refused(NamedTuple):
    """An event that does not change its run. It stands in the table like any other.

    Attributes:
        epoch: of its writer.
        seq: its number.
        type: its type.
        reason: `lower_epoch`: the run was taken over; `began`: it has begun already; `ended`: it
            has ended; `conflict`: another event has this number.
    """

    epoch: int
    seq: int
    type: str
    reason: str


class State(NamedTuple):
    """The state of a run.

    Attributes:
        epoch: the highest that wrote; it owns the run.
        status: running, or that of its terminal event.
        end: epoch and seq of that event, None while it is running.
        provisional_ms: append time of the provisional end of this epoch, None where there is none.
        refused: what was refused, in the order of the log.
        numbers: event id of each (epoch, seq) that was taken.
    """

    epoch: int = 0
    status: str = "running"
    end: tuple[int, int] | None = None
    provisional_ms: int | None = None
    refused: tuple[Refused, ...] = ()
    numbers: Mapping[tuple[int, int], bytes] = MappingProxyType({})


def fold(state: State, event: Event, append_ms: int) -> State:
    """Return the state of a run after one more event of it, in the order of the log.

    Args:
        state: before it; `State()` before the first.
        event: of one run, no repeat of an earlier one.
        append_ms: its append time.
    """
    body = event.body
    place = body["writer_epoch"], body["seq"]
    reason = _refusal(state, event, append_ms)
    if reason:
        refused = Refused(*place, event.type, reason)
        return state._replace(refused=(*state.refused, refused))
    state = state._replace(numbers={**state.numbers, place: body["event_id"]})
    if body["writer_epoch"] > state.epoch:
        state = state._replace(epoch=place[0], status="running", end=None, provisional_ms=None)
    if event.type not in TERMINAL:
        return state
    provisional_ms = append_ms if body.get("provisional") else state.provisional_ms
    return state._replace(status=body["status"], end=place, provisional_ms=provisional_ms)


def _refusal(state: State, event: Event, append_ms: int) -> str:
    """Return why an event changes nothing, empty where it may."""
    body = event.body
    place = body["writer_epoch"], body["seq"]
    if place[0] < state.epoch:
        return "lower_epoch"
    if event.type == CREATED and state.epoch:
        return "began"
    if state.numbers.get(place, body["event_id"]) != body["event_id"]:
        return "conflict"
    if event.type in TERMINAL and place[0] == state.epoch and state.end is not None:
        return _second_end(state, event, append_ms)
    return ""


def _second_end(state: State, event: Event, append_ms: int) -> str:
    """Refuse an end behind an end, except a later one of the writer's own.

    Where the first is the finalizer's, it must come in time.
    """
    assert state.end is not None
    if event.body.get("provisional"):
        return "ended"
    if state.end[1] == PROVISIONAL_SEQ:
        in_time = append_ms - (state.provisional_ms or 0) <= FINAL_AFTER_MS
        return "" if in_time else "ended"
    return "" if event.body["seq"] > state.end[1] else "ended"
