"""What a grant holds of an org: the covers of the days under which its subjects begin or began."""

import logging
from collections.abc import Iterator
from datetime import date, timedelta

from streams.keeper.minting import OrgBook, days_in
from streams.keeper.state import Project
from turnlog.errors import KeyUnavailable
from turnlog.keys.grant import Cover, DayGrant, OrgGrant
from turnlog.keys.rows import id_row_key, open_id_key, read_label
from turnlog.keys.tree import StoredTree

logger = logging.getLogger(__name__)

Place = tuple[bytes, int]


def org_grant(book: OrgBook, org: str, today: date) -> OrgGrant:
    """Return what is alive of yesterday, today and tomorrow in every project of an org.

    A project whose tree does not open is left out with an alarm; the others are granted.

    Raises:
        KeyUnavailable: the org is not there, or its id key does not open.
    """
    projects: dict[str, dict[date, Place]] = {}
    days: dict[Place, DayGrant] = {}
    for project in book.state.projects(org):
        places = projects.setdefault(project.project, {})
        for day, stored, number in _granted(book, project, today):
            places[day] = (stored.tree, number)
            if places[day] not in days:
                days[places[day]] = _day(stored, number)
    return OrgGrant(org, id_key(book, org), projects, tuple(days.values()))


def id_key(book: OrgBook, org: str) -> bytes:
    """Return the id key of an org.

    Raises:
        KeyUnavailable: the org is not there, or its id key does not open.
    """
    row_key = id_row_key(org)
    value = book.state.rows.get(row_key)
    if value is None:
        raise KeyUnavailable(f"row {row_key.decode()} is missing")
    version = read_label(row_key, value, book.public).wrap_version
    return open_id_key(org, value, book.org_keys.get(org, version), book.public)


def _granted(
    book: OrgBook, project: Project, today: date
) -> Iterator[tuple[date, StoredTree, int]]:
    """Give for each day the tree and the day of its month under which a subject begins."""
    for offset in (-1, 0, 1):
        day = today + timedelta(days=offset)
        try:
            found = _own(book, project, day) or (
                _newest(book, project, day) if offset >= 0 else None
            )
        except KeyUnavailable as error:
            logger.error("no grant for %s/%s of %s: %s", project.org, project.project, day, error)
            continue
        if found is not None:
            yield day, *found


def _own(book: OrgBook, project: Project, day: date) -> tuple[StoredTree, int] | None:
    month = f"{day:%Y-%m}"
    if month not in book.state.months(project):
        return None
    stored = book.tree_of(project, month)
    return (stored, day.day) if stored.head.minted_through >= day.day else None


def _newest(book: OrgBook, project: Project, day: date) -> tuple[StoredTree, int] | None:
    """Return the newest older tree with the last day of its month: a missing tree stops nobody."""
    months = [month for month in book.state.months(project) if month < f"{day:%Y-%m}"]
    for month in reversed(months):
        stored, last = book.tree_of(project, month), days_in(date.fromisoformat(f"{month}-01"))
        if stored.head.minted_through >= last:
            logger.error(
                "%s/%s has no tree for %s: its subjects get the last day of %s",
                project.org,
                project.project,
                day,
                month,
            )
            return stored, last
    return None


def _day(stored: StoredTree, day: int) -> DayGrant:
    cover = Cover(stored.cover(bytes((day,))))
    return DayGrant(stored.tree, day, stored.head.gen, stored.head.index_key, cover)
