"""Keepers and their rows on real Kafka, and rows that somebody else writes beside them."""

from collections.abc import Iterable
from pathlib import Path

from confluent_kafka import Producer

from bench.chaos.keeper import Process
from streams.keeper.minting import OrgBook
from streams.keeper.service import Keeper
from streams.keeper.state import KeyRows
from streams.keys_reader import KeyReader
from tests.streams.keeper_kafka import at_home, keeper_of, new_topic
from turnlog.config import Config
from turnlog.errors import Erased, KeyUnavailable, NoTree
from turnlog.kafka import producer_settings, read_all
from turnlog.keys import Locator, Subject
from turnlog.keys.grant import now_us
from turnlog.keys.keyfile import load_key_file
from turnlog.keys.kms import LocalKms
from turnlog.keys.orgkeys import OrgKeys
from turnlog.keys.rows import Row

ORG, PROJECT = "local", "default"
DAY_US = 86_400_000_000


class Place:
    """A topic of key rows with one partition, and a keeper's home.

    Attributes:
        config: with the home.
        topic: the topic.
    """

    def __init__(self, stack: Config, home: Path) -> None:
        self.config = at_home(stack, home)
        self.topic = new_topic(stack, 1)

    def keeper(self, days: int = 0) -> Keeper:
        """Start a keeper in this process, some days ahead."""
        keeper = keeper_of(self.config, self.topic)
        self.set_clock(keeper, days)
        return keeper

    def set_clock(self, keeper: Keeper, days: int) -> None:
        keeper.clock_us = lambda: now_us() + days * DAY_US

    def process(self, port: int) -> Process:
        """Return a keeper that is a process of its own, not started yet."""
        address = f"http://127.0.0.1:{port}"
        return Process(self.config.model_copy(update={"keeper": address}), self.topic)

    def reader(self) -> KeyReader:
        return KeyReader(self.config, topic=self.topic)

    def book(self) -> OrgBook:
        """Return what the topic's rows say now to somebody who has the key file."""
        state = KeyRows()
        state.apply(self.rows())
        file = load_key_file(self.config.local_key_file)
        org_keys = OrgKeys(state.rows, LocalKms(file), file.signer.public_key())
        return OrgBook(state, org_keys, file.signer)

    def rows(self) -> list[Row]:
        return [(m.key() or b"", m.value()) for m in read_all(self.config, self.topic)]

    def force(self, rows: Iterable[Row]) -> None:
        """Write rows past every keeper, as somebody with write rights on the topic would."""
        write(self.config, self.topic, rows)


def write(config: Config, topic: str, rows: Iterable[Row]) -> None:
    """Write rows to a topic without a transaction."""
    producer = Producer(producer_settings(config))
    for key, value in rows:
        producer.produce(topic, value, key, 0)
    assert producer.flush(30) == 0


def subject(run: str, user: str = "u", kind: str = "o") -> Subject:
    return Subject(ORG, user, "c", run, kind)


def outcome(reader: KeyReader, locator: Locator, whose: Subject) -> bytes | type[Exception]:
    """Return the commitment to a key, or what was raised instead."""
    try:
        return reader.data_key(locator, whose).commit
    except (Erased, KeyUnavailable, NoTree) as error:
        return type(error)
