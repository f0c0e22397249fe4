"""Containers hold the events as they are, without their frames, and nothing that is none."""

import io
from typing import Any

import fastavro
import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from sinks.clickhouse.container import Batch, Builder, Built, event_id, may_repeat
from sinks.clickhouse.tables import RUNS, USAGE
from turnlog.events import decode, encode

ids = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
numbers = st.integers(-(2**63), 2**63 - 1)
bodies = st.fixed_dictionaries(
    {
        "org": ids,
        "conversation": ids | st.just(""),
        "run": ids,
        "event_id": st.binary(min_size=16, max_size=16),
        "occurred_at_us": numbers,
        "frame": st.binary(max_size=300),
        "content_mac": st.just(b"") | st.binary(min_size=32, max_size=32),
        "seq": numbers,
        "producer_seq": numbers,
        "may_repeat": st.booleans(),
        "ttft_us": st.none() | numbers,
        "versions": st.dictionaries(ids, ids, max_size=3),
    }
)
places = st.tuples(st.integers(0, 200), st.integers(0, 2**48), st.integers(0, 4_102_444_800_000))


def built(builder: Builder, records: list[tuple[Any, ...]], **more: Any) -> Built:
    """Build records of `(key, value, partition, offset, append_ms)`."""
    return builder.build(Batch(*(list(column) for column in zip(*records, strict=True))), **more)


def rows(found: Built) -> list[dict[str, Any]]:
    """Read containers back with an Avro library that knows nothing of us."""
    read: list[Any] = []
    for container in found.containers:
        file = io.BytesIO(b"".join(container.pieces))
        part = list(fastavro.reader(file))
        assert len(part) == container.records
        read += part
    return read


def _key(body: dict[str, Any]) -> bytes:
    return f"{body['org']}/{body['conversation'] or body['run']}".encode()


cases = st.tuples(bodies, places, st.sampled_from(["run.completed", "run.failed"]))


@given(st.lists(cases, min_size=1, max_size=6, unique_by=lambda case: case[1][:2]))
def test_a_container_holds_the_events_with_their_coordinates(cases: list[Any]) -> None:
    records = [(_key(b), encode(t, b), *place) for b, place, t in cases]
    builder = Builder(RUNS)
    found = built(builder, records)
    assert found.refused == []
    read = {(row["partition"], row["offset"]): row for row in rows(found)}
    for key, value, partition, offset, ms in records:
        body = decode(value).body
        row = read[(partition, offset)]
        assert row["append_us"] == ms * 1000
        assert row["frame_bytes"] == len(body["frame"])
        assert row["frame"] == b""
        assert row["header"] == value[:10]
        for name in (
            "run",
            "event_id",
            "seq",
            "occurred_at_us",
            "ttft_us",
            "content_mac",
            "may_repeat",
        ):
            assert row[name] == body[name], key
        assert row["versions_wire"] == body["versions"]
    assert sum(map(len, found.event_ids.values())) == len(records)


@given(bodies, places, st.booleans())
def test_a_second_look_at_a_key_gives_the_same(
    body: dict[str, Any], place: tuple[int, int, int], framed: bool
) -> None:
    """The first record of a key takes the long way, the next the short one."""
    body = body if framed else body | {"frame": b""}
    builder = Builder(RUNS)
    record = (_key(body), encode("run.started", _only(body)), *place)
    first, second = built(builder, [record]), built(builder, [record, record])
    assert rows(first) * 2 == rows(second)
    assert second.event_ids == {place[0]: [body["event_id"]] * 2}


def _only(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "versions"}


@given(bodies)
def test_may_repeat_and_the_event_id_are_read_from_the_bytes(body: dict[str, Any]) -> None:
    value = encode("run.completed", body)
    assert may_repeat(value) is body["may_repeat"]
    assert event_id(value) == body["event_id"]
    framed = (_key(body), value, 0, 1, 2)
    bare = (_key(body), encode("run.completed", body | {"frame": b""}), 0, 2, 2)
    for record in (framed, bare):
        builder = Builder(RUNS)
        for _ in range(2):
            assert built(builder, [record], flags=True).may_repeat is body["may_repeat"]
        assert not built(builder, [record]).may_repeat


def usage_value(**more: Any) -> bytes:
    body = {"org": "acme", "conversation": "c", "run": "r", "event_id": b"e" * 16}
    return encode("usage.recorded", body | {"occurred_at_us": 1} | more)


GOOD = usage_value()


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (b"acme/c", None, "no value"),
        (None, GOOD, "no key"),
        (b"acme/other", GOOD, "the key is not that of the event"),
        (b"evil/c", GOOD, "the key is not that of the event"),
        (b"acme", GOOD, "the key is not"),
        (b"acme/r", GOOD, "the key is not that of the event"),
        (b"acme/c", b"{}", "not in Avro"),
        (b"acme/c", b"", "not in Avro"),
        (b"acme/c", b"\xc3\x01" + b"?" * 40, "fingerprint 3f3f3f3f3f3f3f3f is not known"),
        (b"acme/c", GOOD[:30], "ends within"),
        (b"acme/c", GOOD[:12], "the key is not that of the event"),
        (
            b"acme/c",
            encode(
                "run.started",
                {"org": "acme", "conversation": "c", "event_id": b"e" * 16, "occurred_at_us": 1},
            ),
            "run.started does not belong in turnlog.usage",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_an_event_is_refused_and_the_rest_goes_on(
    key: bytes | None, value: bytes | None, reason: str
) -> None:
    builder = Builder(USAGE)
    for _ in range(2):
        found = built(
            builder, [(b"acme/c", GOOD, 3, 7, 9), (key, value, 3, 8, 9), (b"acme/c", GOOD, 3, 9, 9)]
        )
        assert [at for at, _ in found.refused] == [1]
        assert reason in found.refused[0][1]
        assert [row["offset"] for row in rows(found)] == [7, 9]
        assert found.event_ids == {3: [b"e" * 16] * 2}


def test_a_run_id_of_full_length_takes_the_long_way() -> None:
    builder = Builder(USAGE)
    record = (b"acme/c", usage_value(run="r" * 64), 0, 1, 1)
    found = built(builder, [record, record])
    assert [row["run"] for row in rows(found)] == ["r" * 64] * 2
    assert found.event_ids == {0: [b"e" * 16] * 2}


def test_a_batch_is_taken_apart_without_headers() -> None:
    message = Message(
        topic="t", partition=2, offset=5, key=b"k", value=b"v", timestamp=(2, 1_700_000_000_123)
    )
    assert Batch.of([message]) == ([b"k"], [b"v"], [2], [5], [1_700_000_000_123])
    assert Batch.of([message, message]).only([1]) == Batch.of([message])
