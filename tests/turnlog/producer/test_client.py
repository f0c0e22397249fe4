"""A producer as a gateway opens it: on a real keeper and a real broker."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from turnlog import Producer
from turnlog.config import Config
from turnlog.errors import UsageError
from turnlog.events import Event, decode
from turnlog.ids import new_id
from turnlog.kafka import partition_of, read_all
from turnlog.keeper_client import create, credential_of

ORG = "producer-client"
WHOLE, TICKS, FLUSH = (new_id(name) for name in ("whole", "ticks", "flush"))
TOPICS = ("turnlog.runs", "turnlog.run-chunks", "turnlog.turns", "turnlog.usage")


@pytest.fixture
def org(stack: Config) -> str:
    create(stack, ORG)
    return ORG


def events_of(config: Config, conversation: str) -> list[tuple[str, int, Event]]:
    """What the log holds of a conversation: topic, partition, event."""
    key = f"{ORG}/{conversation}".encode()
    return [
        (topic, message.partition() or 0, decode(message.value() or b""))
        for topic in TOPICS
        for message in read_all(config, topic)
        if message.key() == key
    ]


async def test_a_run_is_in_the_log_once_its_end_is_acknowledged(stack: Config, org: str) -> None:
    async with (
        Producer.open(stack, credential_of(stack, org)) as producer,
        producer.run(org=org, conversation=WHOLE, provider="openai", input="hi") as run,
    ):
        for piece in ("one ", "two"):
            run.chunk(piece)
        position = await run.complete(b"{}", {"output_text": 2})
        found = events_of(stack, WHOLE)
    # Its chunks are waited for by nobody: the terminal event has the whole output.
    assert [event.type for _, _, event in found if event.type != "chunk.batch"] == [
        "run.created", "run.started", "run.completed", "turn.appended", "turn.appended",
        "usage.recorded",
    ]  # fmt: skip
    assert [event.type for _, _, event in events_of(stack, WHOLE)].count("chunk.batch") == 1
    wanted = partition_of(f"{ORG}/{WHOLE}".encode(), stack.partitions)
    assert {partition for _, partition, _ in found} == {wanted}
    assert (position.topic, position.partition) == ("turnlog.runs", wanted)
    assert {event.body["producer_id"] for _, _, event in found} == {producer.producer_id}


async def test_the_ticker_seals_and_beats_while_nobody_ends_the_run(
    stack: Config, org: str
) -> None:
    async with (
        Producer.open(stack, credential_of(stack, org)) as producer,
        producer.run(org=org, conversation=TICKS) as run,
    ):
        run.chunk("shown")
        while not any(event.type == "chunk.batch" for _, _, event in events_of(stack, TICKS)):
            await asyncio.sleep(0.1)
        await run.complete()


async def test_closing_flushes_what_nobody_waited_for(stack: Config, org: str) -> None:
    async with Producer.open(stack, credential_of(stack, org)) as producer:
        body = {"org": org, "conversation": FLUSH, "run": "r", "writer_epoch": 1}
        for seq in range(20):
            producer.append("run.started", body | {"seq": seq, "occurred_at_us": 1})
    seqs = [event.body["seq"] for _, _, event in events_of(stack, FLUSH)]
    assert seqs == list(range(20))


async def test_a_credential_names_its_orgs_and_no_others(stack: Config, org: str) -> None:
    async with Producer.open(stack, credential_of(stack, org)) as producer:
        with pytest.raises(UsageError, match="does not name org 'local'"):
            producer.run(org="local")
    async with Producer.open(stack) as producer:
        assert producer.grant.orgs == ("local",)


async def test_a_missing_credential_is_one_clear_error(stack: Config, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="credential"):
        async with Producer.open(stack, tmp_path / "nobody.json"):
            pass


def test_importing_turnlog_is_light() -> None:
    heavy = ("confluent_kafka", "genai_prices", "turnlog.producer", "fastavro")
    code = f"import sys, turnlog; print([name for name in {heavy!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert found.stdout.strip() == b"[]"
