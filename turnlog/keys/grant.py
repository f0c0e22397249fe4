"""Grants: what is alive of yesterday, today and tomorrow, handed to a producer by the keeper.

A grant holds nodes, never an org's wrapping key: a stolen one opens three days and nothing else. It
is good until it expires, so a dead keeper stops nobody for a day.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

from turnlog.errors import Erased, KeyUnavailable, UsageError
from turnlog.keys.cache import Deriver, NodeCache
from turnlog.keys.frames import DataKey
from turnlog.keys.index import MAX_GEN, RUN_BYTES, Locator, Subject, index_of
from turnlog.keys.tree import CoverNode
from turnlog.keys.walk import masked

GRANT_SECONDS = 24 * 3600
GRANT_VERSION = 1


def now_us() -> int:
    """Return the UTC time in microseconds."""
    return time.time_ns() // 1000


def day_of(at_us: int) -> date:
    """Return the UTC day of a time in microseconds."""
    return datetime.fromtimestamp(at_us // 1_000_000, UTC).date()


class Cover:
    """The live nodes of one day of one tree, found by bisection."""

    __slots__ = ("_nodes", "_starts")

    def __init__(self, nodes: Iterable[CoverNode]) -> None:
        # Ranges are disjoint, so the last one that starts at or before an index is the only one
        # that can hold it.
        self._nodes = sorted(nodes, key=lambda node: node.path)
        self._starts = [node.path for node in self._nodes]

    def covering(self, index: bytes) -> tuple[int, bytes]:
        """Return depth in bits and value of the live node that covers an index.

        Raises:
            Erased: none does.
        """
        at = bisect_right(self._starts, index) - 1
        if at >= 0:
            bits, path, node = self._nodes[at]
            if masked(index, bits) == path:
                return bits, node
        raise Erased("the key was erased")

    def nodes(self) -> list[CoverNode]:
        """Return the nodes, sorted by path."""
        return self._nodes


@dataclass(frozen=True, slots=True)
class DayGrant:
    """One day of one tree.

    Attributes:
        tree: tree id.
        day: day of the month.
        head_gen: generation of the head at which the cover was taken.
        index_key: the tree's.
        cover: what is alive of the day.
    """

    tree: bytes
    day: int
    head_gen: int
    index_key: bytes = field(repr=False)
    cover: Cover = field(repr=False)


@dataclass(frozen=True, slots=True)
class OrgGrant:
    """What a grant holds of one org.

    Attributes:
        org: the org's id.
        id_key: key under which foreign ids become ids of ours.
        projects: for each project, the (tree, day) under which a subject begins on a UTC day.
        days: every day of every tree that is granted.
    """

    org: str
    id_key: bytes = field(repr=False)
    projects: Mapping[str, Mapping[date, tuple[bytes, int]]]
    days: tuple[DayGrant, ...]


class Grant:
    """A producer's keys until the grant expires; a `KeySource`. Safe to use from several threads.

    Attributes:
        issued_at_us: when the keeper made it, UTC.
        expires_at_us: when it stops giving keys, UTC.
    """

    def __init__(
        self,
        orgs: Iterable[OrgGrant],
        issued_at_us: int,
        expires_at_us: int,
        *,
        clock_us: Callable[[], int] = now_us,
        cache: NodeCache | None = None,
    ) -> None:
        self.issued_at_us = issued_at_us
        self.expires_at_us = expires_at_us
        self._clock_us = clock_us
        self._orgs = {org.org: org for org in orgs}
        cache = NodeCache() if cache is None else cache
        self._days = {
            (org.org, day.tree, day.day): Deriver(
                day.tree, day.head_gen, day.index_key, day.cover, cache, org.org
            )
            for org in self._orgs.values()
            for day in org.days
        }
        self._covers = {
            (org.org, day.tree, day.day): day.cover
            for org in self._orgs.values()
            for day in org.days
        }

    def __repr__(self) -> str:
        return f"Grant(orgs={self.orgs}, expires_at_us={self.expires_at_us})"

    @property
    def orgs(self) -> tuple[str, ...]:
        """The orgs that it covers."""
        return tuple(self._orgs)

    def projects(self, org: str) -> tuple[str, ...]:
        """Return the projects of an org.

        Raises:
            UsageError: the grant does not cover the org.
        """
        return tuple(self._org(org).projects)

    def id_key(self, org: str) -> bytes:
        """Return the org's id key, 32 bytes.

        Raises:
            UsageError: the grant does not cover the org.
        """
        return self._org(org).id_key

    def begin(
        self,
        org: str,
        project: str,
        *,
        user: str,
        conversation: str,
        subject_id: str,
        kind: str,
    ) -> Locator:
        """Return the key locator of a subject that begins now.

        Args:
            org: the org's id.
            project: the project's id.
            user: the acting user's id, "" for none.
            conversation: conversation id, "" for none.
            subject_id: id of the run, turn or artefact.
            kind: as in `Subject`; `o` and `q` are both keys of a run, which begins with both.

        Raises:
            UsageError: the credential does not cover the org, or it has no such project.
            KeyUnavailable: the grant has expired or holds nothing of today.
            Erased: whatever the generation, the subject's place today was erased.
        """
        tree, day = self._today(org, project)
        found = self._covers[org, tree, day], self._days[org, tree, day].index_key
        subject = Subject(org, user, conversation, subject_id, kind)
        return Locator(tree, day, _generation(*found, day, subject))

    def _today(self, org: str, project: str) -> tuple[bytes, int]:
        days = self._org(org).projects.get(project)
        if days is None:
            raise UsageError(f"org {org} has no project {project}")
        at_us = self._live()
        found = days.get(day_of(at_us))
        if found is None:
            raise KeyUnavailable("the grant holds no key of today: fetch a new one")
        return found

    def data_key(self, locator: Locator, subject: Subject) -> DataKey:
        """Return the key of a subject.

        Raises:
            UsageError: the credential does not cover the org.
            Erased: the key was destroyed before the grant was made.
            KeyUnavailable: the grant has expired or does not hold this day.
        """
        self._live()
        deriver = self._days.get((subject.org, locator.tree, locator.day))
        if deriver is None:
            self._org(subject.org)
            raise KeyUnavailable("the grant does not hold this day")
        return deriver.data_key(locator, subject)

    def _live(self) -> int:
        at_us = self._clock_us()
        if at_us >= self.expires_at_us:
            raise KeyUnavailable("the grant has expired: fetch a new one from the keeper")
        return at_us

    def _org(self, org: str) -> OrgGrant:
        found = self._orgs.get(org)
        if found is None:
            raise UsageError(f"the credential does not cover org {org}")
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the grant as JSON values; bytes in hex. Secret."""
        return {
            "version": GRANT_VERSION,
            "issued_at_us": self.issued_at_us,
            "expires_at_us": self.expires_at_us,
            "orgs": [_org_json(org) for org in self._orgs.values()],
        }

    @classmethod
    def from_json(
        cls, value: Mapping[str, Any], *, clock_us: Callable[[], int] = now_us
    ) -> "Grant":
        """Read what `to_json` gave.

        Raises:
            KeyUnavailable: it is not a grant.
        """
        try:
            if value["version"] != GRANT_VERSION:
                raise ValueError("version")
            orgs = [_org_from(org) for org in value["orgs"]]
            issued_at_us, expires_at_us = int(value["issued_at_us"]), int(value["expires_at_us"])
        except (KeyError, TypeError, ValueError):
            # The values are secret: nothing of them goes into the message.
            raise KeyUnavailable("the keeper answered with something that is not a grant") from None
        return cls(orgs, issued_at_us, expires_at_us, clock_us=clock_us)


def _generation(cover: Cover, index_key: bytes, day: int, subject: Subject) -> int:
    """Return the lowest generation for which nothing of the subject is erased."""
    index = index_of(index_key, day, 0, subject)
    at = 11  # the generation's byte
    for gen in range(MAX_GEN + 1):
        index = index[:at] + bytes((gen,)) + index[at + 1 :]
        if _alive(cover, index):
            return gen
    raise Erased("every generation of this user's day was erased")


def _alive(cover: Cover, index: bytes) -> bool:
    kinds = b"oq" if index[RUN_BYTES:] in (b"o", b"q") else index[RUN_BYTES:]
    try:
        for kind in kinds:
            bits, _ = cover.covering(index[:RUN_BYTES] + bytes((kind,)))
            if bits <= RUN_BYTES * 8:
                return True
    except Erased:
        return False
    return True


def _org_json(org: OrgGrant) -> dict[str, Any]:
    projects = {
        project: {day.isoformat(): [tree.hex(), number] for day, (tree, number) in days.items()}
        for project, days in org.projects.items()
    }
    days = [_day_json(day) for day in org.days]
    return {"org": org.org, "id_key": org.id_key.hex(), "projects": projects, "days": days}


def _day_json(day: DayGrant) -> dict[str, Any]:
    return {
        "tree": day.tree.hex(),
        "day": day.day,
        "head_gen": day.head_gen,
        "index_key": day.index_key.hex(),
        "cover": [[bits, path.hex(), node.hex()] for bits, path, node in day.cover.nodes()],
    }


def _org_from(value: Mapping[str, Any]) -> OrgGrant:
    projects = {
        project: {
            date.fromisoformat(day): (bytes.fromhex(tree), int(number))
            for day, (tree, number) in days.items()
        }
        for project, days in value["projects"].items()
    }
    days = tuple(map(_day_from, value["days"]))
    return OrgGrant(value["org"], bytes.fromhex(value["id_key"]), projects, days)


def _day_from(value: Mapping[str, Any]) -> DayGrant:
    nodes = [
        CoverNode(int(bits), bytes.fromhex(path), bytes.fromhex(node))
        for bits, path, node in value["cover"]
    ]
    return DayGrant(
        bytes.fromhex(value["tree"]),
        int(value["day"]),
        int(value["head_gen"]),
        bytes.fromhex(value["index_key"]),
        Cover(nodes),
    )
