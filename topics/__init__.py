"""The one catalogue of topics, and what creates and verifies them."""

from topics.broker import Drift, create_missing, verify
from topics.schemas import publish
from topics.topic import Topic, catalogue
from turnlog.config import Config

__all__ = ["Drift", "Topic", "catalogue", "ensure", "verify"]


def ensure(config: Config) -> list[Drift]:
    """Create missing topics and publish missing schemas; return what differs from the catalogue.

    What exists is not changed. Concurrent calls are safe.

    Raises:
        Unavailable: Kafka does not answer or refuses.
    """
    drift = create_missing(config)
    publish(config)
    return drift
