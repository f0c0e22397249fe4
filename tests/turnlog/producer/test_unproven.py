"""A report of success that does not say where a record is proves nothing: it is sent again."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message

from tests.forgetful import Forgetful
from tests.turnlog.producer.test_ladder import opened, send, settled, turn
from turnlog.config import Config
from turnlog.events import decode
from turnlog.ids import new_id
from turnlog.kafka import UNPROVEN, not_written, read_all
from turnlog.producer import transport


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Forgetful]]:
    monkeypatch.setattr(transport, "KafkaClient", Forgetful)
    yield Forgetful
    Forgetful.forgets, Forgetful.late = 0, False


def repeats(config: Config, name: str) -> dict[str, bool]:
    """Return the turns of a test that are in the log, and whether each says it may be a repeat."""
    bodies = [decode(m.value() or b"").body for m in read_all(config, "turnlog.turns")]
    found = [(b["turn"], b["may_repeat"]) for b in bodies if b["turn"].startswith(f"{name}_")]
    assert len(dict(found)) == len(found)
    return dict(found)


async def test_what_was_forgotten_is_kept_and_sent_again(
    stack: Config, tmp_path: Path, forgetful: type[Forgetful]
) -> None:
    name = new_id("f")
    ladder = await opened(stack, tmp_path, patience_s=60.0)
    forgetful.forgets = 1
    positions = await asyncio.gather(*(send(ladder, turn(name, n)) for n in range(3)))
    assert [position.via for position in positions] == ["spool", "broker", "broker"]
    await settled(ladder)
    lanes = [lane for lane in ladder.lanes() if lane.topic == "turnlog.turns"]
    assert [(lane.acked_seq, lane.refused) for lane in lanes] == [(2, [])]
    assert await ladder.close(30) == 0
    assert repeats(stack, name) == {f"{name}_0": True, f"{name}_1": False, f"{name}_2": False}


async def test_what_was_kept_before_it_was_forgotten_is_sent_from_the_disk(
    stack: Config, tmp_path: Path, forgetful: type[Forgetful]
) -> None:
    name = new_id("f")
    ladder = await opened(stack, tmp_path, patience_s=0.2)
    forgetful.forgets, forgetful.late = 1, True
    assert (await send(ladder, turn(name, 0))).via == "spool"
    forgetful.late = False
    await settled(ladder)
    assert await ladder.close(30) == 0
    assert repeats(stack, name) == {f"{name}_0": True}
    assert not list(tmp_path.glob("*/*.seg"))


async def test_what_is_forgotten_again_is_sent_again(
    stack: Config, tmp_path: Path, forgetful: type[Forgetful]
) -> None:
    name = new_id("f")
    ladder = await opened(stack, tmp_path, patience_s=60.0)
    forgetful.forgets = 3
    assert (await send(ladder, turn(name, 0))).via == "spool"
    await settled(ladder)
    lanes = [lane for lane in ladder.lanes() if lane.topic == "turnlog.turns"]
    assert [(lane.acked_seq, lane.refused) for lane in lanes] == [(0, [])]
    assert await ladder.close(30) == 0
    assert repeats(stack, name) == {f"{name}_0": True}


def test_only_a_report_with_an_offset_is_proof() -> None:
    assert not_written(None, Message(topic="t", partition=0, offset=0)) == ""
    assert not_written(None, Message(topic="t", partition=0)) == UNPROVEN
    trouble = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    assert not_written(trouble, Message()) == "TOPIC_AUTHORIZATION_FAILED"
