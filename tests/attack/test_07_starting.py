"""7. Readers that start or lag, transactions that are aborted, and days that are minted once."""

from pathlib import Path

import pytest
from confluent_kafka import Producer

from streams.keeper.puncturing import plan_punctures
from streams.keys_reader import KeyReader
from tests.attack.on_kafka import ORG, PROJECT, Place, outcome, subject, write
from tests.attack.test_06_two_keepers import target, today
from tests.streams.keeper_kafka import new_topic
from turnlog.config import Config
from turnlog.errors import Erased, KeyUnavailable, NoTree
from turnlog.kafka import producer_settings
from turnlog.keys import Locator
from turnlog.keys.keyfile import load_key_file
from turnlog.keys.rows import Row
from turnlog.keys.targets import Target


@pytest.fixture
def place(stack: Config, tmp_path: Path) -> Place:
    return Place(stack, tmp_path / "home")


def compacted(rows: list[Row]) -> list[Row]:
    """Return what the cleaner leaves of a log: of each key the last record, in its place."""
    last = {key: at for at, (key, _) in enumerate(rows)}
    return [row for at, row in enumerate(rows) if last[row[0]] == at]


def test_7_a_start_that_is_stopped_anywhere_never_takes_a_live_key_for_an_erased_one(
    place: Place, stack: Config, tmp_path: Path
) -> None:
    keeper = place.keeper()
    first = today(place)
    # Eleven bytes: a third of the rows of a run, and so of the readers below.
    keeper.puncture(ORG, PROJECT, [Target("user", first.tree, first.day, "gone")])
    place.set_clock(keeper, 1)
    assert keeper.mint().days == 1
    newest = sorted(place.book().trees(ORG, PROJECT))[-1]
    last = place.book().stored(ORG, newest).head.minted_through
    places = {first: subject("live"), Locator(newest, last, 0): subject("r")}
    with place.reader() as reader:
        keys = {locator: outcome(reader, locator, whose) for locator, whose in places.items()}
    rows = compacted(place.rows())
    assert len(rows) < len(place.rows())
    topic = new_topic(stack, 1)
    for stop, row in enumerate(rows):
        write(stack, topic, [row])
        # Each reader is a new one: it has no floor that would tell it of later heads.
        with reader_at(place, topic, tmp_path / f"reader_{stop}") as reader:
            for locator, whose in places.items():
                assert outcome(reader, locator, whose) in (keys[locator], KeyUnavailable, NoTree)
    with reader_at(place, topic, tmp_path / "reader") as reader:
        assert {at: outcome(reader, at, whose) for at, whose in places.items()} == keys
        assert outcome(reader, first, subject("any", user="gone")) is Erased


def reader_at(place: Place, topic: str, home: Path) -> KeyReader:
    file = place.config.local_key_file
    public = load_key_file(file).public_hex
    update = {"home": home, "key_file": file, "keeper_public": public}
    return KeyReader(place.config.model_copy(update=update), topic=topic)


def test_7_a_reader_one_head_behind_a_mint_waits_for_it(place: Place) -> None:
    keeper = place.keeper()
    with place.reader() as reader:
        for days in range(1, 8):
            place.set_clock(keeper, days)
            newest = keeper.mint()
            assert newest.days == 1
            tree = sorted(place.book().trees(ORG, PROJECT))[-1]
            last = place.book().stored(ORG, tree).head.minted_through
            # Not waited for: whatever the reader has taken in by now.
            assert isinstance(outcome(reader, Locator(tree, last, 0), subject("r")), bytes)
            behind = outcome(reader, Locator(tree, last + 1, 0), subject("r"))
            assert behind is KeyUnavailable


def test_7_an_aborted_transaction_is_ignored(place: Place) -> None:
    keeper = place.keeper()
    locator = today(place)
    [change] = plan_punctures(place.book(), ORG, PROJECT, [target(locator, "live")])
    with place.reader() as reader:
        before = outcome(reader, locator, subject("live"))
        abort(place, change.rows)
        reader.catch_up()
        assert outcome(reader, locator, subject("live")) == before
        with place.reader() as started:
            assert outcome(started, locator, subject("live")) == before
        # The next real head follows the one before the aborted one.
        keeper.puncture(ORG, PROJECT, [target(locator, "erased")])
        reader.catch_up()
        assert outcome(reader, locator, subject("live")) == before
        assert outcome(reader, locator, subject("erased")) is Erased


def abort(place: Place, rows: list[Row]) -> None:
    own = {"transactional.id": f"{place.topic}-attacker", "transaction.timeout.ms": 150_000}
    producer = Producer(producer_settings(place.config) | own)
    producer.init_transactions(30)
    producer.begin_transaction()
    for key, value in rows:
        producer.produce(place.topic, value, key, 0)
    assert producer.flush(30) == 0
    producer.abort_transaction(30)


def test_7_a_day_is_never_minted_twice_also_after_it_was_erased(place: Place) -> None:
    keeper = place.keeper()
    first = today(place)
    keeper.puncture(ORG, PROJECT, [Target("day", first.tree, first.day)])
    assert keeper.mint().days == 0
    place.set_clock(keeper, 1)
    assert keeper.mint().days == 1
    # Nor by a keeper that starts anew, nor by one whose clock goes back.
    assert place.keeper(days=1).mint().days == 0
    # On the 1st its day lies in the tree of the month before, which never was: no second time.
    assert place.keeper(days=-1).mint().days == (first.day == 1)
    with place.reader() as reader:
        assert outcome(reader, first, subject("r")) is Erased
        assert outcome(reader, first, subject("r", user="")) is Erased
