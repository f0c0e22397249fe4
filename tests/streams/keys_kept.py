"""A keeper of a test's own, and what it takes to read what it writes."""

from pathlib import Path

from streams.keeper.service import Keeper
from streams.keys_reader import KeyReader
from tests.streams.keeper_kafka import at_home, keeper_of, new_topic
from turnlog.config import Config
from turnlog.keys import Grant, Locator, Subject, index_of
from turnlog.keys.puncture import puncture


class Kept:
    """A keeper with a topic of its own, and what it takes to read that."""

    def __init__(self, stores: Config, home: Path, topic: str = "") -> None:
        self.config = at_home(stores, home)
        self.topic = topic or new_topic(stores)
        self.keeper: Keeper = keeper_of(self.config, self.topic)

    def reader(self, orgs: list[str] | None = None, role: str = "") -> KeyReader:
        return KeyReader(self.config, orgs, topic=self.topic, role=role)

    def begin(self, org: str, run: str = "run_1") -> tuple[Grant, Locator, Subject]:
        grant = self.keeper.grant([org])
        locator = grant.begin(org, "p", user="u", conversation="c", subject_id=run, kind="o")
        return grant, locator, Subject(org, "u", "c", run, "o")

    def puncture(self, org: str, tree: bytes, prefix: bytes) -> None:
        partition = self.keeper._of(org)
        book = self.keeper._book(partition)
        [project] = partition.state.projects(org)
        [stored] = [
            found
            for month in partition.state.months(project)
            if (found := book.tree_of(project, month)).tree == tree
        ]
        partition.write(puncture(stored, [prefix], book.sealer(org)).rows)


def index_in(reader: KeyReader, locator: Locator, subject: Subject) -> bytes:
    head = reader.stored_tree(subject.org, locator.tree).head
    return index_of(head.index_key, locator.day, locator.gen, subject)
