import hashlib
import io
from typing import Any

import pytest
from confluent_kafka import Message, Producer

from processors.digest import ViewDigest
from processors.packs import canonical
from sinks.packs.layout import IndexRow, PackError
from sinks.packs.store import PackStore
from sinks.packs.writer import write_pack
from streams.archive import Archive
from streams.ingest_sink import MISPLACED, IngestSink, digest, pack_record
from streams.manifests import Manifests, live_manifests
from streams.views import ARCHIVED
from tests.streams.log import new_org, read, run_body, write, write_raw
from turnlog.config import Config
from turnlog.errors import DecodeError
from turnlog.events import decode, encode, key_of
from turnlog.kafka import partition_of, producer_settings, read_all


def runs(config: Config, *orgs: str, count: int = 5) -> list[Message]:
    write(
        config,
        [
            ("run.completed", run_body(org, f"run_{number}", model=f"m{number}"))
            for number in range(count)
            for org in orgs
        ],
    )
    return [message for org in orgs for message in read(config, "turnlog.runs", org)]


def place(message: Message) -> tuple[str | None, int | None, int | None]:
    return message.topic(), message.partition(), message.offset()


def archived(config: Config, *orgs: str) -> list[tuple[str, int, int]]:
    return sorted(row[1:4] for row in Archive(config).rows() if row.org in orgs)


def objects(config: Config, *orgs: str) -> set[str]:
    return {m.object for m in live_manifests(config) if m.org in orgs}


def started(config: Config, messages: list[Message]) -> IngestSink:
    sink = IngestSink(config)
    sink.recover({(str(m.topic()), int(m.partition() or 0)): 0 for m in messages})
    return sink


@pytest.fixture(scope="module", autouse=True)
def whole_log_archived(stores: Config) -> None:
    """Archive what tests of other modules left in the log: a digest is that of all of it."""
    messages = [message for topic in ARCHIVED for message in read_all(stores, topic)]
    if messages:
        started(stores, messages).write(messages)


def fold(config: Config) -> tuple[int, str]:
    """Fold all that can be read of the log; each test archives what it wrote."""
    view, seen = ViewDigest(), set()
    for topic in ARCHIVED:
        for message in read_all(config, topic):
            try:
                event = decode(message.value() or b"")
            except DecodeError:
                continue
            if message.key() == key_of(*event) and event.body["event_id"] not in seen:
                seen.add(event.body["event_id"])
                row = canonical(event)
                assert row is not None
                view.add(*row)
    return view.result()


def remove(config: Config, name: str, org: str) -> None:
    producer = Producer(producer_settings(config))
    for message in read_all(config, "turnlog.packs"):
        if message.key() == f"{org}/{name}".encode():
            producer.produce(
                "turnlog.packs", None, message.key(), partition=message.partition() or 0
            )
    producer.flush(30)


def test_a_batch_becomes_one_object_of_all_orgs_and_partitions(stores: Config) -> None:
    some, other = new_org("a"), new_org("b")
    messages = runs(stores, some, other)
    assert started(stores, messages).write(messages) == []
    assert archived(stores, some, other) == sorted(map(place, messages))
    assert len(objects(stores, some, other)) == 1
    assert digest(stores) == fold(stores)


def test_the_archive_holds_what_kafka_held_byte_for_byte(stores: Config) -> None:
    org = new_org("exact")
    messages = runs(stores, org)
    started(stores, messages).write(messages)
    archive = Archive(stores)
    [name] = objects(stores, org)
    found = {row[1:5]: (key, value) for row, key, value in archive.pack(name).records()}
    assert found == {(*place(m), m.timestamp()[1] * 1000): (m.key(), m.value()) for m in messages}


def test_a_frame_is_read_by_one_range(stores: Config) -> None:
    org = new_org("range")
    messages = runs(stores, org, count=3)
    started(stores, messages).write(messages)
    [name] = objects(stores, org)
    frames = {place(m): decode(m.value() or b"").body["frame"] for m in messages}
    for row in Archive(stores).pack(name).footer.rows():
        read_back = PackStore(stores).read(name, row.frame_offset, row.frame_bytes)
        assert read_back == frames[row[1:4]]


def test_bad_records_are_refused_with_reasons_and_the_rest_is_archived(stores: Config) -> None:
    org = new_org("bad")
    good = encode("run.completed", run_body(org, "run_x"))
    key = f"{org}/run_x".encode()
    for value in (b"junk", good[:-1], good + b"\0", b"\xc3\x01" + bytes(8) + good[10:], None):
        write_raw(stores, "turnlog.runs", key, value)
    write_raw(stores, "turnlog.runs", f"{org}/run_y".encode(), good)
    kept = runs(stores, org)
    messages = read(stores, "turnlog.runs", org)
    dead = started(stores, messages).write(messages)
    assert sorted(item.reason for item in dead) == [
        "schema fingerprint 0000000000000000 is not known here",
        "the body does not fit run.completed",
        "the body is not the one encoding of run.completed, or bytes follow it",
        "the key disagrees with the body",
        "the record has no value",
        "the value is not in Avro single-object encoding",
    ]
    assert {place(item.message) for item in dead}.isdisjoint(archived(stores, org))
    assert set(archived(stores, org)) == {place(m) for m in kept} - {
        place(item.message) for item in dead
    }


def test_a_record_without_a_key_is_refused(stores: Config) -> None:
    value = encode("run.completed", run_body(new_org("keyless"), "run_x"))
    with pytest.raises(DecodeError, match="key disagrees"):
        pack_record(Message(topic="turnlog.runs", partition=0, offset=1, value=value))


def test_a_record_in_a_wrong_partition_is_refused_and_the_rest_is_archived(stores: Config) -> None:
    org = new_org("misplaced")
    key, value = f"{org}/run_x".encode(), encode("run.completed", run_body(org, "run_x"))
    right = partition_of(key, stores.partitions)
    messages = [
        Message(
            topic="turnlog.runs",
            partition=(right + step) % stores.partitions,
            offset=1 << 40,
            key=key,
            value=value,
            timestamp=(2, 1_700_000_000_000),
        )
        for step in (1, 0)
    ]
    dead = started(stores, messages).write(messages)
    assert [(item.message, item.reason) for item in dead] == [(messages[0], MISPLACED)]
    [name] = objects(stores, org)
    assert archived(stores, org) == [place(messages[1])]
    remove(stores, name, org)


def test_what_was_archived_before_a_crash_is_not_archived_again(stores: Config) -> None:
    org = new_org("crash")
    messages = runs(stores, org)
    started(stores, messages).write(messages[:3])
    before = objects(stores, org)
    again = started(stores, messages)
    assert again.write(messages[:3]) == []
    assert objects(stores, org) == before
    again.write(messages)
    assert archived(stores, org) == sorted(map(place, messages))
    assert digest(stores) == fold(stores)


def test_a_crash_between_the_manifests_of_an_object_loses_and_repeats_nothing(
    stores: Config,
) -> None:
    listed, unlisted = new_org("listed"), new_org("unlisted")
    messages = runs(stores, listed, unlisted)
    out = io.BytesIO()
    summary = write_pack(map(pack_record, messages), out)
    out.seek(0)
    key = f"ingest/2026-01-01/{listed}"
    PackStore(stores).put(key, out, summary.digest)
    orgs = tuple(part for part in summary.orgs if part.org == listed)
    Manifests(stores).write(PackStore(stores).name(key), "ingest", summary._replace(orgs=orgs))

    started(stores, messages).write(messages)
    assert len(objects(stores, listed)) == 1
    assert archived(stores, listed, unlisted) == sorted(map(place, messages))
    assert digest(stores) == fold(stores)


def test_of_two_workers_that_archive_the_same_the_first_manifest_owns(stores: Config) -> None:
    org = new_org("zombie")
    messages = runs(stores, org)
    first, second = started(stores, messages), started(stores, messages)
    first.write(messages[1:4])
    second.write(messages)
    assert len(objects(stores, org)) == 2
    assert archived(stores, org) == sorted(map(place, messages))
    assert digest(stores) == fold(stores)


def test_a_repeated_event_counts_once_and_the_first_occurrence_wins(stores: Config) -> None:
    org = new_org("repeat")
    body = run_body(org, "run_1", model="first")
    write(stores, [("run.completed", body), ("run.completed", body | {"model": "second"})])
    messages = read(stores, "turnlog.runs", org)
    before = digest(stores)[0]
    started(stores, messages).write(messages)
    assert len(archived(stores, org)) == 2
    assert digest(stores)[0] == before + 1
    assert digest(stores) == fold(stores)


def test_a_partition_that_was_given_up_is_learnt_anew(stores: Config) -> None:
    org = new_org("moved")
    messages = runs(stores, org)
    sink = started(stores, messages)
    partitions = {(str(m.topic()), int(m.partition() or 0)) for m in messages}
    sink.forget(partitions)
    started(stores, messages).write(messages)
    sink.recover(dict.fromkeys(partitions, 0))
    sink.write(messages)
    assert len(objects(stores, org)) == 1


def bogus(config: Config, org: str, *, damage: int = 0, name: str = "", **changed: Any) -> str:
    """Put an object and a manifest that does not fit it; return the name in the manifest.

    Args:
        config: where the stores are.
        org: whose one record it holds.
        damage: place of a byte to change, from the end of the object.
        name: key that the manifest gives instead of the object's own.
        **changed: fields of the summary that the manifest states wrongly.
    """
    key, value = f"{org}/run_1".encode(), encode("run.completed", run_body(org, "run_1"))
    message = Message(topic="turnlog.runs", partition=0, offset=1, key=key, value=value)
    out = io.BytesIO()
    summary = write_pack([pack_record(message)], out)
    data = bytearray(out.getvalue())
    if damage:
        data[-damage] ^= 1
    store = PackStore(config)
    store.put(f"ingest/2026-01-01/{org}", io.BytesIO(bytes(data)), bytes(32))
    listed = store.name(name or f"ingest/2026-01-01/{org}")
    Manifests(config).write(listed, "ingest", summary._replace(**changed))
    return listed


@pytest.mark.parametrize(
    "changed",
    [
        {"digest": bytes(32)},
        {"footer_offset": 16},
        {"name": "ingest/2026-01-01/gone"},
        {"damage": 1},
        {"damage": 100},
    ],
)
def test_a_damaged_or_missing_object_is_an_error_that_names_it(
    stores: Config, changed: dict[str, Any]
) -> None:
    org = new_org("damaged")
    name = bogus(stores, org, **changed)
    try:
        with pytest.raises(PackError, match=name):
            digest(stores)
    finally:
        remove(stores, name, org)
    assert digest(stores) == fold(stores)


def test_an_object_is_never_written_over_another(stores: Config) -> None:
    store, key = PackStore(stores), f"ingest/2026-01-01/{new_org('once')}"
    for data, same in ((b"first", True), (b"first", True), (b"other", False)):
        put = (key, io.BytesIO(data), hashlib.sha256(data).digest())
        if same:
            store.put(*put)
        else:
            with pytest.raises(PackError, match="another object"):
                store.put(*put)
    assert store.read_all(store.name(key)) == b"first"


def test_reading_over_the_end_of_an_object_is_an_error(stores: Config) -> None:
    store, key = PackStore(stores), f"ingest/2026-01-01/{new_org('short')}"
    store.put(key, io.BytesIO(b"0123"), hashlib.sha256(b"0123").digest())
    assert store.read(store.name(key), 1, 2) == b"12"
    assert store.read(store.name(key), 1, 0) == b""
    for offset, length in ((2, 4), (10, 1)):
        with pytest.raises(PackError, match=key):
            store.read(store.name(key), offset, length)


def test_index_rows_say_all_that_the_event_says(stores: Config) -> None:
    org = new_org("index")
    body = run_body(org, "run_1", conversation="c", turn="t", user="u", writer_epoch=2, seq=7)
    write(stores, [("run.completed", body)])
    [message] = read(stores, "turnlog.runs", org)
    started(stores, [message]).write([message])
    [row] = [row for row in Archive(stores).rows() if row.org == org]
    for name in set(IndexRow._fields) & set(body):
        assert getattr(row, name) == body[name]
    assert (row.type, row.time_basis) == ("run.completed", "event")
