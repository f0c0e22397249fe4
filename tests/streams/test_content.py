import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Message

from sinks.clickhouse.locator import LocatorTable
from sinks.packs.store import PackStore
from streams.content import Content, log_ref, object_ref, subject_of
from streams.ingest_sink import IngestSink
from streams.locator import LocatorSink
from streams.manifests import TOPIC
from tests.streams.log import new_org, read, run_body, write
from turnlog import Producer
from turnlog.config import Config
from turnlog.errors import FrameError, TurnlogError
from turnlog.events import decode
from turnlog.kafka import read_all
from turnlog.keeper_client import create, credential_of


async def _one_run(config: Config, org: str) -> None:
    async with (
        Producer.open(config, credential_of(config, org)) as producer,
        producer.run(
            org=org, user="u", conversation="conv", request=b'{"asked": 1}', input="What?"
        ) as run,
    ):
        run.chunk("It is ")
        await run.complete(response=b"\x00raw\xff")


@pytest.fixture(scope="module")
def written(stores: Config) -> tuple[str, dict[str, Message]]:
    """An org with one run in a conversation: its archived messages by event type."""
    org = f"content_{uuid.uuid4().hex[:8]}"
    create(stores, org)
    asyncio.run(_one_run(stores, org))
    found = [m for topic in ("turnlog.runs", "turnlog.turns") for m in read(stores, topic, org)]
    return org, {kind(message): message for message in found}


def kind(message: Message) -> str:
    event = decode(message.value() or b"")
    return f"{event.type}/{event.body['role']}" if "role" in event.body else event.type


def place(message: Message) -> tuple[str, int, int]:
    return str(message.topic()), int(message.partition() or 0), int(message.offset() or 0)


@pytest.fixture(params=["in Kafka", "archived"])
def content(
    request: pytest.FixtureRequest, stores: Config, written: tuple[str, dict[str, Message]]
) -> Iterator[Content]:
    """A reader while the events are in Kafka alone, then when the locator has them."""
    org, messages = written
    if request.param == "archived":
        IngestSink(stores).write(list(messages.values()))
        manifests = [m for m in read_all(stores, TOPIC) if f"{org}/".encode() in (m.key() or b"")]
        LocatorSink(stores).write(manifests)
    with Content(stores, org) as reader:
        yield reader


def test_content_opens_wherever_it_is(
    content: Content, written: tuple[str, dict[str, Message]]
) -> None:
    org, messages = written

    def opened(type_: str) -> dict[str, Any]:
        return content.open(org, *place(messages[type_]))

    assert opened("run.created")["request"] == b'{"asked": 1}'
    assert opened("run.completed")["response"] == b"\x00raw\xff"
    assert opened("turn.appended/user")["text"] == "What?"
    assert opened("turn.appended/assistant") == {}


def test_the_reference_says_where_the_frame_was_read(
    stores: Config, written: tuple[str, dict[str, Message]], content: Content
) -> None:
    org, messages = written
    coordinate = place(messages["run.completed"])
    row = LocatorTable(stores).find(org, *coordinate)
    sealed = content.sealed(org, *coordinate)
    assert sealed.frame == decode(messages["run.completed"].value() or b"").body["frame"]
    if row is None:
        assert sealed.ref == log_ref(*coordinate)
    else:
        assert sealed.ref == object_ref(row.object, row.frame_offset, row.frame_bytes)
        assert PackStore(stores).read(row.object, row.frame_offset, row.frame_bytes) == sealed.frame


def test_another_org_gets_nothing_from_the_same_coordinate(
    stores: Config, written: tuple[str, dict[str, Message]]
) -> None:
    with Content(stores) as reader, pytest.raises(TurnlogError, match="not an event of this org"):
        reader.open("someone_else", *place(written[1]["run.completed"]))


def test_a_coordinate_without_a_record_is_an_error_that_names_it(
    stores: Config, written: tuple[str, dict[str, Message]]
) -> None:
    org, messages = written
    topic, partition, _ = place(messages["run.completed"])
    with Content(stores) as reader, pytest.raises(TurnlogError, match="neither in Kafka"):
        reader.open(org, topic, partition, 10**6)


def test_a_frame_that_does_not_open_names_coordinate_and_place_only(stores: Config) -> None:
    org = new_org("sealed")
    write(stores, [("run.completed", run_body(org, "run_1", frame=b"\1\1" + bytes(60)))])
    [message] = read(stores, "turnlog.runs", org)
    topic, partition, offset = place(message)
    with Content(stores) as reader, pytest.raises(FrameError) as error:
        reader.open(org, topic, partition, offset)
    assert f"{topic}/{partition}/{offset} ({log_ref(topic, partition, offset)})" in str(error.value)
    IngestSink(stores).write([message])


def test_a_frame_that_was_changed_does_not_open(
    stores: Config, written: tuple[str, dict[str, Message]]
) -> None:
    org, messages = written
    with Content(stores, org) as reader:
        sealed = reader.sealed(org, *place(messages["run.completed"]))
        flipped = bytearray(sealed.frame)
        flipped[40] ^= 1
        with pytest.raises(FrameError, match="does not open"):
            reader.unseal(sealed._replace(frame=bytes(flipped)))
        with pytest.raises(FrameError, match="content_mac"):
            reader.unseal(sealed._replace(body=sealed.body | {"content_mac": bytes(32)}))


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        ("run.created", ("q", "run_1")),
        ("run.completed", ("o", "run_1")),
        ("chunk.batch", ("o", "run_1")),
        ("turn.appended", ("t", "turn_1")),
        ("turn.edited", ("t", "turn_1")),
        ("conversation.renamed", ("d", "conv_1")),
    ],
)
def test_each_type_is_sealed_under_its_subject(type_: str, expected: tuple[str, str]) -> None:
    body = {"org": "a", "user": "u", "conversation": "conv_1", "run": "run_1", "turn": "turn_1"}
    subject = subject_of(type_, body)
    assert (subject.kind, subject.id) == expected
    assert subject[:3] == ("a", "u", "conv_1")
