"""What topics a broker has, how they differ from the catalogue, and making those that are missing.

Nothing that exists is changed: a partition count or policy that drifted is for an operator to
judge, because both decide what is kept and where a key lies.
"""

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from topics.topic import Topic, catalogue
from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.kafka import ANSWER_S, client_settings, unavailable

ADMIN_S = 30.0
"""A cold single node took 2 s to make all topics; three nodes on slow disks take longer."""


class Drift(NamedTuple):
    """One way in which a topic is not as the catalogue says.

    Attributes:
        topic: Its name.
        setting: "partitions", "replication.factor", a topic setting, or "exists".
        expected: What the catalogue says.
        actual: What the broker says.
    """

    topic: str
    setting: str
    expected: str
    actual: str


def _admin(config: Config) -> AdminClient:
    return AdminClient(client_settings(config))


def present(admin: AdminClient) -> dict[str, tuple[int, int]]:
    """Return partition count and replication factor of each topic on the broker.

    Raises:
        Unavailable: Kafka does not answer.
    """
    try:
        found = admin.list_topics(timeout=ANSWER_S).topics
    except KafkaException as error:
        raise unavailable(error) from error
    return {
        name: (len(meta.partitions), min(len(p.replicas) for p in meta.partitions.values()))
        for name, meta in found.items()
        if meta.error is None and meta.partitions
    }


def _result(future: Future[Any]) -> Any:
    try:
        return future.result(timeout=ADMIN_S)
    except KafkaException as error:
        # Another `up` was quicker: what it made is verified like anything that was there.
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return None
        raise unavailable(error) from error


def _settings(admin: AdminClient, topics: Iterable[Topic]) -> dict[str, dict[str, str]]:
    """Return the settings in force of topics that exist."""
    resources = [ConfigResource(ResourceType.TOPIC, topic.name) for topic in topics]
    if not resources:
        return {}
    answers = admin.describe_configs(resources, request_timeout=ADMIN_S)
    return {
        resource.name: {name: entry.value for name, entry in _result(future).items()}
        for resource, future in answers.items()
    }


def _drift(
    topic: Topic, config: Config, size: tuple[int, int], settings: dict[str, str]
) -> list[Drift]:
    pairs = [
        ("partitions", str(topic.partition_count(config)), str(size[0])),
        ("replication.factor", str(config.replication), str(size[1])),
        *((name, want, settings.get(name, "")) for name, want in topic.expected(config).items()),
    ]
    return [Drift(topic.name, *pair) for pair in pairs if pair[1] != pair[2]]


def verify(config: Config) -> list[Drift]:
    """Compare the broker with the catalogue; a topic that is missing is a drift of "exists".

    Raises:
        Unavailable: Kafka does not answer.
    """
    return _verify(_admin(config), config)


def _verify(admin: AdminClient, config: Config) -> list[Drift]:
    sizes = present(admin)
    settings = _settings(admin, (topic for topic in catalogue() if topic.name in sizes))
    found: list[Drift] = []
    for topic in catalogue():
        if topic.name in sizes:
            found += _drift(topic, config, sizes[topic.name], settings[topic.name])
        else:
            found.append(Drift(topic.name, "exists", "yes", "no"))
    return found


def _new(topic: Topic, config: Config) -> NewTopic:
    return NewTopic(
        topic.name,
        num_partitions=topic.partition_count(config),
        replication_factor=config.replication,
        config=topic.expected(config),
    )


def _create(admin: AdminClient, config: Config, missing: Sequence[Topic]) -> None:
    if not missing:
        return
    made = admin.create_topics([_new(topic, config) for topic in missing], request_timeout=ADMIN_S)
    for future in made.values():
        _result(future)
    await_leaders(admin, {topic.name for topic in missing})


def await_leaders(admin: AdminClient, names: set[str]) -> None:
    """Wait until every partition has a leader: the answer to a creation comes before that.

    Raises:
        Unavailable: it takes longer than 30 s.
    """
    deadline = time.monotonic() + ADMIN_S
    while time.monotonic() < deadline:
        found = admin.list_topics(timeout=ANSWER_S).topics
        metas = [found[name] for name in names if name in found]
        leaders = [p.leader for meta in metas for p in meta.partitions.values()]
        if len(metas) == len(names) and leaders and min(leaders) >= 0:
            return
        time.sleep(0.1)
    raise Unavailable(f"topics without a leader after {ADMIN_S:.0f} s")


def create_missing(config: Config) -> list[Drift]:
    """Create what is missing, then return how the rest differs from the catalogue.

    Raises:
        Unavailable: Kafka does not answer or refuses.
    """
    admin = _admin(config)
    there = present(admin)
    _create(admin, config, [topic for topic in catalogue() if topic.name not in there])
    return _verify(admin, config)
