"""What of Faust is replaced, on its own."""

import time
from pathlib import Path

import pytest
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from faust.assignor.partition_assignor import PartitionAssignor
from faust.transport.drivers.aiokafka import Consumer
from faust.types import TP

from streams.conversations import HEADS_CHANGELOG
from streams.conversations.app import build
from streams.conversations.unit import TOPIC
from streams.conversations.work import Work
from streams.conversations.writer import Writer
from turnlog.config import Config
from turnlog.errors import Unavailable


async def _never(error: BaseException) -> None:
    raise error


async def test_nothing_is_assigned_of_a_cluster_that_does_not_show_the_topic(
    stack: Config, tmp_path: Path
) -> None:
    app = build(stack, Work(Writer(stack), 6), tmp_path, "conversations-test", _never)
    assignor = app.assignor
    assert isinstance(assignor, PartitionAssignor)
    member = ConsumerProtocolMemberMetadata(0, [TOPIC], b"")
    with pytest.raises(Unavailable, match=TOPIC):
        assignor.assign(ClusterMetadata(), {"member": member})
    assert app.unseen == [TOPIC]


async def test_a_quiet_partition_is_not_called_slow(
    stack: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = build(stack, Work(Writer(stack), 6), tmp_path, "conversations-test", _never)
    hours_later = time.monotonic() + 7_200
    consumer = app.consumer
    assert isinstance(consumer, Consumer)
    consumer.verify_event_path(hours_later, TP(TOPIC, 0))
    consumer.verify_recovery_event_path(hours_later, TP(HEADS_CHANGELOG, 0))
    assert caplog.records == []
