"""The way into Kafka, on a real broker."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from confluent_kafka import KafkaError

from turnlog.config import Config
from turnlog.errors import TooLarge, Unavailable
from turnlog.ids import new_id
from turnlog.kafka import producer_settings, read_all
from turnlog.producer.transport import KafkaTransport

TOPIC = "turnlog.refusals"
SESSION = new_id("transport")


async def opened(config: Config, **settings: Any) -> KafkaTransport:
    transport = KafkaTransport({**producer_settings(config), **settings})
    await transport.open()
    return transport


@pytest.fixture
async def transport(stack: Config) -> AsyncIterator[KafkaTransport]:
    made = await opened(stack)
    yield made
    await made.close(30)


def key_of(name: str) -> bytes:
    return f"{SESSION}/{name}".encode()


def in_log(config: Config, key: bytes) -> list[bytes]:
    return [m.value() or b"" for m in read_all(config, TOPIC) if m.key() == key]


async def test_positions_name_where_records_are(stack: Config, transport: KafkaTransport) -> None:
    lane = transport.lane(TOPIC, key_of("where"))
    first = await transport.send(lane, key_of("where"), b"one", [("h", b"1")])
    second = await transport.send(lane, key_of("where"), b"two", [])
    assert second.offset > first.offset
    assert (first.topic, first.partition, first.via) == (TOPIC, lane.partition, "broker")
    assert in_log(stack, key_of("where")) == [b"one", b"two"]


async def test_a_lane_is_one_partition_of_a_topic(transport: KafkaTransport) -> None:
    lanes = [transport.lane(TOPIC, key_of(str(n))) for n in range(40)]
    assert len({(lane.topic, lane.partition) for lane in lanes}) == len(set(lanes))


async def test_a_record_that_is_refused_takes_no_number(stack: Config) -> None:
    transport = await opened(stack, **{"message.max.bytes": 1000})
    key = key_of("refused")
    lane = transport.lane(TOPIC, key)
    with pytest.raises(TooLarge):
        transport.send(lane, key, b"x" * 2000, [])
    assert lane.next_seq == 0
    await transport.send(lane, key, b"x", [])
    assert lane.next_seq == 1
    assert await transport.close(30) == 0


async def test_a_full_queue_makes_records_wait_in_order(stack: Config) -> None:
    small = {"queue.buffering.max.messages": 10, "linger.ms": 20}
    transport = await opened(stack, **small)
    key = key_of("full")
    lane = transport.lane(TOPIC, key)
    sent = [transport.send(lane, key, str(n).encode(), []) for n in range(300)]
    positions = await asyncio.gather(*sent)
    assert positions == sorted(positions)
    assert await transport.close(30) == 0
    assert in_log(stack, key) == [str(n).encode() for n in range(300)]


async def test_closing_waits_for_what_was_sent(stack: Config) -> None:
    transport = await opened(stack, **{"linger.ms": 50})
    key = key_of("closing")
    sent = [transport.send(transport.lane(TOPIC, key), key, b"x", []) for _ in range(50)]
    assert await transport.close(30) == 0
    assert all(future.done() for future in sent)
    with pytest.raises(Unavailable, match="closed"):
        transport.send(transport.lane(TOPIC, key), key, b"late", [])


async def test_an_unknown_topic_is_told(transport: KafkaTransport) -> None:
    with pytest.raises(Unavailable, match="turnlog topics create"):
        transport.lane("turnlog.nothing", b"key")


async def test_what_is_not_delivered_in_time_says_so(stack: Config) -> None:
    transport = await opened(stack, **{"linger.ms": 60_000})
    key = key_of("late")
    future = transport.send(transport.lane(TOPIC, key), key, b"x", [])
    assert await transport.close(0.2) == 1
    with pytest.raises(Unavailable, match="given up at the end"):
        await future


async def test_no_broker_is_unavailable() -> None:
    settings = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    transport = KafkaTransport(settings, metadata_timeout_s=0.3)
    with pytest.raises(Unavailable, match="no connection"):
        await transport.open()
    assert await transport.close(1) == 0


async def test_after_a_fatal_error_nothing_is_taken(transport: KafkaTransport) -> None:
    transport.on_error(KafkaError(KafkaError._FATAL, "made up", True))
    lane = transport.lane(TOPIC, key_of("fatal"))
    with pytest.raises(Unavailable, match="_FATAL.*open another"):
        transport.send(lane, key_of("fatal"), b"x", [])
