"""Topics of the bench's own, made before and deleted after, so that no view sees its records."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.kafka import client_settings

PREFIX = "turnlog.bench-"
# Should a bench be killed, what it left goes within the hour.
_SETTINGS = {
    "retention.ms": "3600000",
    "message.timestamp.type": "LogAppendTime",
}
_TIMEOUT_S = 30.0
_EXPECTED = {KafkaError.UNKNOWN_TOPIC_OR_PART}


def bench_name(topic: str) -> str:
    """Return the name under which a topic's records go in the bench."""
    return PREFIX + topic.removeprefix("turnlog.")


@contextmanager
def bench_topics(config: Config, topics: Sequence[str]) -> Iterator[Mapping[str, str]]:
    """Give topics of the bench's own with as many partitions as the stream topics have.

    Args:
        config: where Kafka is.
        topics: the topics that they stand for.

    Yields:
        The name on the wire for each topic.

    Raises:
        Unavailable: Kafka does not answer.
    """
    admin = AdminClient(client_settings(config))
    names = {topic: bench_name(topic) for topic in topics}
    wire = list(names.values())
    _delete(admin, wire)
    new = [NewTopic(name, config.partitions, config.replication, config=_SETTINGS) for name in wire]
    try:
        _done(admin.create_topics(new).values())
        _wait(admin, wire, there=True)
        yield names
    finally:
        _delete(admin, wire)


def _delete(admin: AdminClient, names: Sequence[str]) -> None:
    _done(admin.delete_topics(list(names)).values())
    _wait(admin, names, there=False)


def _done(futures: Iterable["Future[None]"]) -> None:
    for future in futures:
        try:
            future.result(_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() not in _EXPECTED:
                raise Unavailable(f"bench topic: {error.args[0].name()}") from error


def _wait(admin: AdminClient, names: Sequence[str], there: bool) -> None:
    """Topics come and go a moment after the broker has said so."""
    until = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < until:
        known = admin.list_topics(timeout=_TIMEOUT_S).topics
        if all((name in known) is there for name in names):
            return
        time.sleep(0.1)
    raise Unavailable("the bench's topics did not come or go in time")
