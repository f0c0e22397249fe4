"""A provider for the clients of a module, and a producer whose records stay in memory."""

from collections.abc import Iterator

import pytest

from tests.provider import Provider, Recordings
from tests.turnlog.clients.asked import responses_stream, structured
from tests.turnlog.clients.kept import Log, provider_thread, sync_producer
from tests.turnlog.producer.parts import ORG
from turnlog import SyncProducer


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    recordings = Recordings([*Recordings.read().by_id.values(), structured(), responses_stream()])
    with provider_thread(recordings) as served:
        yield served


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SyncProducer, Log]]:
    producer, log = sync_producer(monkeypatch, ORG)
    yield producer, log
    producer.close()
