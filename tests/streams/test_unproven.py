"""No worker goes on behind a report of success that proves nothing."""

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Message

from sinks.packs.layout import OrgPart
from sinks.packs.writer import PackSummary
from streams import dead, manifests
from streams.conversations import writer
from streams.dead import Dead, DeadLetters
from streams.finalizer import appends
from streams.manifests import Manifests
from tests.forgetful import Forgetful
from topics import schemas
from turnlog.config import Config
from turnlog.errors import Unavailable


def letter(config: Config) -> None:
    message = Message(topic="turnlog.usage", partition=0, offset=1, key=b"k", value=b"v")
    DeadLetters(config, "test").write([Dead(message, "made up")])


def manifest(config: Config) -> None:
    part = OrgPart("acme", 0, 1, 0, ())
    summary = PackSummary(1, 1, 1, 1, b"d" * 32, (part,))
    Manifests(config).write("s3://none/such", "ingest", summary)


def end_of_a_run(config: Config) -> None:
    made = appends.Appends(config)
    made.put("turnlog.run-chunks", b"k", b"v", 0)
    made.settle()


def schema(config: Config) -> None:
    schemas._produce(config, {"00": "{}"})


def row(config: Config) -> None:
    made = writer.Writer(config)
    delivery = writer.Delivery()
    made._produce("turnlog.refusals", b"k", b"v", delivery)
    made._settle(delivery)


WRITERS = {dead: letter, manifests: manifest, appends: end_of_a_run, schemas: schema, writer: row}


@pytest.fixture(params=WRITERS, ids=lambda module: module.__name__)
def forgotten(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Config], None]]:
    monkeypatch.setattr(request.param, "Producer", Forgetful)
    Forgetful.forgets = 1
    yield WRITERS[request.param]
    Forgetful.forgets = 0


def test_what_was_forgotten_is_told(stores: Config, forgotten: Callable[[Config], None]) -> None:
    with pytest.raises(Unavailable, match="not said where"):
        forgotten(stores)
