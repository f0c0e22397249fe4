"""HAR files: which entries are calls of models, and what of an entry is never stored."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from serve.importer.har import entry_id, is_har, read_entries
from serve.importer.lines import Line
from turnlog.errors import UsageError
from turnlog.providers import understand

ANSWER = {
    "model": "gpt-4o-mini",
    "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 2},
}


def entry(response: Any = ANSWER, **more: Any) -> dict[str, Any]:
    """Return an entry as browsers write it."""
    text = response if isinstance(response, str) else json.dumps(response)
    return {
        "startedDateTime": "2026-11-30T12:00:00.250+01:00",
        "time": 1500.5,
        "timings": {"blocked": 1, "dns": -1, "send": 0.5, "wait": 200, "receive": 1299},
        "request": {
            "method": "POST",
            "url": "https://me:pw@api.openai.com/v1/chat/completions?key=SECRET&alt=sse",
            "headers": [
                {"name": "Authorization", "value": "Bearer SECRET"},
                {"name": "Content-Type", "value": "application/json"},
            ],
            "cookies": [{"name": "s", "value": "SECRET"}],
            "postData": {"mimeType": "application/json", "text": '{"model": "gpt-4o-mini"}'},
        },
        "response": {
            "status": 200,
            "headers": [{"name": "Set-Cookie", "value": "SECRET"}],
            "content": {"mimeType": "application/json", "size": len(text), "text": text},
        },
        **more,
    }


def other(url: str, method: str = "GET", text: str = "<html>") -> dict[str, Any]:
    """Return an entry of the page around."""
    return {
        "startedDateTime": "2026-11-30T12:00:00Z",
        "request": {"method": method, "url": url},
        "response": {"status": 200, "content": {"mimeType": "text/html", "text": text}},
    }


def har(path: Path, *entries: Any, indent: int | None = None) -> Path:
    document = {"log": {"version": "1.2", "creator": {}, "entries": list(entries)}}
    path.write_text(json.dumps(document, indent=indent), encoding="utf-8-sig")
    return path


def read(tmp_path: Path, *entries: Any) -> list[Line]:
    return list(read_entries(har(tmp_path / "f", *entries)))


@pytest.mark.parametrize("indent", [None, 2])
def test_a_har_is_known_by_how_it_begins_and_not_by_its_name(
    tmp_path: Path, indent: int | None
) -> None:
    assert is_har(har(tmp_path / "x.jsonl", indent=indent))
    lines = tmp_path / "x.har"
    lines.write_text('{"id": "log", "status": 200}\n')
    assert not is_har(lines)
    assert not is_har(tmp_path / "missing")


def test_an_entry_is_read_with_its_times_and_without_its_secrets(tmp_path: Path) -> None:
    (line,) = read(tmp_path, entry())
    assert line.source is not None
    found = understand(line.source, at_us=1_796_000_000_000_000)
    assert (found.form, found.status, found.usage.cost_nano_usd) == ("chat", "completed", 2700)
    assert (line.source.host, line.source.path) == (
        "api.openai.com",
        "/v1/chat/completions?alt=sse",
    )
    assert "SECRET" not in str(found)
    assert "SECRET" not in str(line)
    told = line.told
    began_us = 1_796_036_400_250_000
    assert (told.began_us, told.ended_us) == (began_us, began_us + 1_500_500)
    assert (told.total_us, told.ttft_us) == (1_500_500, None)


def test_a_stream_s_first_byte_is_when_its_wait_ends(tmp_path: Path) -> None:
    body = "data: [DONE]\n\n"
    streamed = entry(body)
    streamed["response"]["content"]["mimeType"] = "text/event-stream"
    (line,) = read(tmp_path, streamed)
    assert line.source is not None
    assert (line.source.streaming, line.told.ttft_us) == (True, 200_500)


def test_bodies_in_base64_are_the_bytes(tmp_path: Path) -> None:
    raw = json.dumps(ANSWER).encode()
    given = entry()
    given["response"]["content"] |= {
        "text": base64.b64encode(raw).decode(),
        "encoding": "base64",
        "size": 9,
        "compression": 3,
    }
    (line,) = read(tmp_path, given)
    assert line.source is not None
    assert line.source.response == raw


def test_only_calls_of_models_are_taken(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        other("https://example.org/"),
        other("https://api.openai.com/v1/chat/completions", "OPTIONS", ""),
        entry(),
        other("https://api.openai.com/v1/embeddings", "POST", "{}"),
        other("https://example.org/api/log", "POST", "{}"),
    )
    assert [line.number for line in found] == [3, 4]


def test_entries_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    found = read(tmp_path, 7, {"request": {}}, entry(response="x") | {"response": {"status": 0}})
    assert [(line.id.partition("/")[0], line.reason) for line in found] == [
        ("entry:0", "not a JSON object"),
        ("entry:1", "request or response: missing"),
        ("har", "status: not within 100 to 599"),
    ]


def test_content_that_the_browser_did_not_keep_is_no_answer(tmp_path: Path) -> None:
    given = entry()
    del given["response"]["content"]["text"]
    (line,) = read(tmp_path, given)
    assert line.source is not None
    found = understand(line.source, at_us=1)
    assert (found.status, found.error_code) == ("interrupted", "cut_off")


def test_ids_depend_on_place_time_method_and_url_alone() -> None:
    first = entry_id(0, entry())
    assert first == entry_id(0, entry(response="other"))
    changed = entry()
    changed["request"]["url"] += "&x"
    others = [entry_id(1, entry()), entry_id(0, entry(startedDateTime="")), entry_id(0, changed)]
    assert len({first, *others}) == 4


@pytest.mark.parametrize(
    "given",
    [
        {"time": "long", "timings": None, "startedDateTime": 5},
        {"time": -1, "timings": {"wait": "x"}},
        {"time": 1e300, "startedDateTime": "0001-01-01T00:00:00Z"},
        {"request": {"method": "POST", "url": "http://[", "headers": 3, "postData": {"text": 1}}},
    ],
)
def test_odd_fields_break_nothing(tmp_path: Path, given: Any) -> None:
    for line in read(tmp_path, entry(**given)):
        assert line.source is not None or line.reason


@pytest.mark.parametrize("text", ['{"log": {', '{"log": {}}', '{"log": {"entries": {}}}'])
def test_a_file_that_begins_like_a_har_and_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "f"
    path.write_text(text)
    assert is_har(path)
    with pytest.raises(UsageError, match="begins like a HAR"):
        list(read_entries(path))
