"""A real log for tests: produce events, read them back as messages."""

import itertools
import os
from typing import Any

from confluent_kafka import Message, Producer

from turnlog.config import Config
from turnlog.events import record
from turnlog.kafka import producer_settings, read_all

_numbers = itertools.count()

Events = list[tuple[str, dict[str, Any]]]


def new_org(name: str) -> str:
    """Return an org that no other test has."""
    return f"{name}_{next(_numbers)}_{os.getpid()}"


def run_body(org: str, run: str, **more: Any) -> dict[str, Any]:
    """Return the body of an event of a run, with a frame that nobody can open."""
    return {
        "org": org,
        "run": run,
        "event_id": os.urandom(16),
        "occurred_at_us": 1_700_000_000_000_000,
        "frame": os.urandom(50),
        "content_mac": os.urandom(32),
        "key_tree": b"t" * 16,
        "key_day": 3,
    } | more


def write(config: Config, events: Events) -> list[tuple[str, int, int]]:
    """Append events; return their coordinates."""
    placed: list[tuple[str, int, int]] = []

    def note(error: object, message: Message) -> None:
        assert error is None
        placed.append((str(message.topic()), int(message.partition() or 0), message.offset() or 0))

    producer = Producer(producer_settings(config))
    for type_, body in events:
        made = record(type_, body)
        producer.produce(
            made.topic, made.value, made.key, headers=list(made.headers), on_delivery=note
        )
    assert producer.flush(30) == 0
    return placed


def write_raw(config: Config, topic: str, key: bytes | None, value: bytes | None) -> None:
    """Append bytes as they are."""
    producer = Producer(producer_settings(config))
    producer.produce(topic, value, key)
    assert producer.flush(30) == 0


def read(config: Config, topic: str, org: str) -> list[Message]:
    """Return the messages of a topic whose key begins with an org, in the order of the log."""
    prefix = f"{org}/".encode()
    found = [m for m in read_all(config, topic) if (m.key() or b"").startswith(prefix)]
    return sorted(found, key=lambda m: (m.partition() or 0, m.offset() or 0))
