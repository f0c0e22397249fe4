"""What has to be minted for a project: rows out, nothing written here."""

import calendar
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from streams.keeper.state import KeyRows, Project
from turnlog.errors import KeyUnavailable
from turnlog.ids import uuid7
from turnlog.keys.mint import Sealer, mint, plant
from turnlog.keys.orgkeys import OrgKeys
from turnlog.keys.rows import (
    HeadLabel,
    Row,
    head_row_key,
    id_row_key,
    month_row,
    month_row_key,
    open_head,
    read_label,
    read_month,
)
from turnlog.keys.tree import StoredTree

AHEAD_DAYS = 14
SHORT_DAYS = 7
"""Fewer days ahead than this and the keeper alarms."""


class OrgBook:
    """What an org's rows say, opened.

    Args:
        state: rows of the org's partition.
        org_keys: wrapping keys of its orgs.
        signer: the keeper's key.
    """

    def __init__(self, state: KeyRows, org_keys: OrgKeys, signer: Ed25519PrivateKey) -> None:
        self.state = state
        self.org_keys = org_keys
        self.signer = signer
        self.public = signer.public_key()

    def sealer(self, org: str) -> Sealer:
        """Return what seals new rows of an org: its wrapping key of the newest version."""
        version = self._label(id_row_key(org)).wrap_version
        return Sealer(version, self.org_keys.get(org, version), self.signer)

    def tree_of(self, project: Project, month: str) -> StoredTree:
        """Return the tree of a month that has one."""
        return self.stored(project.org, self._tree_id(project, month))

    def trees(self, org: str, project: str) -> set[bytes]:
        """Return the ids of all trees of a project, whatever their retention class; maybe none."""
        return {
            self._tree_id(found, month)
            for found in self.state.projects(org)
            if found.project == project
            for month in self.state.months(found)
        }

    def stored(self, org: str, tree: bytes) -> StoredTree:
        """Return a tree as its present head has it."""
        head_key = head_row_key(org, tree)
        org_key = self.org_keys.get(org, self._label(head_key).wrap_version)
        head = open_head(org, tree, self._value(head_key), org_key, self.public)
        return StoredTree(org, tree, head, self.state.rows)

    def _tree_id(self, project: Project, month: str) -> bytes:
        row_key = month_row_key(*project, month)
        return read_month(row_key, self._value(row_key), self.public)

    def _label(self, row_key: bytes) -> HeadLabel:
        return read_label(row_key, self._value(row_key), self.public)

    def _value(self, row_key: bytes) -> bytes:
        value = self.state.rows.get(row_key)
        if value is None:
            raise KeyUnavailable(f"row {row_key.decode()} is missing")
        return value


class Span(NamedTuple):
    """Days of one month: first and last."""

    month: str
    first: int
    last: int


def spans(today: date, ahead_days: int = AHEAD_DAYS) -> Iterator[Span]:
    """Give the days from today to `ahead_days` later, month by month."""
    first, end = today, today + timedelta(days=ahead_days)
    while first <= end:
        last = min(end, first.replace(day=days_in(first)))
        yield Span(f"{first:%Y-%m}", first.day, last.day)
        first = last + timedelta(days=1)


def days_in(day: date) -> int:
    """Return how many days the month of a day has."""
    return calendar.monthrange(day.year, day.month)[1]


class Planned(NamedTuple):
    """Rows to write, and how many days they mint."""

    rows: list[Row]
    days: int


def plan(
    book: OrgBook,
    project: Project,
    today: date,
    sealer: Sealer,
    new_tree: Callable[[], bytes] = uuid7,
) -> Planned:
    """Return what is missing of the next 14 days of a project: trees, days, rows of months.

    A day is minted once, in order, and never for the past: a keeper that was stopped skips the
    days that it missed.

    Raises:
        KeyUnavailable: a row of the project is missing or does not open.
    """
    rows: list[Row] = []
    days = 0
    present = book.state.months(project)
    for span in spans(today):
        if span.month in present:
            stored = book.tree_of(project, span.month)
            added = mint(stored, span.first, span.last, sealer)
            days += span.last - max(span.first - 1, stored.head.minted_through) if added else 0
        else:
            added = _plant(project, span, sealer, new_tree())
            days += span.last - span.first + 1
        rows += added
    return Planned(rows, days)


def _plant(project: Project, span: Span, sealer: Sealer, tree: bytes) -> list[Row]:
    named = month_row(month_row_key(*project, span.month), tree, sealer.signer)
    return [*plant(project.org, tree, span.first, span.last, sealer), named]


def minted_ahead(book: OrgBook, project: Project, today: date) -> int:
    """Return how many days after today are minted without a gap, at most 14."""
    for span in spans(today):
        if span.month not in book.state.months(project):
            return _ahead(today, span.month, span.first - 1)
        through = book.tree_of(project, span.month).head.minted_through
        if through < span.last:
            return _ahead(today, span.month, max(through, span.first - 1))
    return AHEAD_DAYS


def _ahead(today: date, month: str, through: int) -> int:
    first = date.fromisoformat(f"{month}-01")
    return max(0, (first + timedelta(days=through - 1) - today).days)
