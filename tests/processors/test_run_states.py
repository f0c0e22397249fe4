"""The state of a run, event by event: who owns it, what supersedes what, what is refused."""

from typing import Any

from processors.runs import FINAL_AFTER_MS, PROVISIONAL_SEQ, State, fold
from turnlog.events import Event, decode, encode
from turnlog.ids import event_id

CREATED = ("run.created", 1, 0)
CUT = ("run.interrupted", 1, PROVISIONAL_SEQ)
TAKEN = ("run.taken_over", 2, 0)


def event(type_: str, epoch: int, seq: int, **more: Any) -> Event:
    body = {
        "org": "acme",
        "run": "run_1",
        "event_id": event_id("acme", "run_1", type_, f"{epoch}/{seq}"),
        "occurred_at_us": 5,
        "writer_epoch": epoch,
        "seq": seq,
    }
    if seq == PROVISIONAL_SEQ:
        body["provisional"] = True
    return decode(encode(type_, body | more))


def state_of(*events: tuple[str, int, int], apart_ms: int = 1) -> State:
    state = State()
    for at, given in enumerate(events):
        state = fold(state, event(*given), at * apart_ms)
    return state


def reasons(state: State) -> list[tuple[str, str]]:
    return [(refused.type, refused.reason) for refused in state.refused]


def test_a_run_is_running_until_it_ends() -> None:
    assert state_of(CREATED).status == "running"
    assert state_of(CREATED, ("run.completed", 1, 1)).status == "completed"


def test_the_writers_own_end_supersedes_a_provisional_one_before_and_after() -> None:
    own = ("run.failed", 1, 1)
    late = state_of(CREATED, CUT, own)
    assert (late.status, reasons(late)) == ("failed", [])
    early = state_of(CREATED, own, CUT)
    assert (early.status, reasons(early)) == ("failed", [("run.interrupted", "ended")])


def test_a_provisional_end_is_final_after_seven_days() -> None:
    events = (CREATED, CUT, ("run.completed", 1, 1))
    assert state_of(*events, apart_ms=FINAL_AFTER_MS).status == "completed"
    late = state_of(*events, apart_ms=FINAL_AFTER_MS + 1)
    assert (late.status, reasons(late)) == ("interrupted", [("run.completed", "ended")])


def test_a_takeover_fences_the_lower_epoch() -> None:
    woken = state_of(CREATED, TAKEN, ("run.started", 1, 1), ("run.completed", 1, 2))
    assert (woken.status, woken.epoch) == ("running", 2)
    lower = [("run.started", "lower_epoch"), ("run.completed", "lower_epoch")]
    assert reasons(woken) == lower
    assert state_of(CREATED, CUT, TAKEN, ("run.completed", 2, 1)).status == "completed"
    assert state_of(CREATED, CUT, TAKEN, ("run.completed", 1, 1)).status == "running"


def test_another_event_under_the_same_number_is_a_conflict() -> None:
    state = state_of(CREATED, ("run.completed", 1, 1), ("run.failed", 1, 1))
    assert (state.status, reasons(state)) == ("completed", [("run.failed", "conflict")])


def test_a_second_beginning_changes_nothing() -> None:
    state = state_of(CREATED, ("run.created", 2, 0), ("run.completed", 1, 1))
    assert (state.status, reasons(state)) == ("completed", [("run.created", "began")])
