"""Evolution: every version that landed can read every other one, for ever."""

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from fastavro import schemaless_reader, schemaless_writer
from hypothesis import given
from hypothesis import strategies as st

from tests.turnlog.events.bodies import bodies, per_type
from turnlog.errors import TurnlogError
from turnlog.events import TYPES, EventType, evolution
from turnlog.events.codec import complete
from turnlog.events.schema import read_type

Raw = dict[str, Any]
NOTE = {"name": "note", "type": "string", "default": "", "doc": "New."}


def changed(name: str, change: Callable[[Raw], None]) -> EventType:
    raw = json.loads(TYPES[name].text)
    change(raw)
    return read_type(json.dumps(raw))


def field(raw: Raw, name: str) -> Raw:
    found: Raw = next(one for one in raw["fields"] if one["name"] == name)
    return found


def without(*names: str) -> Callable[[Raw], None]:
    def change(raw: Raw) -> None:
        raw["fields"] = [one for one in raw["fields"] if one["name"] not in names]

    return change


def test_every_type_reads_every_version_that_landed() -> None:
    assert evolution.problems() == []


def test_what_an_array_holds_is_looked_into() -> None:
    def change(raw: Raw) -> None:
        inner = field(raw, "ranges")["type"]["items"]["fields"]
        inner.append({"name": "extra", "type": "long", "doc": "New."})

    other = changed("pack.added", change)
    found = evolution.reading_problems(other, TYPES["pack.added"])
    assert found == ["pack.added.ranges[].extra: is not in the other version and has no default"]


ALLOWED: list[tuple[str, Callable[[Raw], None]]] = [
    ("run.created", lambda raw: raw["fields"].append(NOTE)),
    ("run.created", without("parent_run")),
    ("run.created", without("provider", "versions")),
    ("usage.recorded", lambda raw: field(raw, "sign").update(doc="Other words.")),
]


@pytest.mark.parametrize(("name", "change"), ALLOWED)
def test_fields_with_defaults_come_and_go(name: str, change: Callable[[Raw], None]) -> None:
    other = changed(name, change)
    assert evolution.compare(other, [other, TYPES[name]]) == []


@pytest.mark.parametrize(("name", "change"), ALLOWED)
@per_type
@given(st.data())
def test_what_is_allowed_is_read_by_fastavro_both_ways(
    name: str, change: Callable[[Raw], None], data: st.DataObject
) -> None:
    pair = (TYPES[name], changed(name, change))
    for writer, reader in (pair, pair[::-1]):
        body = complete(writer, data.draw(bodies(writer)))
        out = BytesIO()
        schemaless_writer(out, writer.schema, body)
        read = schemaless_reader(BytesIO(out.getvalue()), writer.schema, reader.schema)
        assert isinstance(read, dict)
        assert {key: body[key] for key in read if key in body} == {
            key: value for key, value in read.items() if key in body
        }


def retype(name: str, avro_type: Any, default: Any) -> Callable[[Raw], None]:
    return lambda raw: field(raw, name).update(type=avro_type, default=default)


REFUSED: list[tuple[str, Callable[[Raw], None], str]] = [
    (
        "run.created",
        lambda raw: (
            raw["fields"].append({**NOTE, "name": "x"} | {"default": None, "type": "long"})
            or raw["fields"][-1].pop("default")
        ),
        "run.created.x: is not in the other version and has no default",
    ),
    ("run.created", retype("streaming", "string", ""), "boolean cannot be read as string"),
    ("chunk.batch", retype("chunks", "long", 0), "long cannot be read as int"),
    ("run.started", retype("ttft_us", "long", 0), "null cannot be read as long"),
    ("run.started", retype("model", ["null", "long"], None), "no branch of the union takes string"),
    ("run.created", retype("seq", "int", 0), "the common fields changed"),
    ("run.created", retype("provider", "string", "openai"), "provider: its default changed"),
    ("run.created", lambda raw: raw["fields"].insert(24, NOTE), "a new one is not at the end"),
    ("run.created", lambda raw: raw["fields"].insert(5, NOTE), "the common fields changed"),
    ("run.created", lambda raw: raw["fields"].insert(24, raw["fields"].pop()), "changed places"),
    ("run.created", lambda raw: raw.update(topic="turnlog.usage"), "moved from turnlog.runs"),
    (
        "run.created",
        lambda raw: raw.update(name="Other"),
        "turnlog.RunCreated became turnlog.Other",
    ),
]


@pytest.mark.parametrize(("name", "change", "said"), REFUSED)
def test_other_changes_are_refused(name: str, change: Callable[[Raw], None], said: str) -> None:
    other = changed(name, change)
    found = evolution.compare(other, [other, TYPES[name]])
    assert any(said in problem for problem in found), found


def enums(reader: list[str], writer: list[str], default: str = "") -> list[str]:
    def of(symbols: list[str], default: str) -> EventType:
        def change(raw: Raw) -> None:
            kind = {"type": "enum", "name": "Mood", "symbols": symbols}
            kind |= {"default": default} if default else {}
            raw["fields"].append({"name": "mood", "type": kind, "default": symbols[0]})

        return changed("run.created", change)

    return evolution.reading_problems(of(reader, default), of(writer, default))


def test_a_symbol_more_needs_a_default_for_those_who_do_not_know_it() -> None:
    assert enums(["good"], ["good", "bad"]) == [
        "run.created.mood: symbol bad is unknown and there is no default"
    ]
    assert enums(["good"], ["good", "bad"], default="good") == []
    assert enums(["good", "bad"], ["good"]) == []


def test_a_fixed_keeps_its_size() -> None:
    def of(size: int) -> EventType:
        kind = {"type": "fixed", "name": "Mark", "size": size}
        new = {"name": "mark", "type": kind, "default": "\0" * size}
        return changed("run.created", lambda raw: raw["fields"].append(new))

    assert evolution.reading_problems(of(8), of(16)) == ["run.created.mark: 16 bytes became 8"]


def test_a_version_that_is_not_recorded_is_named() -> None:
    other = changed("run.created", lambda raw: raw["fields"].append(NOTE))
    assert evolution.compare(other, [TYPES["run.created"]]) == [
        "run.created: not recorded; run `turnlog topics schemas --record`"
    ]


def test_recording_is_done_once_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evolution, "history_folder", lambda: tmp_path)
    assert len(evolution.problems()) == len(TYPES)
    assert evolution.record_present() == list(TYPES)
    assert evolution.record_present() == []
    assert evolution.problems() == []
    landed = evolution.history()["run.created"]
    assert [kind.text for kind in landed] == [TYPES["run.created"].text]


def test_a_type_that_was_removed_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evolution, "history_folder", lambda: tmp_path)
    evolution.record_present()
    gone = read_type(TYPES["run.created"].text.replace('"run.created"', '"run.dreamt"'))
    (tmp_path / "run.dreamt").mkdir()
    (tmp_path / "run.dreamt" / f"{gone.fingerprint.hex()}.avsc").write_text(gone.text)
    assert evolution.problems() == ["run.dreamt: its events can no longer be read"]


def test_a_misplaced_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evolution, "history_folder", lambda: tmp_path)
    (tmp_path / "run.created").mkdir()
    (tmp_path / "run.created" / "0000.avsc").write_text(TYPES["run.created"].text)
    with pytest.raises(TurnlogError, match=r"0000\.avsc"):
        evolution.history()
