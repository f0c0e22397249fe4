import shutil
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from serve.runs_api import find_run, list_runs, printable, run_content, run_summary, time_text
from serve.views import wait_for
from tests.serve.runs_written import (
    Written,
    created,
    ended,
    erase_run,
    lose_pages,
    used,
    write_runs,
)
from turnlog.config import Config
from turnlog.errors import FrameError, KeyUnavailable, NotFound, TurnlogError, UsageError

DAMAGED = ended("completed", frame=b"\1\1" + bytes(60), content_mac=bytes(32))
DAMAGED = DAMAGED._replace(content=None)
TAKEN_OVER = Written(
    "run.taken_over", {"occurred_at_us": 1_760_000_000_500_000, "writer_epoch": 2, "seq": 0}
)
RUNS = {
    "plain": [
        created(b'{"ask": 1}', source_ref="line-7", provider="openai", model="gpt", streaming=True),
        ended("completed", b"\x00\xffbytes", provider="openai", model="gpt-2025"),
        used(input_uncached=5, output_text=7, cost_nano_usd=1_234_567_890),
    ],
    "open": [created(b"later", occurred_at_us=1_760_000_001_000_000)],
    "superseded": [
        created(),
        ended("interrupted", b"cut", seq=2**63 - 1, provisional=True),
        used(quality="estimated", output_text=3),
        ended("completed", b"whole"),
        used(quality="estimated", output_text=3, sign=-1, natural="undo"),
        used(output_text=9, cost_nano_usd=5, natural="late"),
    ],
    "taken_over": [
        created(),
        ended("failed", b"first", seq=40),
        ended("cancelled", b"second", writer_epoch=2, seq=1),
        used(quality="unknown", reason="no_usage"),
    ],
    "fenced": [
        created(),
        TAKEN_OVER,
        ended("completed", b"woken up", seq=2),
    ],
    "began_twice": [
        created(b"first", provider="first"),
        created(b"second", provider="second", writer_epoch=2),
        ended("completed"),
        used(output_text=1, natural="priced", cost_nano_usd=1),
        used(output_text=1, natural="unpriced"),
    ],
    "silent": [created(), ended("failed")._replace(content=None)],
    "damaged": [created(), DAMAGED],
    "erased": [created(), ended("completed")],
    "erased_open": [created()],
    "erased_silent": [created(), ended("failed")._replace(content=None)],
}


@pytest.fixture(scope="module")
def org(stack: Config) -> str:
    """An org whose runs have reached every view, three of them erased."""
    name = f"runs_{uuid.uuid4().hex[:8]}"
    locators = write_runs(stack, name, RUNS)
    for run in ("erased", "erased_open", "erased_silent"):
        erase_run(stack, name, run, locators[run])
    assert wait_for(stack, ["runs", "usage", "packs", "locator"], 120) == {}
    return name


def listed(config: Config, org: str, **narrowed: Any) -> dict[str, dict[str, Any]]:
    return {row["run"]: row for row in list_runs(config, org, **narrowed)}


def test_a_run_is_listed_with_all_that_is_known_of_it(stack: Config, org: str) -> None:
    row = listed(stack, org)["plain"]
    refs = [row.pop(name) for name in ("content_ref", "request_ref")]
    assert all(ref.startswith(f"s3://{stack.content_bucket}/ingest/") for ref in refs)
    assert row == {
        "run": "plain",
        "source_ref": "line-7",
        "conversation": None,
        "provider": "openai",
        "model": "gpt-2025",
        "status": "completed",
        "started_at": "2025-10-09T08:53:20.000000Z",
        "ended_at": "2025-10-09T08:53:21.500000Z",
        "usage": {
            "input_uncached": 5,
            "cache_read": 0,
            "cache_write_5m": 0,
            "cache_write_1h": 0,
            "output_text": 7,
            "output_reasoning": 0,
            "audio_in": 0,
            "audio_out": 0,
            "image_in": 0,
            "image_out": 0,
            "tool_use": 0,
            "quality": "measured",
        },
        "cost_nano_usd": 1_234_567_890,
    }


def test_all_runs_are_listed_newest_first_unless_there_is_a_limit(stack: Config, org: str) -> None:
    rows = listed(stack, org)
    assert set(rows) == set(RUNS)
    assert next(iter(rows)) == "open"
    assert list(listed(stack, org, limit=2)) == list(rows)[:2]


def test_lists_are_narrowed_by_project_and_status(stack: Config, org: str) -> None:
    assert set(listed(stack, org, status="running")) == {"open", "erased_open", "fenced"}
    assert set(listed(stack, org, status="cancelled")) == {"taken_over"}
    assert set(listed(stack, org, project="default")) == set(RUNS)
    assert listed(stack, org, project="other") == {}


@pytest.mark.parametrize(
    ("run", "status", "quality", "tokens", "cost"),
    [
        ("open", "running", "unknown", None, None),
        ("superseded", "completed", "measured", 9, 5),
        ("taken_over", "cancelled", "unknown", None, None),
        ("fenced", "running", "unknown", None, None),
        ("began_twice", "completed", "measured", 2, None),
    ],
)
def test_state_and_usage_are_those_that_count(
    stack: Config,
    org: str,
    run: str,
    status: str,
    quality: str,
    tokens: int | None,
    cost: int | None,
) -> None:
    row = listed(stack, org)[run]
    assert (row["status"], row["usage"]["quality"]) == (status, quality)
    assert (row["usage"]["output_text"], row["cost_nano_usd"]) == (tokens, cost)


@pytest.mark.parametrize(
    ("run", "which", "stored"),
    [
        ("plain", "response", b"\x00\xffbytes"),
        ("plain", "request", b'{"ask": 1}'),
        ("open", "request", b"later"),
        ("superseded", "response", b"whole"),
        ("taken_over", "response", b"second"),
        ("began_twice", "request", b"first"),
    ],
)
def test_content_is_exactly_what_was_stored(
    stack: Config, org: str, run: str, which: Any, stored: bytes
) -> None:
    assert run_content(stack, org, run, which) == stored


def test_a_running_run_has_no_response_yet(stack: Config, org: str) -> None:
    with pytest.raises(TurnlogError, match="run open: it is still running"):
        run_content(stack, org, "open")


def test_a_run_that_ended_without_a_response_has_none(stack: Config, org: str) -> None:
    with pytest.raises(TurnlogError, match="run silent: it has no stored response"):
        run_content(stack, org, "silent")


def test_a_summary_has_the_output(stack: Config, org: str) -> None:
    summary = run_summary(stack, org, "taken_over")
    assert summary["output"] == [{"index": 0, "text": "second"}]
    assert run_summary(stack, org, "open")["output"] == []
    assert run_summary(stack, org, "silent")["output"] == []


@pytest.mark.parametrize(
    "run", ["erased", "erased_open", "erased_silent", "never_was", "what's this?"]
)
def test_missing_foreign_and_erased_get_one_and_the_same_answer(
    stack: Config, org: str, run: str
) -> None:
    asked: list[Callable[[Config, str, str], object]]
    asked = [run_summary, run_content, partial(run_content, which="request")]
    for name in (org, "local", "no_such_org"):
        for ask in asked:
            with pytest.raises(NotFound) as error:
                ask(stack, name, run)
            assert str(error.value) == f"run {run}: not found"


def test_a_run_of_another_org_is_not_found_even_by_its_id(stack: Config, org: str) -> None:
    with pytest.raises(NotFound):
        find_run(stack, "local", "plain")
    shutil.move(stack.credentials / f"{org}.json", stack.credentials / "aside")
    try:
        with pytest.raises(NotFound, match="run plain: not found"):
            run_content(stack, org, "plain")
        with pytest.raises(UsageError, match="has no credential"):
            list_runs(stack, org)
    finally:
        shutil.move(stack.credentials / "aside", stack.credentials / f"{org}.json")


def test_a_key_that_cannot_be_read_is_never_not_found(stack: Config) -> None:
    name = f"keyless_{uuid.uuid4().hex[:8]}"
    write_runs(stack, name, {"run_1": [created(), ended("completed")]})
    lose_pages(stack, name)
    assert wait_for(stack, ["runs"], 120) == {}
    for ask in (run_content, run_summary):
        with pytest.raises(
            KeyUnavailable, match="run run_1: its key cannot be read now, try again"
        ):
            ask(stack, name, "run_1")


def test_a_frame_that_does_not_open_names_its_place_and_object(stack: Config, org: str) -> None:
    place = find_run(stack, org, "damaged").response
    with pytest.raises(FrameError) as error:
        run_content(stack, org, "damaged")
    named = (
        f"the frame of turnlog.runs/{place.partition}/{place.offset} ({place.ref}) does not open"
    )
    assert str(error.value).startswith(named)


def test_times_are_utc_with_microseconds_and_impossible_ones_are_none() -> None:
    assert time_text(1_760_000_000_000_001) == "2025-10-09T08:53:20.000001Z"
    assert time_text(0) is None
    assert time_text(2**62) is None


def test_text_that_cannot_be_encoded_is_made_printable() -> None:
    assert printable({"a": ["\ud83d\ude00", "\ud83d", 1, None]}) == {"a": ["😀", "�", 1, None]}
