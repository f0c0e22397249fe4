"""The canonical row of a usage event."""

from typing import Any

import pytest

from processors import runs, usage
from processors.common import IDENTITY, identity
from sinks.clickhouse.tables import CLASSES
from turnlog.events import TYPES, Event, decode, encode
from turnlog.ids import event_id

ID = event_id("acme", "run_1", "usage.recorded", "1/0")


def recorded(**more: Any) -> Event:
    body = {
        "org": "acme",
        "conversation": "c",
        "run": "run_1",
        "event_id": ID,
        "occurred_at_us": 1_700_000_000_000_000,
        "quality": "measured",
        "input_uncached": 3,
        "cost_nano_usd": 0,
        "provider_usage": {"prompt_tokens": "3"},
    }
    return decode(encode("usage.recorded", body | more))


def row_of(event: Event) -> dict[str, Any]:
    found = usage.canonical(event)
    assert found is not None
    return found[2]


def test_the_row_is_keyed_by_stream_and_event() -> None:
    found = usage.canonical(recorded())
    assert found is not None
    assert found[:2] == (b"acme/c", ID)
    alone = usage.canonical(recorded(conversation=""))
    assert alone is not None and alone[0] == b"acme/run_1"


def test_the_row_holds_what_happened_and_no_empty_values() -> None:
    assert row_of(recorded()) == {
        "type": "usage.recorded",
        "org": "acme",
        "conversation": "c",
        "run": "run_1",
        "occurred_at_us": 1_700_000_000_000_000,
        "time_basis": "event",
        "schema_version": 1,
        "sign": 1,
        "quality": "measured",
        "input_uncached": 3,
        "cost_nano_usd": 0,
        "provider_usage": {"prompt_tokens": "3"},
    }


def test_no_price_and_a_price_of_zero_differ() -> None:
    assert "cost_nano_usd" not in row_of(recorded(cost_nano_usd=None))


@pytest.mark.parametrize(
    "change",
    [
        {"producer_id": "p", "producer_epoch": 3, "producer_seq": 4},
        {"may_repeat": True},
        {"key_tree": b"t" * 16, "key_day": 3, "key_gen": 1},
    ],
)
def test_how_it_came_and_what_opens_it_are_left_out(change: dict[str, Any]) -> None:
    assert row_of(recorded(**change)) == row_of(recorded())


def test_the_time_of_an_import_is_left_out() -> None:
    imported = [recorded(time_basis="import", occurred_at_us=us) for us in (1, 2)]
    assert row_of(imported[0]) == row_of(imported[1])


def test_a_value_out_of_its_shape_reads_other_and_an_id_refuses_the_event() -> None:
    written = recorded()
    bad_value = written._replace(body=written.body | {"model": "what did you say?"})
    assert row_of(bad_value)["model"] == "other"
    assert usage.canonical(written._replace(body=written.body | {"run": "a b"})) is None
    assert usage.canonical(written._replace(body=written.body | {"org": ""})) is None


def test_each_view_takes_the_types_of_its_topic() -> None:
    for view in (usage, runs):
        assert set(view.TYPES) == {k.name for k in TYPES.values() if k.topic == view.TOPIC}
    assert runs.canonical(recorded()) is None
    assert set(runs.TERMINAL) < set(runs.TYPES)


def test_the_classes_are_those_of_the_schema() -> None:
    assert usage.CLASSES == CLASSES
    assert len(CLASSES) == 11


def test_an_identity_is_told_apart_by_each_of_its_fields() -> None:
    event = recorded()
    own = identity(event.type, event.body)
    for name in IDENTITY:
        if name == "type":
            assert identity("usage.corrected", event.body) != own
        else:
            other = b"m" * 32 if name == "content_mac" else 7
            assert identity(event.type, event.body | {name: other}) != own
    assert identity(event.type, event.body | {"provider_usage": {}, "may_repeat": True}) == own


@pytest.mark.parametrize("name", usage.NUMBERS)
def test_other_numbers_under_the_same_event_id_are_another_event(name: str) -> None:
    event = recorded()
    own = identity(event.type, event.body, usage.NUMBERS)
    assert identity(event.type, event.body | {name: 1234}, usage.NUMBERS) != own
    assert identity(event.type, event.body | {"may_repeat": True}, usage.NUMBERS) == own


def test_an_event_without_those_numbers_has_an_identity_all_the_same() -> None:
    outcome = {"org": "acme", "run": "r", "event_id": ID, "occurred_at_us": 1}
    event = decode(encode("task.outcome", outcome))
    assert identity(event.type, event.body, usage.NUMBERS) == identity(event.type, event.body)
