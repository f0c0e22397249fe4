"""The schemas in `turnlog.schemas`: whoever has the log has what its events mean."""

from collections.abc import Mapping

from confluent_kafka import KafkaError, Message, Producer

from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.events.schema import versions
from turnlog.kafka import not_written, producer_settings, read_all

TOPIC = "turnlog.schemas"
FLUSH_S = 30.0


def published(config: Config) -> dict[str, str]:
    """Return the published schema texts by fingerprint, 16 hex digits in the order of the wire.

    Raises:
        Unavailable: Kafka does not answer, or has no such topic.
    """
    texts: dict[str, str] = {}
    for message in read_all(config, TOPIC):
        key, value = message.key(), message.value()
        if key and value:
            texts[key.decode("ascii", "replace")] = value.decode("utf-8", "replace")
    return texts


def publish(config: Config) -> int:
    """Publish every version, present and past, that is not there; return how many.

    Raises:
        Unavailable: Kafka does not answer, has no such topic, or did not acknowledge.
    """
    there = published(config)
    missing = {kind.fingerprint.hex(): kind.text for kind in versions()}
    for mark in there:
        missing.pop(mark, None)
    if missing:
        _produce(config, missing)
    return len(missing)


def _produce(config: Config, texts: Mapping[str, str]) -> None:
    failed: list[str] = []

    def settle(error: KafkaError | None, message: Message) -> None:
        if trouble := not_written(error, message):
            failed.append(trouble)

    producer = Producer(producer_settings(config))
    for mark, text in texts.items():
        producer.produce(TOPIC, text.encode(), mark.encode(), on_delivery=settle)
    if producer.flush(FLUSH_S) or failed:
        reason = failed[0] if failed else f"silent for {FLUSH_S:.0f} s"
        raise Unavailable(f"kafka did not take the schemas: {reason}")
