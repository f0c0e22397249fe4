"""A log of usage and run events in memory, for tests of their sinks."""

import os
from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import Message

from processors.common import Row
from processors.digest import ViewDigest
from sinks.clickhouse.tables import Table
from turnlog.errors import DecodeError
from turnlog.events import Event, decode, encode, key_prefixes
from turnlog.ids import stream_key

NOW_MS = 1_796_000_000_000


class Log:
    """A topic-partition in memory; its messages are what a consumer would get."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.messages: list[Message] = []

    def append(self, value: bytes, key: bytes = b"", ms: int = 0, partition: int = 0) -> None:
        self.messages.append(
            Message(
                topic=self.table.source,
                partition=partition,
                offset=len(self.messages),
                key=key or stream_key_in(value),
                value=value,
                timestamp=(2, ms or NOW_MS + len(self.messages)),
            )
        )

    def fold(self, canonical: Callable[[Event], Row | None]) -> tuple[int, str]:
        """Fold the log with nothing but the pure parts."""
        digest, seen = ViewDigest(), set()
        for message in self.messages:
            try:
                event = decode(message.value() or b"")
            except DecodeError:
                continue
            begins = (message.value() or b"")[10:].startswith(key_prefixes(message.key() or b""))
            if begins and event.body["event_id"] not in seen:
                row = canonical(event)
                if row:
                    seen.add(event.body["event_id"])
                    digest.add(*row)
        return digest.result()


def stream_key_in(value: bytes) -> bytes:
    try:
        body = decode(value).body
    except DecodeError:
        return b"acme/c"
    return stream_key(body["org"], body["conversation"], body["run"])


def usage_event(number: int, **more: Any) -> bytes:
    body = {
        "org": "acme",
        "project": "default",
        "conversation": f"c{number // 3}",
        "run": f"run_{number}",
        "user": "u",
        "event_id": number.to_bytes(16),
        "occurred_at_us": NOW_MS * 1000,
        "seq": number,
        "producer_seq": -number,
        "writer_epoch": 1,
        "quality": "measured",
        "provider": "openai",
        "model": "gpt-5",
        "input_uncached": number * 1000,
        "output_text": number,
        "cost_nano_usd": number if number % 4 else None,
        "provider_usage": {f"tokens.{at}": str(at) for at in range(number % 4)},
    }
    return encode("usage.recorded", body | more)


def run_events(number: int) -> Iterable[bytes]:
    common = {
        "org": "acme",
        "conversation": "" if number % 2 else "c",
        "run": f"run_{number}",
        "occurred_at_us": NOW_MS * 1000,
        "writer_epoch": 1,
    }
    sealed = {"frame": os.urandom(70 * number + 1), "content_mac": os.urandom(32)}

    def made(type_: str, seq: int, **more: Any) -> bytes:
        id_ = (number * 100 + seq).to_bytes(16)
        return encode(type_, common | {"seq": seq, "event_id": id_} | more)

    yield made("run.created", 0, provider="openai", versions={"prompt": "v1"}, **sealed)
    yield made("run.started", 1, ttft_us=number)
    yield made("run.output_retracted", 2, chars=None, char_offset=3)
    shed = [{"first": at, "last": at + 100} for at in range(number)]
    yield made("run.failed", 3, ttft_us=0, error_code="timeout", shed=shed, **sealed)
