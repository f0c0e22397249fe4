"""`turnlog keys check`: whatever does not agree is found, and nothing else is."""

import os
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from hashlib import sha256
from pathlib import Path

import pytest

from streams.keeper.service import HEARTBEAT_KEY
from streams.keys.check import Check, Finding
from streams.keys.checking import Checking
from streams.keys.local_copy import FORMAT, Meta, copies_folder, open_rows
from streams.keys.log import Log, LogRow
from streams.keys.segments import PartitionFiles, rows_in
from tests.streams.keeper_kafka import named
from tests.streams.keys_kept import Kept, index_in
from tests.turnlog.keys.helpers import ORG, SIGNER, TREE, Store
from turnlog.config import Config
from turnlog.keys.heads import Floor
from turnlog.keys.keyfile import KeyFile
from turnlog.keys.kms import LocalKms
from turnlog.keys.rows import (
    Row,
    WrappedKey,
    head_row_key,
    month_row,
    month_row_key,
    page_row_key,
    wrapping_row,
)

HEAD = head_row_key(ORG, TREE)
TODAY = date(2026, 11, 17)


class Written:
    """A log of one org with one tree, and the check of what a test made of it."""

    def __init__(self, folder: Path) -> None:
        self.kms = LocalKms(KeyFile(folder, os.urandom(32), SIGNER))
        self.store = Store(1, 30)
        wrapped = WrappedKey(1, self.kms.name, self.kms.wrap(ORG, 1, self.store.sealer.org_key))
        self.rows: list[Row] = [wrapping_row(ORG, wrapped, SIGNER), *self.store.rows.items()]
        self.rows.append(month_row(month_row_key(ORG, "p", "standard", "2026-11"), TREE, SIGNER))
        self.rows += self.store.puncture(self.store.index()[:32])

    def check(self) -> Check:
        log = Log()
        log.take(HEARTBEAT_KEY, LogRow(0, 0, b"\1"))
        for offset, (key, value) in enumerate(self.rows, 1):
            log.take(key, LogRow(0, offset, value))
        return Check(log, self.kms, SIGNER.public_key())

    def findings(self, today: date = TODAY) -> list[Finding]:
        return list(self.check().topic(today))

    def last(self, key: bytes) -> bytes:
        return next(value for at, value in reversed(self.rows) if at == key) or b""


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


def test_a_log_as_the_keeper_writes_it_agrees(written: Written) -> None:
    check = written.check()
    assert list(check.topic(TODAY)) == []
    assert (check.checked.trees, check.checked.orphans) == (1, 0)
    assert check.checked.pages == written.store.tree().size().pages


def changed(value: bytes) -> bytes:
    return value[:-1] + bytes((value[-1] ^ 1,))


def drop_a_page(written: Written) -> None:
    key = page_row_key(ORG, TREE, written.store.tree().head.page_key)
    written.rows = [row for row in written.rows if row[0] != key]


def bring_a_page_back(written: Written) -> None:
    removed = next(key for key, value in written.rows if value is None)
    written.rows.append((removed, next(v for k, v in written.rows if k == removed)))


def change_a_page(written: Written) -> None:
    key = page_row_key(ORG, TREE, written.store.tree().head.page_key)
    written.rows.append((key, changed(written.last(key))))


def bring_an_old_head_back(written: Written) -> None:
    written.rows.append((HEAD, next(value for key, value in written.rows if key == HEAD)))


def remove_the_head(written: Written) -> None:
    written.rows.append((HEAD, None))


def forge_a_head(written: Written) -> None:
    written.rows.append((HEAD, changed(written.last(HEAD))))


def lose_the_wrapping_key(written: Written) -> None:
    written.rows = written.rows[1:]


def forge_the_month(written: Written) -> None:
    key = month_row_key(ORG, "p", "standard", "2026-11")
    written.rows.append((key, changed(written.last(key))))


@pytest.mark.parametrize(
    ("damage", "what", "said"),
    [
        (drop_a_page, "page", "its row is missing"),
        (bring_a_page_back, "orphans", "1 rows that no head reaches"),
        (change_a_page, "page", "does not open"),
        (bring_an_old_head_back, "head", "generation 1 at offset"),
        (remove_the_head, "head", "removed at offset"),
        (forge_a_head, "head", "not signed by the keeper"),
        (lose_the_wrapping_key, "head", "kek/1 is missing"),
        (forge_the_month, "month", "not signed by the keeper"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_damage_is_found(
    written: Written, damage: Callable[[Written], None], what: str, said: str
) -> None:
    damage(written)
    found = written.findings()
    assert any(one.what == what and said in one.detail for one in found), found
    assert all(one.org == ORG for one in found)


def test_a_head_that_does_not_follow_is_found(written: Written) -> None:
    # Generation 3 of another history.
    other = Store(1, 30)
    other.puncture(other.index()[:32])
    other.puncture(other.index()[:22])
    written.rows.append((HEAD, other.head_value))
    assert any("does not follow" in one.detail for one in written.findings())


def test_days_that_are_missing_ahead_are_found(written: Written) -> None:
    assert written.findings(TODAY + timedelta(days=6)) == []
    [found] = written.findings(TODAY + timedelta(days=7))
    assert (found.what, found.detail) == ("minted", "p: 6 days are minted ahead, not 14")


def test_a_floor_above_the_topic_is_found(written: Written) -> None:
    check = written.check()
    digest = sha256(written.last(HEAD)).digest()
    assert list(check.floors({HEAD: Floor(2, digest), b"other/x/head": Floor(1, digest)})) == [
        Finding("other", "x", "floor", "generation 1 was seen, the topic has no head")
    ]
    [above] = check.floors({HEAD: Floor(3, digest)})
    assert above.detail == "generation 3 was seen, the topic has 2"
    [fork] = check.floors({HEAD: Floor(2, bytes(32))})
    assert "another head of generation 2" in fork.detail
    assert list(check.floors({HEAD: Floor(1, bytes(32))})) == []


def test_a_copy_is_compared_up_to_where_it_has_got(written: Written) -> None:
    check = written.check()
    rows = {key: value for key, value in dict(written.rows).items() if value is not None}
    whole = Meta(FORMAT, "t", "id", 0, 0, len(rows), {0: len(written.rows) + 1})
    assert list(check.copy("usage", whole, rows)) == []
    [found] = check.copy("usage", whole, {**rows, HEAD: b"old"})
    assert found.detail == "usage: 1 rows are not those of the topic"
    [extra] = check.copy("usage", whole, {**rows, f"{ORG}/x/y".encode(): b"1"})
    assert "1 rows" in extra.detail
    # One that has not read the puncture yet.
    early = whole._replace(next={0: 4})
    start = {key: value for key, value in written.rows[:4] if value is not None}
    assert list(check.copy("usage", early, start)) == []


# -- on a broker ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(stores: Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    yield Kept(stores, tmp_path_factory.mktemp("home"))


def test_topic_floors_and_copies_of_a_living_keeper_agree(kept: Kept) -> None:
    org = named("agree")
    kept.keeper.create(org, "p")
    _, locator, subject = kept.begin(org)
    with kept.reader(role="agree") as reader:
        kept.puncture(org, locator.tree, index_in(reader, locator, subject)[:32])
        reader.catch_up()
    checking = Checking(kept.config, topic=kept.topic)
    assert list(checking.findings()) == []
    summary = checking.summary(0, gone=False)
    assert summary["copies"] == 1 and summary["trees"] >= 1 and summary["pages"] >= 32


def test_a_copy_that_differs_is_found_on_disk(kept: Kept) -> None:
    org = named("differs")
    kept.keeper.create(org, "p")
    _, locator, _ = kept.begin(org)
    with kept.reader(role="differs"):
        pass
    stored = open_rows(copies_folder(kept.config) / "differs")
    stored[b"r/" + head_row_key(org, locator.tree)] = b"another"
    stored.flush()
    stored.close()
    found = list(Checking(kept.config, org, kept.topic).findings())
    assert [(one.what, one.detail) for one in found] == [
        ("copy", "differs: 1 rows are not those of the topic")
    ]


def test_the_segments_hold_what_the_broker_serves(kept: Kept, stores: Config) -> None:
    number = kept.keeper._of("local").number
    files = PartitionFiles(stores.home / "kafka" / "data", kept.topic, number)
    stored = {row.key: row.value for path in files.live() for row in rows_in(path)}
    rows = kept.keeper.partitions[number].state.rows
    assert {key: value for key, value in stored.items() if value and b"/" in key} == {
        key: value for key, value in rows.items() if b"/" in key
    }
    assert files.active_from == 0 and files.cleaned_to() == 0
    assert files.leftovers() == []


def test_rows_whose_keys_are_none_of_ours_are_told_and_not_looked_at(written: Written) -> None:
    foreign = b"\xff\x1b]0;x\x07"
    for end in (b"/" + TREE.hex().encode() + b"/head", b"/kek/1", b"/id", b"/p/standard/2026-11"):
        written.rows.append((foreign + end, b"forged"))
    check = written.check()
    assert list(check.topic(TODAY)) == [
        Finding("\ufffd\x1b]0;x\x07", "", "strangers", "4 rows whose keys are none of Turnlog's")
    ]
    assert check.checked.trees == 1
    assert not any(key.startswith(foreign) for key in check.log.rows())
