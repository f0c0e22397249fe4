"""6. Two keepers, one stopped across a puncture; and one that has not read to the end."""

import os
import signal
import socket
from pathlib import Path

import pytest

from streams.keeper.directory import Directory
from streams.keeper.partition import Fenced, KeyPartition
from streams.keeper.puncturing import plan_punctures
from streams.keeper.service import Keeper
from tests.attack.on_kafka import ORG, PROJECT, Place, outcome, subject
from turnlog import keeper_client
from turnlog.config import Config
from turnlog.errors import Erased, KeyUnavailable, TurnlogError, Unavailable
from turnlog.keys import Locator
from turnlog.keys.keyfile import load_key_file
from turnlog.keys.kms import LocalKms
from turnlog.keys.targets import Target


@pytest.fixture
def place(stack: Config, tmp_path: Path) -> Place:
    return Place(stack, tmp_path)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def today(place: Place) -> Locator:
    """Return where a subject of ours begins: the first day that the topic's keeper minted."""
    book = place.book()
    [tree, *_] = sorted(book.trees(ORG, PROJECT))
    stored = book.stored(ORG, tree)
    return Locator(tree, min(node.path[0] for node in stored.cover()), 0)


def target(locator: Locator, run: str) -> Target:
    return Target("run", locator.tree, locator.day, "u", 0, "c", run)


def test_6_a_keeper_stopped_across_a_puncture_is_fenced(place: Place) -> None:
    with place.process(free_port()) as first, place.process(free_port()) as second:
        first.start()
        locator, child = today(place), first.child
        assert child is not None
        os.kill(child.pid, signal.SIGSTOP)
        second.start()
        keeper_client.puncture(second.config, ORG, PROJECT, [target(locator, "one")])
        os.kill(child.pid, signal.SIGCONT)
        with pytest.raises(Unavailable):
            keeper_client.puncture(first.config, ORG, PROJECT, [target(locator, "two")])
        assert child.wait(60) == 1
        keeper_client.puncture(second.config, ORG, PROJECT, [target(locator, "three")])
    assert "another keeper" in (place.config.home / "keeper.log").read_text()
    with place.reader() as reader:
        states = [outcome(reader, locator, subject(run)) for run in ("one", "two", "three")]
    assert states[0] is states[2] is Erased
    assert isinstance(states[1], bytes)


def test_6_rows_of_a_stale_head_that_are_forced_in_are_refused_by_prev(place: Place) -> None:
    keeper = place.keeper()
    locator, stale = today(place), place.book()
    with place.reader() as reader:
        alive = outcome(reader, locator, subject("live"))
        keeper.puncture(ORG, PROJECT, [target(locator, "erased")])
        reader.catch_up()
        assert outcome(reader, locator, subject("erased")) is Erased
        [change] = plan_punctures(stale, ORG, PROJECT, [target(locator, "other")])
        place.force(change.rows)
        reader.catch_up()
        for run in ("erased", "other", "live"):
            assert outcome(reader, locator, subject(run)) is KeyUnavailable
    # Nor does one that starts now believe it, whatever it has seen before.
    with place.reader() as reader:
        assert outcome(reader, locator, subject("erased")) is KeyUnavailable
    assert isinstance(alive, bytes)


def test_6_a_keeper_that_has_not_read_to_the_end_cannot_write(place: Place) -> None:
    keeper = place.keeper()
    locator = today(place)
    keeper.puncture(ORG, PROJECT, [target(locator, "one")])
    unread = KeyPartition(place.config, 0, place.topic)
    with pytest.raises(Unavailable, match="taken over first"):
        unread.write([(b"any", b"row")])
    file = load_key_file(place.config.local_key_file)
    late = Keeper({0: unread}, Directory(), LocalKms(file), file)
    # What its service does begins with fencing and reading.
    [found] = late.puncture(ORG, PROJECT, [target(locator, "two")])
    assert found.generation == 3
    with pytest.raises(Fenced):
        keeper.puncture(ORG, PROJECT, [target(locator, "three")])
    with place.reader() as reader:
        assert outcome(reader, locator, subject("one")) is Erased
        assert isinstance(outcome(reader, locator, subject("three")), bytes)


def test_6_a_call_whose_answer_was_lost_is_completed_by_the_next_keeper(place: Place) -> None:
    keeper = place.keeper()
    locator = today(place)
    targets = [target(locator, f"run_{n}") for n in range(3)]
    first = keeper.puncture(ORG, PROJECT, targets)
    again = place.keeper().puncture(ORG, PROJECT, [*targets, target(locator, "more")])
    assert {result.generation for result in first} == {2}
    assert {result.generation for result in again} == {3}
    erased = {result.prefix for result in first}
    assert all((result.share.rows == 0) == (result.prefix in erased) for result in again)


def test_6_an_old_keeper_answers_no_write_at_all(place: Place) -> None:
    old = place.keeper()
    place.keeper()
    with pytest.raises(TurnlogError):
        old.heartbeat()
    with pytest.raises(Fenced):
        old.puncture(ORG, PROJECT, [target(today(place), "run")])
