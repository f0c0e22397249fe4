"""The one catalogue of topics, as data: what should exist, for a given config."""

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from turnlog.config import Config
from turnlog.events import TYPES

DEAD_RETENTION_MS = 2_592_000_000
"""Dead letters are kept for 30 days, whatever the topic that they come from."""


class Topic(NamedTuple):
    """One topic as it should be.

    Attributes:
        name: Name in Kafka.
        key: What its keys are, in words.
        partitions: A number, or 0 where the configured number of stream partitions holds.
        policy: Name of its table of settings in the catalogue.
        settings: Topic settings that are fixed, as Kafka writes them.
        retention_ms: How long records are kept, or None in a compacted topic.
        dead: True where consumers read it, so that it has dead letters.
        archived: True where packs keep its records.
    """

    name: str
    key: str
    partitions: int
    policy: str
    settings: Mapping[str, str]
    retention_ms: int | None = None
    dead: bool = False
    archived: bool = False

    def partition_count(self, config: Config) -> int:
        """Return how many partitions it should have."""
        return self.partitions or config.partitions

    def expected(self, config: Config) -> dict[str, str]:
        """Return every topic setting that it should have."""
        kept = {} if self.retention_ms is None else {"retention.ms": str(self.retention_ms)}
        return {**self.settings, **kept, "min.insync.replicas": str(config.min_insync)}

    @property
    def events(self) -> tuple[str, ...]:
        """Return the event types that go to it."""
        return tuple(name for name, kind in TYPES.items() if kind.topic == self.name)


def _read(raw: Mapping[str, Any], policies: Mapping[str, Mapping[str, str]]) -> Iterator[Topic]:
    partitions = 0 if raw["partitions"] == "streams" else raw["partitions"]
    rest = {name: raw[name] for name in ("retention_ms", "dead", "archived") if name in raw}
    topic = Topic(
        raw["name"], raw["key"], partitions, raw["policy"], policies[raw["policy"]], **rest
    )
    yield topic
    if topic.dead:
        yield Topic(
            f"{topic.name}.dead",
            "the original key",
            partitions,
            "dead",
            policies["dead"],
            DEAD_RETENTION_MS,
        )


@cache
def catalogue() -> tuple[Topic, ...]:
    """Return every topic, a topic's dead letters right behind it."""
    data = tomllib.loads((Path(__file__).parent / "catalogue.toml").read_text())
    return tuple(topic for raw in data["topic"] for topic in _read(raw, data["policies"]))
