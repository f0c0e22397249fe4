"""Readers of `turnlog.keys`: Erased, KeyUnavailable and NoTree are never confused."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.keeper.partition import take_over
from streams.keys.rows import KeyRowsReader
from streams.keys_reader import KeyReader
from tests.streams.keeper_kafka import keeper_of, named
from tests.streams.keys_kept import Kept, index_in
from tests.turnlog.keys.helpers import ORG, RUN, SIGNER, TREE, Store, runs
from turnlog.config import Config
from turnlog.errors import Erased, KeyStateError, KeyUnavailable, NoTree, Unavailable, UsageError
from turnlog.keys import (
    DataKey,
    Locator,
    Place,
    Subject,
    open_content,
    seal_content,
)
from turnlog.keys.cache import NODE_SECONDS
from turnlog.keys.keyfile import KeyFile, create_key_file
from turnlog.keys.kms import LocalKms
from turnlog.keys.orgkeys import ORG_KEY_SECONDS
from turnlog.keys.rows import Row, WrappedKey, head_row_key, wrapping_row
from turnlog.keys.walk import LEAF_BITS, dek_of

LOCATOR = Locator(TREE, 17, 0)


# -- in memory -----------------------------------------------------------------------------------


class Log:
    """Everything that was ever written of one tree, and what a reader makes of a part of it."""

    def __init__(self, folder: Path) -> None:
        self.kms = LocalKms(KeyFile(folder, os.urandom(32), SIGNER))
        self.store = Store(17, 17)
        wrapped = WrappedKey(1, self.kms.name, self.kms.wrap(ORG, 1, self.store.sealer.org_key))
        self.rows: list[Row] = [wrapping_row(ORG, wrapped, SIGNER), *self.store.rows.items()]

    def add(self, rows: list[Row]) -> None:
        self.rows += rows

    def reader(self, rows: list[Row], live_from: int | None = None) -> KeyRowsReader:
        reader = KeyRowsReader(self.kms, SIGNER.public_key())
        for at, (key, value) in enumerate(rows):
            reader.take(key, value, live=live_from is not None and at >= live_from)
        return reader


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def outcome(reader: KeyRowsReader, subject: Subject, day: int = 17) -> bytes | type[KeyStateError]:
    try:
        return reader.data_key(Locator(TREE, day, 0), subject).commit
    except KeyStateError as error:
        return type(error)


def compacted(rows: list[Row]) -> list[Row]:
    """Return the last row of each key, in the order of the log, as the cleaner leaves it."""
    last = {key: at for at, (key, _) in enumerate(rows)}
    return [row for at, row in enumerate(rows) if last[row[0]] == at]


def commit_of(store: Store, subject: Subject) -> bytes:
    index = store.index(subject)
    leaf = store.tree().derive(index, LEAF_BITS)
    return DataKey(dek_of(leaf, TREE, index, subject)).commit


@pytest.mark.parametrize("clean", [False, True])
def test_7_a_start_that_stops_at_any_offset_never_says_erased_of_a_live_key(
    log: Log, clean: bool
) -> None:
    subjects = runs(4)
    wanted = {subject: commit_of(log.store, subject) for subject in subjects}
    gone = {subjects[0], subjects[1]}
    log.add(log.store.mint(18, 19))
    log.add(log.store.puncture(log.store.index(subjects[0])[:32]))
    log.add(log.store.mint(20, 21))
    rows = compacted(log.rows) if clean else log.rows
    for stop in range(len(rows) + 1):
        reader = log.reader(rows[:stop])
        for subject in subjects:
            allowed = [wanted[subject], NoTree, KeyUnavailable] + [Erased] * (subject in gone)
            assert outcome(reader, subject) in allowed
    last = log.reader(rows)
    assert [outcome(last, s) for s in subjects] == [
        Erased if s in gone else wanted[s] for s in subjects
    ]


def test_7_a_reader_one_head_behind_a_mint_says_unavailable_and_then_has_the_key(log: Log) -> None:
    reader = log.reader(log.rows, live_from=len(log.rows))
    assert outcome(reader, RUN, day=18) is KeyUnavailable
    for key, value in log.store.mint(18, 18):
        reader.take(key, value, live=True)
    assert isinstance(outcome(reader, RUN, day=18), bytes)


def test_a_new_head_drops_what_was_cached_at_once(log: Log) -> None:
    reader = log.reader(log.rows, live_from=len(log.rows))
    assert isinstance(outcome(reader, RUN), bytes)
    for key, value in log.store.puncture(log.store.index()[:32]):
        reader.take(key, value, live=True)
    assert outcome(reader, RUN) is Erased


def test_what_a_caller_does_with_a_key_does_not_reach_the_next(log: Log) -> None:
    reader = log.reader(log.rows)
    wanted = commit_of(log.store, RUN)
    key = reader.data_key(LOCATOR, RUN)
    key.commit = key.dek_id = b""
    assert reader.data_key(LOCATOR, RUN).commit == wanted


def test_what_is_remembered_is_gone_after_its_time_without_being_asked_for(log: Log) -> None:
    at = [1000.0]
    reader = KeyRowsReader(log.kms, SIGNER.public_key(), clock=lambda: at[0])
    reader.take_all(log.rows)
    reader.data_key(LOCATOR, RUN)
    assert len(reader._cache) and reader._derivers and reader._org_keys._keys
    at[0] += NODE_SECONDS
    reader.forget()
    assert not len(reader._cache) and not reader._derivers
    at[0] += ORG_KEY_SECONDS
    reader.forget()
    assert not reader._org_keys._keys


def test_a_new_head_drops_nodes_that_outlived_the_head_they_came_from(log: Log) -> None:
    at = [1000.0]
    reader = KeyRowsReader(log.kms, SIGNER.public_key(), clock=lambda: at[0])
    reader.take_all(log.rows)
    reader.data_key(LOCATOR, RUN)
    at[0] += NODE_SECONDS - 1
    reader.data_key(LOCATOR, RUN._replace(conversation="conv_9"))
    at[0] += 1
    reader.forget()
    assert len(reader._cache) and not reader._derivers
    reader.take_all(log.store.puncture(log.store.index()[:32]), live=True)
    assert not len(reader._cache)


def test_a_row_key_that_is_no_text_stops_nobody(log: Log) -> None:
    reader = log.reader(log.rows, live_from=len(log.rows))
    for live in (False, True):
        for key in (b"\xff/head", b"/head", b"a/b/head"):
            reader.take(key, b"\1", live)
    reader.settle()
    assert isinstance(outcome(reader, RUN), bytes)


def test_a_head_that_breaks_the_chain_stops_the_tree_and_no_other(log: Log) -> None:
    first = dict(log.store.rows)
    log.add(log.store.mint(18, 18))
    reader = log.reader(log.rows)
    head = head_row_key(ORG, TREE)
    reader.take(head, first[head], live=True)
    assert outcome(reader, RUN) is KeyUnavailable
    assert head in reader.heads.stopped()


def test_an_org_without_its_wrapping_key_is_unavailable(log: Log) -> None:
    reader = log.reader(log.rows[1:])
    assert outcome(reader, RUN) is KeyUnavailable


def test_a_foreign_tree_is_no_tree(log: Log) -> None:
    reader = log.reader(log.rows)
    with pytest.raises(NoTree):
        reader.data_key(LOCATOR, RUN._replace(org="other"))
    with pytest.raises(NoTree):
        reader.data_key(LOCATOR._replace(tree=os.urandom(16)), RUN)


def test_threads_read_while_rows_arrive(log: Log) -> None:
    reader = log.reader(log.rows, live_from=len(log.rows))
    wanted = commit_of(log.store, RUN)
    wrong: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            found = outcome(reader, RUN)
            if found not in (wanted, KeyUnavailable):
                wrong.append(found)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for n in range(10):
        for key, value in log.store.puncture(log.store.index(RUN._replace(id=f"run_{n}"))[:32]):
            reader.take(key, value, live=True)
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert outcome(reader, RUN) == wanted


# -- on a broker ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(stores: Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    yield Kept(stores, tmp_path_factory.mktemp("home"))


def test_what_a_producer_seals_a_reader_opens(kept: Kept) -> None:
    org = named("seal")
    kept.keeper.create(org, "p")
    grant, locator, subject = kept.begin(org)
    place: Place = {
        "org": org,
        "tree": locator.tree,
        "event_id": os.urandom(16),
        "subject_id": subject.id,
        "writer_epoch": 1,
        "seq": 3,
        "kind": "run.completed",
    }
    frame, mac = seal_content(grant.data_key(locator, subject), {"a": 1}, **place)
    with kept.reader() as reader:
        key = reader.data_key(locator, subject)
        assert open_content(key, frame, content_mac=mac, **place) == {"a": 1}
        assert reader.id_key(org) == grant.id_key(org)


def test_a_reader_follows_what_happens_after_its_start(kept: Kept) -> None:
    with kept.reader() as reader:
        org = named("later")
        kept.keeper.create(org, "p")
        grant, locator, subject = kept.begin(org)
        assert reader.data_key(locator, subject).commit == (grant.data_key(locator, subject).commit)
        assert reader.id_key(org) == grant.id_key(org)


def test_the_three_ways_to_have_no_key_are_told_apart(kept: Kept) -> None:
    org = named("three")
    kept.keeper.create(org, "p")
    _, locator, subject = kept.begin(org)
    _, _, other = kept.begin(org, "run_2")
    with kept.reader([org]) as reader:
        wanted = reader.data_key(locator, other).commit
        index = index_in(reader, locator, subject)
        kept.puncture(org, locator.tree, index[:32])
        reader.catch_up()
        with pytest.raises(Erased):
            reader.data_key(locator, subject)
        assert reader.data_key(locator, other).commit == wanted
        through = reader.stored_tree(org, locator.tree).head.minted_through
        if through < 31:
            with pytest.raises(KeyUnavailable, match="not minted"):
                reader.data_key(locator._replace(day=through + 1), subject)
        with pytest.raises(NoTree):
            reader.data_key(locator._replace(tree=os.urandom(16)), subject)
        with pytest.raises(NoTree):
            reader.data_key(locator, subject._replace(org=named("foreign")))


def test_7_what_an_aborted_transaction_wrote_never_counts(kept: Kept) -> None:
    org = named("abort")
    kept.keeper.create(org, "p")
    _, locator, subject = kept.begin(org)
    partition = kept.keeper._of(org)
    head = head_row_key(org, locator.tree)
    stale = partition.state.rows[head]
    with kept.reader([org]) as reader:
        wanted = reader.data_key(locator, subject).commit
        with pytest.raises(Unavailable):
            partition.write([(head, stale[:-1] + b"\0"), (b"big", bytes(2_000_000))])
        partition.ready().write([(b"heartbeat", b"\1" + bytes(8))])
        reader.catch_up()
        assert reader.data_key(locator, subject).commit == wanted
    with kept.reader([org]) as reader:
        assert reader.data_key(locator, subject).commit == wanted


def test_the_wrong_key_file_is_told_at_the_start(kept: Kept, tmp_path: Path) -> None:
    wrong = create_key_file(tmp_path / "wrong.key").path
    config = kept.config.model_copy(update={"key_file": wrong})
    with pytest.raises(UsageError, match=f"{wrong} is not the key"):
        KeyReader(config, topic=kept.topic)


def test_the_wrong_public_key_is_told_at_the_start(kept: Kept, tmp_path: Path) -> None:
    public = create_key_file(tmp_path / "wrong.key").public_hex
    config = kept.config.model_copy(update={"keeper_public": public})
    with pytest.raises(UsageError, match="keeper_public is not the public key"):
        KeyReader(config, topic=kept.topic)


def test_a_missing_file_is_named(kept: Kept, tmp_path: Path) -> None:
    gone = kept.config.model_copy(update={"key_file": tmp_path / "none.key"})
    with pytest.raises(UsageError, match="none.key"):
        KeyReader(gone, topic=kept.topic)
    elsewhere = kept.config.model_copy(
        update={"home": tmp_path, "key_file": kept.config.local_key_file}
    )
    with pytest.raises(UsageError, match="TURNLOG_KEEPER_PUBLIC"):
        KeyReader(elsewhere, topic=kept.topic)


def test_a_reader_of_one_org_reads_its_partition_alone(kept: Kept) -> None:
    org = named("one")
    kept.keeper.create(org, "p")
    with kept.reader([org]) as reader:
        orgs = {key.split(b"/")[0] for key in reader.rows() if b"/" in key}
        own = kept.keeper._of(org).number
    assert org.encode() in orgs
    assert all(kept.keeper._of(name.decode()).number == own for name in orgs)


def test_a_second_keeper_in_between_breaks_no_reader(kept: Kept) -> None:
    org = named("again")
    kept.keeper.create(org, "p")
    _, locator, subject = kept.begin(org)
    with kept.reader([org]) as reader:
        wanted = reader.data_key(locator, subject).commit
        number = kept.keeper._of(org).number
        take_over(kept.config, number, kept.topic).write([(b"heartbeat", b"\1" + bytes(8))])
        kept.keeper = keeper_of(kept.config, kept.topic)
        reader.catch_up()
        assert reader.data_key(locator, subject).commit == wanted


def test_a_reader_that_has_ended_serves_no_key(kept: Kept) -> None:
    org = named("ended")
    kept.keeper.create(org, "p")
    _, locator, subject = kept.begin(org)
    reader = kept.reader([org])
    reader.close()
    with pytest.raises(KeyUnavailable, match="has ended"):
        reader.data_key(locator, subject)
