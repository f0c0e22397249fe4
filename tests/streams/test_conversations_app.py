"""What of Faust is replaced, on its own."""

from pathlib import Path

import pytest
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from faust.assignor.partition_assignor import PartitionAssignor

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
