"""Estimates of usage, and when they are taken back."""

import base64
import json
from typing import Any

from processors.estimates import (
    KEPT_MS,
    NO_SEQ,
    WINDOW_MS,
    Estimates,
    Shown,
    estimate,
    estimate_id,
    request_chars,
    undo_id,
)
from turnlog.events import Event, decode, encode


def used(quality: str, run: str = "run_1", event_id: bytes = b"e" * 16, **more: Any) -> Event:
    body = {
        "org": "acme",
        "run": run,
        "event_id": event_id,
        "occurred_at_us": 5,
        "writer_epoch": 1,
        "quality": quality,
        "input_uncached": 3,
    }
    return decode(encode("usage.recorded", body | more))


def estimated(run: str = "run_1") -> Event:
    return used("estimated", run, estimate_id("acme", run, 1), seq=NO_SEQ)


def test_a_quarter_of_the_characters_rounded_up() -> None:
    assert estimate(Shown(9, 4, 1)) == (
        "estimated",
        "writer_lost",
        {"input_uncached": 3, "output_text": 1, "output_reasoning": 1},
    )


def test_text_of_a_request_counts_and_images_do_not() -> None:
    image = base64.b64encode(bytes(range(256)) * 9).decode()
    said = {"model": "m", "messages": [{"content": ["twelve words", {"url": image}]}]}
    for url in (image, f"data:image/png;base64,{image}"):
        said["messages"][0]["content"][1]["url"] = url  # type: ignore[index]
        assert request_chars(json.dumps(said).encode()) == 13
    assert request_chars("nöt JSON".encode()) == 8
    assert request_chars(b'{"a": 1}') == 8
    assert request_chars(b"[" * 900 + b"]" * 900) == 1800
    assert request_chars(b"\xff\xfe") == 2


def test_what_nobody_knows_is_unknown_and_not_zero() -> None:
    assert estimate(Shown(None, 0, 0))[0] == "unknown"
    assert estimate(Shown(None, 5, 0))[:2] == ("estimated", "no_request")
    assert estimate(Shown(1, 0, 0))[:2] == ("estimated", "writer_lost")


def test_a_measured_event_takes_the_estimate_back_before_and_after_it() -> None:
    for events in ([estimated(), used("measured")], [used("measured"), estimated()]):
        state = Estimates()
        undone = [body for at, e in enumerate(events) for body in state.take(e, at, at)]
        (body,) = undone
        assert (body["event_id"], body["sign"]) == (undo_id("acme", "run_1", 1), -1)
        assert (body["input_uncached"], body["corrects"]) == (3, estimate_id("acme", "run_1", 1))
        decode(encode("usage.corrected", body))


def test_nothing_else_takes_it_back() -> None:
    state = Estimates()
    others = [used("unknown"), used("estimated"), used("measured", "run_2"),
              used("measured", sign=-1)]  # fmt: skip
    for at, event in enumerate([estimated(), estimated(), *others]):
        assert state.take(event, at, at) == []


def test_once_undone_it_is_forgotten_and_the_checkpoint_hears_of_it() -> None:
    state = Estimates()
    state.take(estimated(), 0, 0)
    (changed,) = state.changes()
    assert changed[:2] == (b"acme/run_1", 1)
    (body,) = state.take(used("measured"), 1, 1)
    state.take(decode(encode("usage.corrected", body)), 2, 2)
    assert state.take(used("measured"), 3, 3) == []
    assert state.changes() == [(b"acme/run_1", 1, None)]


def test_a_restart_knows_the_estimates_and_reads_the_window_again() -> None:
    state = Estimates()
    state.take(used("measured", "run_2"), 4, 0)
    state.take(estimated(), 5, 1)
    assert state.rewind(6) == 4
    state.take(used("measured", "run_3"), 7, WINDOW_MS + 1)
    assert state.rewind(8) == 7
    (_, _, waiting) = state.changes()[0]
    assert waiting is not None
    again = Estimates()
    again.restore(*waiting)
    assert len(again.take(used("measured"), 9, 9)) == 1


def test_an_estimate_that_became_final_is_forgotten() -> None:
    state = Estimates()
    state.take(estimated(), 0, 0)
    state.expire(KEPT_MS)
    assert len(state.take(used("measured"), 1, KEPT_MS)) == 1
    state.expire(KEPT_MS + 1)
    assert state.take(used("measured"), 2, KEPT_MS + 1) == []
