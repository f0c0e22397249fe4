"""What the keeper plans and grants, on rows in memory."""

import logging
import os
from datetime import date, timedelta
from pathlib import Path

import pytest

from streams.keeper.granting import org_grant
from streams.keeper.minting import OrgBook, Planned, minted_ahead, plan, spans
from streams.keeper.state import KeyRows, Project, month_of
from turnlog.errors import Erased, KeyUnavailable
from turnlog.keys.grant import OrgGrant
from turnlog.keys.keyfile import create_key_file
from turnlog.keys.kms import LocalKms
from turnlog.keys.mint import Sealer
from turnlog.keys.orgkeys import OrgKeys
from turnlog.keys.puncture import puncture
from turnlog.keys.rows import (
    ZERO_DIGEST,
    HeadLabel,
    WrappedKey,
    head_row_key,
    seal_id_key,
    wrapping_row,
)

PROJECT = Project("acme", "support", "standard")
ID_KEY = b"i" * 32


class Org:
    """One org with one project, and a keeper that is started when a test says so."""

    def __init__(self, folder: Path) -> None:
        file = create_key_file(folder / "local.key")
        kms, org_key = LocalKms(file), os.urandom(32)
        self.state = KeyRows()
        self.book = OrgBook(
            self.state, OrgKeys(self.state.rows, kms, file.signer.public_key()), file.signer
        )
        self.sealer = Sealer(1, org_key, file.signer)
        label = HeadLabel(1, 1, ZERO_DIGEST)
        wrapped = WrappedKey(1, kms.name, kms.wrap("acme", 1, org_key))
        self.state.apply([wrapping_row("acme", wrapped, file.signer)])
        self.state.apply([seal_id_key("acme", label, ID_KEY, org_key, file.signer)])

    def mint(self, today: date) -> Planned:
        planned = plan(self.book, PROJECT, today, self.sealer)
        self.state.apply(planned.rows)
        return planned

    def grant(self, today: date) -> OrgGrant:
        return org_grant(self.book, "acme", today)

    def minted(self, month: str) -> int:
        return self.book.tree_of(PROJECT, month).head.minted_through

    def puncture(self, month: str, prefix: bytes) -> None:
        self.state.apply(puncture(self.book.tree_of(PROJECT, month), [prefix], self.sealer).rows)


@pytest.fixture
def org(tmp_path: Path) -> Org:
    return Org(tmp_path)


def test_two_weeks_are_spans_of_at_most_two_months() -> None:
    assert [*spans(date(2026, 11, 3))] == [("2026-11", 3, 17)]
    assert [*spans(date(2026, 11, 16))] == [("2026-11", 16, 30)]
    assert [*spans(date(2026, 11, 17))] == [("2026-11", 17, 30), ("2026-12", 1, 1)]
    assert [*spans(date(2026, 12, 31))] == [("2026-12", 31, 31), ("2027-01", 1, 14)]
    assert [*spans(date(2028, 2, 29), 1)] == [("2028-02", 29, 29), ("2028-03", 1, 1)]


def test_a_new_project_gets_two_weeks_with_the_next_months_tree(org: Org) -> None:
    assert org.mint(date(2026, 11, 25)).days == 15
    assert org.state.months(PROJECT) == ["2026-11", "2026-12"]
    assert (org.minted("2026-11"), org.minted("2026-12")) == (30, 9)
    assert minted_ahead(org.book, PROJECT, date(2026, 11, 25)) == 14


def test_a_second_round_on_the_same_day_mints_nothing(org: Org) -> None:
    org.mint(date(2026, 11, 25))
    assert org.mint(date(2026, 11, 25)) == Planned([], 0)


def test_every_day_adds_one_day(org: Org) -> None:
    first = date(2026, 11, 10)
    org.mint(first)
    for later in range(1, 40):
        assert org.mint(first + timedelta(days=later)).days == 1
        assert minted_ahead(org.book, PROJECT, first + timedelta(days=later)) == 14
    assert org.state.months(PROJECT) == ["2026-11", "2026-12", "2027-01"]


def test_a_keeper_that_was_stopped_catches_up(org: Org) -> None:
    org.mint(date(2026, 11, 1))
    assert minted_ahead(org.book, PROJECT, date(2026, 11, 9)) == 6
    assert org.mint(date(2026, 11, 9)).days == 8


def test_days_that_were_missed_are_never_minted(org: Org) -> None:
    org.mint(date(2026, 11, 1))
    assert org.minted("2026-11") == 15
    assert org.mint(date(2026, 11, 20)).days == 15
    with pytest.raises(Erased):
        org.book.tree_of(PROJECT, "2026-11").derive(bytes((18,)), 8)
    assert len(org.book.tree_of(PROJECT, "2026-11").derive(bytes((20,)), 8)) == 32


def test_a_month_that_was_missed_gets_no_tree(org: Org) -> None:
    org.mint(date(2026, 11, 1))
    org.mint(date(2027, 1, 20))
    assert org.state.months(PROJECT) == ["2026-11", "2027-01", "2027-02"]


def test_minted_ahead_counts_across_the_end_of_a_month(org: Org) -> None:
    org.mint(date(2026, 11, 20))
    assert minted_ahead(org.book, PROJECT, date(2026, 11, 20)) == 14
    assert minted_ahead(org.book, PROJECT, date(2026, 11, 28)) == 6
    assert minted_ahead(org.book, PROJECT, date(2026, 12, 4)) == 0
    assert minted_ahead(org.book, PROJECT, date(2026, 12, 9)) == 0


def test_a_clock_that_goes_back_mints_nothing(org: Org) -> None:
    org.mint(date(2026, 11, 20))
    before = dict(org.state.rows)
    assert org.mint(date(2026, 11, 18)).days == 0
    assert org.state.rows == before


def test_a_grant_holds_yesterday_today_and_tomorrow(org: Org) -> None:
    today = date(2026, 11, 30)
    org.mint(today - timedelta(days=3))
    found = org.grant(today)
    assert found.id_key == ID_KEY
    november, december = (org.book.tree_of(PROJECT, month).tree for month in ("2026-11", "2026-12"))
    assert found.projects == {
        "support": {
            date(2026, 11, 29): (november, 29),
            date(2026, 11, 30): (november, 30),
            date(2026, 12, 1): (december, 1),
        }
    }
    assert [(day.tree, day.day, len(day.cover.nodes())) for day in found.days] == [
        (november, 29, 1),
        (november, 30, 1),
        (december, 1, 1),
    ]


def test_a_grant_holds_what_is_alive_of_a_day(org: Org) -> None:
    today = date(2026, 11, 20)
    org.mint(today)
    erased = bytes((20,)) + os.urandom(31)
    org.puncture("2026-11", erased)
    found = org.grant(today)
    [day] = [day for day in found.days if day.day == 20]
    assert len(day.cover.nodes()) == 248
    assert day.head_gen == 2
    with pytest.raises(Erased):
        day.cover.covering(erased + b"o")


def test_a_missing_next_tree_stops_nobody(org: Org, caplog: pytest.LogCaptureFixture) -> None:
    org.mint(date(2026, 11, 16))
    tree = org.book.tree_of(PROJECT, "2026-11").tree
    with caplog.at_level(logging.ERROR):
        found = org.grant(date(2026, 12, 3))
    assert found.projects["support"] == {
        date(2026, 12, 3): (tree, 30),
        date(2026, 12, 4): (tree, 30),
    }
    assert [(day.tree, day.day) for day in found.days] == [(tree, 30)]
    assert "acme/support has no tree for 2026-12-03" in caplog.text


def test_a_project_that_does_not_open_is_left_out_with_an_alarm(
    org: Org, caplog: pytest.LogCaptureFixture
) -> None:
    today = date(2026, 11, 20)
    org.mint(today)
    other = Project("acme", "other", "standard")
    org.state.apply(plan(org.book, other, today, org.sealer).rows)
    tree = org.book.tree_of(other, "2026-11").tree
    head = head_row_key("acme", tree)
    # A bit is turned: one signature in 16 ends with a zero, and setting it would change nothing.
    value = org.state.rows[head]
    org.state.apply([(head, value[:-1] + bytes((value[-1] ^ 1,)))])
    with caplog.at_level(logging.ERROR):
        found = org.grant(today)
    assert found.projects["other"] == {}
    assert len(found.projects["support"]) == 3
    assert "acme/other" in caplog.text


def test_an_org_without_its_id_key_gets_no_grant(org: Org) -> None:
    org.state.apply([(b"acme/id", None)])
    with pytest.raises(KeyUnavailable, match="acme/id"):
        org.grant(date(2026, 11, 20))


@pytest.mark.parametrize(
    "row_key",
    [
        b"heartbeat",
        b"acme/id",
        b"acme/kek/1",
        b"acme/" + b"0" * 32 + b"/head",
        b"a/b/c/d/e",
        b"\xff",
    ],
)
def test_only_a_months_row_is_taken_for_one(row_key: bytes) -> None:
    assert month_of(row_key) is None


def test_a_months_row_names_its_project() -> None:
    assert month_of(b"acme/support/standard/2026-11") == (PROJECT, "2026-11")
