from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Message

from processors.digest import ViewDigest
from processors.locator import canonical
from sinks.clickhouse.locator import LocatorRow, LocatorTable
from sinks.packs.layout import PackError
from sinks.packs.store import PackStore
from streams.archive import Archive, footer_of, rows_of
from streams.ingest_sink import IngestSink
from streams.locator import LocatorSink, digest
from streams.manifests import TOPIC, live_manifests
from tests.streams.log import new_org, read, run_body, write
from tests.streams.test_ingest_sink import bogus, remove
from turnlog.config import Config
from turnlog.events import decode
from turnlog.kafka import read_all


@pytest.fixture
def org(stores: Config) -> Iterator[str]:
    """An org whose table rows are all that the table holds."""
    table = LocatorTable(stores)
    table.ensure()
    table._client.command(f"TRUNCATE TABLE {stores.clickhouse_database}.locator")
    yield new_org("located")


def archive(config: Config, org: str, *, count: int = 5, **more: Any) -> list[Message]:
    """Write runs and archive them in two objects; return their messages."""
    write(config, [("run.completed", run_body(org, f"run_{n}", **more)) for n in range(count)])
    messages = read(config, "turnlog.runs", org)
    sink = IngestSink(config)
    sink.write(messages[:2])
    sink.write(messages[2:])
    return messages


def manifests(config: Config, org: str) -> list[Message]:
    prefix = f"{org}/".encode()
    return [m for m in read_all(config, TOPIC) if (m.key() or b"").startswith(prefix)]


def rows(config: Config) -> list[LocatorRow]:
    return list(LocatorTable(config).rows())


def coordinates(messages: list[Message]) -> list[tuple[Any, ...]]:
    return sorted((m.topic(), m.partition(), m.offset()) for m in messages)


def fold(messages: list[Message]) -> tuple[int, str]:
    view = ViewDigest()
    for message in messages:
        row = canonical(decode(message.value() or b""))
        assert row is not None
        view.add(*row)
    return view.result()


def test_every_archived_event_is_found_where_its_frame_lies(stores: Config, org: str) -> None:
    messages = archive(stores, org)
    assert LocatorSink(stores).write(manifests(stores, org)) == []
    table, store = LocatorTable(stores), PackStore(stores)
    for message in messages:
        row = table.find(
            org, str(message.topic()), int(message.partition() or 0), int(message.offset() or 0)
        )
        assert row is not None
        body = decode(message.value() or b"").body
        assert store.read(row.object, row.frame_offset, row.frame_bytes) == body["frame"]
        for name in set(LocatorRow._fields) & set(body):
            assert getattr(row, name) == body[name]
    assert digest(stores) == fold(messages)


def test_another_org_does_not_find_it(stores: Config, org: str) -> None:
    [message] = archive(stores, org, count=1)
    LocatorSink(stores).write(manifests(stores, org))
    place = (str(message.topic()), int(message.partition() or 0), int(message.offset() or 0))
    assert LocatorTable(stores).find(org, *place) is not None
    assert LocatorTable(stores).find(f"{org}x", *place) is None


def test_manifests_that_are_read_again_add_nothing(stores: Config, org: str) -> None:
    messages = archive(stores, org)
    read_twice = manifests(stores, org)
    for sink in (LocatorSink(stores), LocatorSink(stores)):
        sink.recover({(TOPIC, 0): 0, (TOPIC, 1): 0})
        sink.write(read_twice)
        sink.write([*read_twice, *read_twice])
    assert [row[1:4] for row in rows(stores)] == coordinates(messages)


def test_a_crash_in_the_middle_of_a_manifest_is_filled_up(stores: Config, org: str) -> None:
    messages = archive(stores, org)
    LocatorSink(stores).write(manifests(stores, org))
    before = rows(stores)
    table = LocatorTable(stores)
    table._client.command(
        f"ALTER TABLE {stores.clickhouse_database}.locator DELETE WHERE offset % 2 = 0"
    )
    assert len(rows(stores)) < len(messages)
    LocatorSink(stores).write(manifests(stores, org))
    assert rows(stores) == before


def test_the_first_manifest_of_a_coordinate_owns_it(stores: Config, org: str) -> None:
    messages = archive(stores, org)
    IngestSink(stores).write(messages)
    LocatorSink(stores).write(manifests(stores, org))
    owners = {row[1:4]: row.object for row in rows(stores)}
    archived = Archive(stores)
    for name in archived.objects:
        owned = archived.owned(name)
        for place, owner in owners.items():
            assert ((org, *place) in owned) == (owner == name)
    assert len(set(owners.values())) == 2


def test_several_orgs_of_one_object_share_its_footer(stores: Config, org: str) -> None:
    other = new_org("other")
    write(stores, [("run.completed", run_body(name, "run_1")) for name in (org, other)])
    both = [*read(stores, "turnlog.runs", org), *read(stores, "turnlog.runs", other)]
    IngestSink(stores).write(both)
    LocatorSink(stores).write([*manifests(stores, org), *manifests(stores, other)])
    assert {row.org for row in rows(stores)} == {org, other}
    assert len({row.object for row in rows(stores)}) == 1


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"name": "ingest/2026-01-01/gone"}, "the object is missing"),
        ({"footer_offset": 16}, "the manifest's sizes do not fit each other"),
        ({"footer_offset": 16, "footer_bytes": 0, "size_bytes": 80}, "not a pack"),
        ({"footer_offset": 0, "footer_bytes": 10**6, "size_bytes": 10**6 + 64}, "of 1000064 bytes"),
        ({"damage": 100}, "the footer does not have the digest that the trailer names"),
        ({"damage": 1}, "not a pack: the trailer is missing"),
    ],
)
def test_a_damaged_object_is_a_dead_letter_and_the_rest_goes_on(
    stores: Config, org: str, changed: dict[str, Any], reason: str
) -> None:
    name = bogus(stores, org, **changed)
    messages = archive(stores, org)
    try:
        [dead] = LocatorSink(stores).write(manifests(stores, org))
        assert dead.reason.startswith(name)
        assert reason in dead.reason
    finally:
        remove(stores, name, org)
    assert [row[1:4] for row in rows(stores)] == coordinates(messages)


def test_records_that_are_no_manifests_are_refused(stores: Config, org: str) -> None:
    [message] = archive(stores, org, count=1)
    good = manifests(stores, org)[0]
    strange = [
        Message(topic=TOPIC, partition=0, offset=1, key=b"k", value=b"junk"),
        Message(topic=TOPIC, partition=0, offset=2, key=good.key(), value=message.value()),
        Message(topic=TOPIC, partition=0, offset=3, key=b"another/object", value=good.value()),
        Message(topic=TOPIC, partition=0, offset=4, key=b"removed", value=None),
    ]
    dead = LocatorSink(stores).write([*strange, good])
    assert [(item.message.offset(), item.reason) for item in dead] == [
        (1, "the value is not in Avro single-object encoding"),
        (2, "run.completed is not a manifest"),
        (3, "the key disagrees with the body"),
    ]
    assert len(rows(stores)) == 1


def test_a_manifest_that_does_not_list_what_the_footer_does_is_refused(
    stores: Config, org: str
) -> None:
    archive(stores, org, count=1)
    [manifest] = [m for m in live_manifests(stores) if m.org == org]
    footer = footer_of(PackStore(stores), manifest)
    elsewhere = manifest.ranges[0]._replace(first=10**6, last=10**6)
    for wrong in ({"org": f"{org}x"}, {"records": 2}, {"ranges": (elsewhere,)}):
        with pytest.raises(PackError, match=manifest.object):
            rows_of(footer, manifest._replace(**wrong))


def test_one_changed_row_changes_the_digest(stores: Config, org: str) -> None:
    messages = archive(stores, org)
    LocatorSink(stores).write(manifests(stores, org))
    before = digest(stores)
    table = f"{stores.clickhouse_database}.locator"
    client = LocatorTable(stores)._client
    first = rows(stores)[0]
    where = f"partition = {first.partition} AND offset = {first.offset}"
    client.command(f"ALTER TABLE {table} UPDATE seq = seq + 1 WHERE {where}")
    assert digest(stores) != before
    client.command(f"ALTER TABLE {table} UPDATE seq = seq - 1 WHERE {where}")
    assert digest(stores) == before == fold(messages)
    client.command(f"INSERT INTO {table} SELECT * FROM {table} WHERE {where}")
    assert digest(stores) != before
