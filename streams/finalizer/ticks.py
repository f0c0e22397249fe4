"""Ticks: records without content that let log time pass while producers are silent."""

import time
from collections.abc import Iterable

from processors.finalizer import TICK
from streams.finalizer.appends import Appends
from turnlog.events import record
from turnlog.ids import event_id


def tick(appends: Appends, numbers: Iterable[int], every_s: float) -> None:
    """Append a tick to partitions of `turnlog.run-chunks`; it is not waited for.

    Its key names the partition, and its partition is that one, whatever the key hashes to.
    """
    now_us = time.time_ns() // 1000
    for number in numbers:
        body = {
            "org": "",
            "run": str(number),
            "event_id": event_id("", str(number), TICK, str(now_us)),
            "occurred_at_us": now_us,
            "partition": number,
            "interval_ms": int(every_s * 1000),
        }
        topic, key, value, headers, _ = record(TICK, body)
        appends.put(topic, key, value, number, headers)
