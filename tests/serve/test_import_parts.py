"""The importer without a stack: lines, the plan of a file, the events of a line."""

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from serve.importer.events import Scope, conversation_created, events_of, ids_of, usage_recorded
from serve.importer.found import Known, Stored
from serve.importer.judge import Judge, frame_too_large
from serve.importer.lines import Line, check_file, read_lines
from serve.importer.plan import Plan
from serve.importer.report import MAX_LISTED, Noted
from tests.turnlog.providers.lines import AT_US, DONE, delta, line, read, stream
from turnlog.config import load
from turnlog.errors import UsageError
from turnlog.events import encode
from turnlog.ids import is_id
from turnlog.keys import MAX_FRAME_BYTES, Grant, Locator
from turnlog.keys.grant import Cover, DayGrant, OrgGrant, day_of, now_us
from turnlog.keys.tree import CoverNode
from turnlog.providers import understand

SCOPE = Scope("org_a", "default", bytes(32), AT_US)
USAGE = {"prompt_tokens": 10, "completion_tokens": 2}


def written(path: Path, *rows: Any) -> Path:
    texts = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"\n".join(texts))
    return path


# Lines.


def test_lines_that_are_no_exchange_are_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    good = line("chat", {})
    path = written(
        tmp_path / "f",
        b"\xef\xbb\xbf" + json.dumps(good | {"id": "first"}).encode(),
        b"not json",
        b"",
        [1],
        {"status": 200},
        good | {"id": "x", "status": "200"},
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"id": "\\ud800", "status": 200}',
        good | {"id": "last"},
    )
    assert [(found.id, found.reason) for found in read_lines(path)] == [
        ("first", ""),
        ("line:2", "not JSON"),
        ("line:4", "not a JSON object"),
        ("line:5", "id: missing"),
        ("x", "status: not an integer"),
        ("line:7", "not JSON"),
        ("line:8", "not JSON"),
        ("\ud800", "id: a lone surrogate, which no UTF-8 has"),
        ("last", ""),
    ]


def test_a_line_over_the_limit_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.importer.lines.MAX_LINE_BYTES", 1000)
    long = line("chat", "x" * 2_000_000)
    path = written(tmp_path / "f", long, line("chat", {}), long)
    assert [(found.id, found.reason) for found in read_lines(path)] == [
        ("line:1", "too_large"), ("line-1", ""), ("line:3", "too_large")
    ]  # fmt: skip


def test_a_file_that_is_none_is_the_users_mistake(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", tmp_path / "a\tname"):
        with pytest.raises(UsageError, match=str(path.name)):
            check_file(path)


def test_many_wrong_lines_are_counted_and_only_some_are_listed() -> None:
    noted = Noted()
    for number in range(MAX_LISTED + 5):
        noted.add("x" * 10_000 + "\ud800", f"{number}")
    rows = noted.rows()
    assert len(rows) == MAX_LISTED + 1
    assert rows[-1] == {"id": "", "reason": "and 5 more"}
    assert len(json.dumps(rows)) < 200_000


# The plan.


def exchange(id: str, n: int = 0, file: str = "f", response_id: str = "r") -> dict[str, Any]:
    body = {"id": response_id, "choices": [], "usage": USAGE}
    return line("chat", body, id=id, n=n, file=file)


def planned(tmp_path: Path, *rows: dict[str, Any]) -> tuple[Plan, list[Line]]:
    plan = Plan()
    lines = list(read_lines(written(tmp_path / "f", *rows)))
    for found in lines:
        assert found.source is not None
        plan.add(found, understand(found.source, at_us=AT_US))
    return plan, lines


def test_usage_is_booked_at_the_first_line_by_n_whatever_the_order(tmp_path: Path) -> None:
    rows = [exchange("c", 3), exchange("a", 1), exchange("b", 1), exchange("d", 0, "g")]
    rows += [exchange("e", 0, "", ""), exchange("e2", 1, "", ""), exchange("h", 7, response_id="s")]
    for seed in range(5):
        random.Random(seed).shuffle(rows)
        plan, lines = planned(tmp_path, *rows)
        sources = [found.source for found in lines if found.source]
        books = {s.id for s in sources if plan.books(understand(s, at_us=AT_US))}
        assert books == {"a", "d", "e", "e2", "h"}


def test_a_line_twice_is_a_repeat_and_another_one_under_its_id_is_not(tmp_path: Path) -> None:
    again = dict(reversed(exchange("a").items()))
    plan, lines = planned(tmp_path, exchange("a"), again, exchange("a", 1))
    assert [plan.repeats(found) for found in lines] == [False, True, True]
    assert [plan.same(found) for found in lines] == [True, True, False]


# Events.


def all_events(row: dict[str, Any]) -> list[Any]:
    found = read(row)
    ids = ids_of(found, SCOPE)
    begun = [conversation_created(found, ids, SCOPE)] if ids.conversation else []
    recorded = usage_recorded(found, found.usage, ids, SCOPE)
    return [*begun, *events_of(found, ids, SCOPE), recorded]


def test_a_line_gives_its_events_in_order_and_the_usage_last() -> None:
    request = {"model": "m", "messages": [{"role": "user", "content": "ask"}]}
    row = stream("chat", delta("a"), delta(finish="stop"), end=DONE, n=3)
    row["request_body"] = {"text": json.dumps(request)}
    found = all_events(row)
    assert [event.type for event in found] == [
        "conversation.created", "run.created", "turn.appended", "turn.appended", "chunk.batch",
        "run.completed", "usage.recorded",
    ]  # fmt: skip
    asked, answered = found[2].body, found[3].body
    assert (asked["import_seq"], asked["role"]) == (7, "user")
    assert (answered["import_seq"], answered["answer_run"]) == (8, answered["run"])
    assert found[2].content == {"text": "ask"}
    assert found[3].content is None
    assert found[5].content["output"] == [{"index": 0, "text": "a"}]
    assert all(event.body["may_repeat"] for event in found)
    assert {event.body["time_basis"] for event in found} == {"import"}


def test_a_line_that_stands_alone_has_no_conversation_and_no_turns() -> None:
    row = line("chat", {"choices": []}, {"messages": [{"role": "user", "content": "a"}]}, file="")
    assert [event.type for event in all_events(row)] == [
        "run.created", "run.completed", "usage.recorded"
    ]  # fmt: skip


def test_the_same_line_gives_the_same_ids_and_another_line_others() -> None:
    row = stream("chat", delta("a"), end=DONE, id="id with spaces", file="dir/file.yaml")
    first, second = all_events(row), all_events(row)
    other = all_events(row | {"id": "another"})
    ids = [event.body["event_id"] for event in first]
    assert ids == [event.body["event_id"] for event in second]
    assert len(set(ids)) == len(ids)
    assert set(ids) & {event.body["event_id"] for event in other} == {ids[0]}
    for event in first:
        assert all(is_id(event.body[name]) for name in ("run", "turn") if event.body.get(name))


def test_every_event_is_one_that_can_be_encoded_and_holds_no_content() -> None:
    secret = "SECRET content with spaces"
    request = {"model": secret, "messages": [{"role": "user", "content": secret}]}
    rows = [
        line("chat", {"model": secret, "choices": [{"finish_reason": secret}]}, request),
        stream("chat", delta(secret), {"error": secret}, provider=secret, id=secret),
        line("anthropic", {"error": {"message": secret}}, request, status=429, file=secret),
    ]
    for row in rows:
        for event in all_events(row):
            body = {name: value for name, value in event.body.items() if name != "event_id"}
            assert secret not in repr(body)
            assert secret.encode() not in encode(event.type, event.body)


def test_what_the_body_cannot_hold_is_kept_in_the_frame() -> None:
    body = {"model": "a model", "choices": [{"finish_reason": "an odd one"}]}
    found = all_events(line("chat", body, provider="my provider"))
    created, terminal = found[1], found[-2]
    assert created.content["source"] == {"provider": "my provider"}
    assert terminal.content["source"] == {"model": "a model", "finish_reason": "an odd one"}
    assert (terminal.body["model"], terminal.body["finish_reason"]) == ("other", "other")


def test_chunk_batches_are_of_16_kb_and_their_offsets_have_no_gap() -> None:
    row = stream("chat", *[delta("é" * 1000) for _ in range(30)], end=DONE)
    batches = [event for event in all_events(row) if event.type == "chunk.batch"]
    assert len(batches) == 4
    assert batches[0].body["char_offset"] == 0
    for before, after in pairwise(batch.body for batch in batches):
        assert after["char_offset"] == before["char_offset"] + before["chars"]
        assert after["first_seq"] == before["last_seq"] + 1
        assert after["seq"] == before["seq"] + 1


def test_only_a_counted_response_has_a_reference_and_it_is_opaque() -> None:
    counted, unknown = all_events(exchange("a"))[-1], all_events(line("chat", {"id": "r"}))[-1]
    assert counted.body["response_ref"].startswith("x_")
    assert unknown.body["response_ref"] == ""


def test_a_frame_is_too_large_by_its_sealed_size() -> None:
    noise = random.Random(1).randbytes(MAX_FRAME_BYTES)
    assert frame_too_large({"response": noise})
    assert not frame_too_large({"response": noise[:-2000]})
    assert not frame_too_large({"response": bytes(4 << 20)})


# Keys.


def grant(*nodes: CoverNode) -> Grant:
    """Return a grant of today whose tree has only these nodes left."""
    today = day_of(now_us())
    days = (DayGrant(bytes(16), today.day, 1, bytes(32), Cover(nodes)),)
    projects = {"default": {today: (bytes(16), today.day)}}
    return Grant([OrgGrant("org_a", bytes(32), projects, days)], now_us(), now_us() + 10**9)


def judged(keys: Grant, known: Known | None) -> str:
    found = read(line("chat", {"choices": []}))
    ids = ids_of(found, SCOPE)
    with Judge(load(), lambda: keys, SCOPE) as judge:
        return judge.judge(list(events_of(found, ids, SCOPE)), ids, known).kind


def test_nothing_is_written_under_an_erased_key() -> None:
    day = day_of(now_us()).day
    whole_day = CoverNode(8, bytes([day]), bytes(32))
    held = Known("default", Locator(bytes(16), day, 0), Stored(bytes(32), 0, 0))
    assert judged(grant(whole_day), None) == "write"
    assert judged(grant(), None) == "erased"
    assert judged(grant(), held) == "erased"
