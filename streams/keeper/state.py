"""The rows of a partition of `turnlog.keys`, with an index of which projects have which trees."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from turnlog.ids import is_id
from turnlog.keys.rows import Row


class Project(NamedTuple):
    """What has trees of its own.

    Attributes:
        org: the org's id.
        project: the project's id.
        retention_class: such as `standard`.
    """

    org: str
    project: str
    retention_class: str


class KeyRows:
    """Rows by row key.

    Attributes:
        rows: all of them.
    """

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self._months: dict[Project, set[str]] = {}

    def become(self, other: "KeyRows") -> None:
        """Hold what another one holds; who refers to `rows` goes on doing so."""
        self.rows.clear()
        self.rows.update(other.rows)
        self._months = other._months

    def apply(self, changes: Iterable[Row]) -> None:
        """Take in rows that were written, in their order."""
        for key, value in changes:
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value
            self._index(key, value is not None)

    def _index(self, row_key: bytes, present: bool) -> None:
        found = month_of(row_key)
        if found is None:
            return
        project, month = found
        months = self._months.setdefault(project, set())
        (months.add if present else months.discard)(month)

    def projects(self, org: str | None = None) -> Iterator[Project]:
        """Give the projects of one org or of all."""
        for project, months in list(self._months.items()):
            if months and org in (None, project.org):
                yield project

    def months(self, project: Project) -> list[str]:
        """Return the months (YYYY-MM) for which a project has a tree, oldest first."""
        return sorted(self._months.get(project, ()))


def month_of(row_key: bytes) -> tuple[Project, str] | None:
    """Return project and month of the row that names a month's tree, None for any other row."""
    parts = row_key.decode(errors="replace").split("/")
    if len(parts) != 4 or not all(map(is_id, parts)):
        return None
    return Project(*parts[:3]), parts[3]
