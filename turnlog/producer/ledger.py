"""The ledger: what a producer has in Kafka, lane by lane, so that gaps can be found by others."""

import time
from collections.abc import Iterable

from turnlog.events import Record, record
from turnlog.ids import event_id
from turnlog.producer.output import ranges
from turnlog.producer.transport import Lane

TOPIC = "turnlog.ledger"


def marks(
    producer_id: str, producer_epoch: int, lanes: Iterable[Lane], closed: bool = False
) -> list[Record]:
    """Return a `ledger.mark` for each lane: the highest `producer_seq` up to which all are there.

    Args:
        producer_id: whose lanes they are.
        producer_epoch: its epoch.
        lanes: those that have moved.
        closed: nothing follows in this epoch.
    """
    at_us = time.time_ns() // 1000
    return [
        record(
            "ledger.mark",
            {
                "org": "",
                "event_id": event_id("", producer_id, "ledger.mark", _natural(lane, at_us)),
                "occurred_at_us": at_us,
                "producer_id": producer_id,
                "producer_epoch": producer_epoch,
                "topic": lane.topic,
                "partition": lane.partition,
                "acked_seq": lane.acked_seq,
                "closed": closed and lane.acked_seq == lane.next_seq - 1,
                "refused": ranges(lane.refused),
            },
        )
        for lane in lanes
    ]


def _natural(lane: Lane, at_us: int) -> str:
    return f"{lane.topic}/{lane.partition}/{lane.acked_seq}/{at_us}"
