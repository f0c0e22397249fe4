"""Do the topic of key rows, the local copies and the floors agree?"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from rocksdict import AccessType

from streams.keeper.minting import AHEAD_DAYS, SHORT_DAYS
from streams.keeper.state import Project, month_of
from streams.keys.floors import FloorStore, floors_path
from streams.keys.local_copy import (
    MAX_AGE_S,
    CopyDamaged,
    Meta,
    copies_folder,
    open_rows,
    read_meta,
    read_rows,
    unpurged,
)
from streams.keys.log import Log, LogRow, org_of, tree_of
from streams.keys.rows import HEAD
from turnlog.config import Config
from turnlog.errors import KeyUnavailable, UsageError
from turnlog.keys.heads import Floor
from turnlog.keys.kms import Kms
from turnlog.keys.orgkeys import OrgKeys, is_wrapping_row
from turnlog.keys.rows import (
    LINK,
    ZERO_DIGEST,
    Head,
    id_row_key,
    open_head,
    open_id_key,
    page_row_key,
    read_label,
    read_month,
    verified,
)
from turnlog.keys.tree import StoredTree

_TRIES = 3
_RETRY_S = 0.3


class Finding(NamedTuple):
    """One thing that does not agree.

    Attributes:
        org: whose.
        tree: tree id in hex, "" where it is not one tree's.
        what: what kind of thing it is.
        detail: in words.
    """

    org: str
    tree: str
    what: str
    detail: str


@dataclass
class Checked:
    """What was looked at.

    Attributes:
        trees: how many have a head.
        pages: how many of their pages open.
        orphans: page rows that no head reaches.
        copies: local copies that were compared.
    """

    trees: int = 0
    pages: int = 0
    orphans: int = 0
    copies: int = 0
    heads: dict[bytes, Head] = field(default_factory=dict)


class Check:
    """The checks over one reading of the topic.

    Args:
        log: what the topic holds.
        kms: unwraps the orgs' keys.
        public: the keeper's public key.
        org: only this org; "" for all.
    """

    def __init__(self, log: Log, kms: Kms, public: Ed25519PublicKey, org: str = "") -> None:
        self.log = log
        self.checked = Checked()
        self._public = public
        self._rows = log.rows()
        self._org_keys = OrgKeys(self._rows, kms, public)
        self._org = org
        self._reached: set[bytes] = set()

    def _mine(self, row_keys: Iterable[bytes]) -> list[bytes]:
        return sorted(key for key in row_keys if self._org in ("", org_of(key)) and key.isascii())

    def topic(self, today: date) -> Iterator[Finding]:
        """Check every tree from its head to its pages, the heads' chain, and what is minted."""
        for key in self._mine(self.log.heads):
            yield from self._chain(key)
            yield from self._tree(key)
        yield from self._others()
        yield from self._months(today)

    def _chain(self, head_key: bytes) -> Iterator[Finding]:
        """Check the heads that the log still has: signed, and each the next of the one before."""
        before: LogRow | None = None
        for head in self.log.heads[head_key]:
            why = self._misfit(head_key, before, head)
            if why:
                yield Finding(org_of(head_key), tree_of(head_key), "head", why)
            before = head

    def _misfit(self, head_key: bytes, before: LogRow | None, head: LogRow) -> str:
        if head.value is None:
            return f"removed at offset {head.offset}"
        try:
            label = read_label(head_key, head.value, self._public)
        except KeyUnavailable as error:
            return f"offset {head.offset}: {error}"
        if before is None or before.value is None:
            wanted = ZERO_DIGEST if label.gen == 1 else label.prev
        elif label.gen <= before.gen:
            return f"generation {label.gen} at offset {head.offset} after {before.gen}"
        else:
            wanted = before.digest if label.gen == before.gen + 1 else label.prev
        return "" if label.prev == wanted else f"generation {label.gen} does not follow the last"

    def _tree(self, head_key: bytes) -> Iterator[Finding]:
        org, tree = org_of(head_key), tree_of(head_key)
        value = self._rows.get(head_key)
        if value is None:
            return
        self.checked.trees += 1
        try:
            version = read_label(head_key, value, self._public).wrap_version
            org_key = self._org_keys.get(org, version)
            head = open_head(org, bytes.fromhex(tree), value, org_key, self._public)
        except (KeyUnavailable, UsageError, ValueError) as error:
            yield Finding(org, tree, "head", str(error))
            return
        self.checked.heads[head_key] = head
        stored = StoredTree(org, bytes.fromhex(tree), head, self._rows)
        yield from self._pages(stored, b"", head.page_key)

    def _pages(self, stored: StoredTree, prefix: bytes, page_key: bytes) -> Iterator[Finding]:
        row_key = page_row_key(stored.org, stored.tree, page_key)
        self._reached.add(row_key)
        try:
            entries = stored.page(prefix, page_key)
        except KeyUnavailable as error:
            yield Finding(stored.org, stored.tree.hex(), "page", str(error))
            return
        self.checked.pages += 1
        for (n, v), below in entries.items():
            if n == LINK:
                yield from self._pages(stored, prefix + bytes((v,)), below)

    def _others(self) -> Iterator[Finding]:
        orphans: dict[tuple[str, str], int] = {}
        for key in self._mine(self._rows):
            if key.endswith(HEAD) or key in self._reached or month_of(key):
                continue
            if is_wrapping_row(key) or key == id_row_key(org_of(key)):
                yield from self._small_row(key)
            else:
                place = org_of(key), tree_of(key)
                orphans[place] = orphans.get(place, 0) + 1
        self.checked.orphans = sum(orphans.values())
        for (org, tree), count in orphans.items():
            yield Finding(org, tree, "orphans", f"{count} rows that no head reaches")
        yield from self._strangers()

    def _strangers(self) -> Iterator[Finding]:
        """Tell of rows that nobody looks at, because no row of ours has such a key."""
        orgs = Counter(org_of(key) for key in self.log.strangers())
        for org, count in sorted(orgs.items()):
            if self._org in ("", org):
                yield Finding(
                    org, "", "strangers", f"{count} rows whose keys are none of Turnlog's"
                )

    def _small_row(self, key: bytes) -> Iterator[Finding]:
        org, value = org_of(key), self._rows[key]
        try:
            if is_wrapping_row(key):
                verified(self._public, key, value)
            else:
                version = read_label(key, value, self._public).wrap_version
                open_id_key(org, value, self._org_keys.get(org, version), self._public)
        except (KeyUnavailable, UsageError) as error:
            yield Finding(org, "", "row", str(error))

    def _months(self, today: date) -> Iterator[Finding]:
        through: dict[Project, dict[str, int]] = {}
        for key in self._mine(self._rows):
            found = month_of(key) if key.count(b"/") == 3 else None
            if found is None:
                continue
            org = org_of(key)
            try:
                tree = read_month(key, self._rows[key], self._public).hex()
            except KeyUnavailable as error:
                yield Finding(org, "", "month", str(error))
                continue
            head = self.checked.heads.get(f"{org}/{tree}".encode() + HEAD)
            if head is None:
                yield Finding(org, tree, "month", f"{key.decode()} names a tree that does not open")
            through.setdefault(found[0], {})[found[1]] = head.minted_through if head else 0
        for project, months in through.items():
            yield from _short(project, months, today)

    def floors(self, floors: Mapping[bytes, Floor]) -> Iterator[Finding]:
        """Check that no floor is above the head in the topic, and none is of another one."""
        for key in self._mine(floors):
            floor, value = floors[key], self._rows.get(key)
            gen = int.from_bytes((value or b"")[5:13], "big")
            if value is None:
                why = f"generation {floor.gen} was seen, the topic has no head"
            elif gen < floor.gen:
                why = f"generation {floor.gen} was seen, the topic has {gen}"
            elif gen == floor.gen and sha256(value).digest() != floor.digest:
                why = f"another head of generation {gen} was seen than the topic has"
            else:
                continue
            yield Finding(org_of(key), tree_of(key), "floor", why)

    def copy(self, role: str, meta: Meta, rows: Mapping[bytes, bytes]) -> Iterator[Finding]:
        """Compare a local copy with the topic, up to the offsets that the copy has reached."""
        self.checked.copies += 1
        wrong: dict[str, int] = {}
        for key in self._mine({*rows, *self.log.last}):
            row = self.log.last.get(key)
            newer = row is not None and row.offset >= meta.next.get(row.partition, 0)
            if not newer and rows.get(key) != (row.value if row else None):
                wrong[org_of(key)] = wrong.get(org_of(key), 0) + 1
        for org, count in wrong.items():
            yield Finding(org, "", "copy", f"{role}: {count} rows are not those of the topic")


def _short(project: Project, months: Mapping[str, int], today: date) -> Iterator[Finding]:
    days = [today + timedelta(days=ahead) for ahead in range(1, AHEAD_DAYS + 1)]
    ahead = sum(months.get(f"{day:%Y-%m}", 0) >= day.day for day in days)
    if ahead < SHORT_DAYS:
        why = f"{project.project}: {ahead} days are minted ahead, not {AHEAD_DAYS}"
        yield Finding(project.org, "", "minted", why)


class LocalCopy(NamedTuple):
    """A local copy as its files are.

    Attributes:
        role: whose it is.
        meta: None where it is empty or damaged.
        rows: all of them.
        unpurged: beginnings of row keys of which older rows may be in the files.
        why: what is wrong with it, "" for nothing.
    """

    role: str
    meta: Meta | None
    rows: dict[bytes, bytes]
    unpurged: list[bytes]
    why: str

    @property
    def age_days(self) -> float:
        """Days since it was begun."""
        return (time.time() - self.meta.begun_at_s) / 86_400 if self.meta else 0.0


def local_copies(config: Config, topic: tuple[str, str]) -> Iterator[LocalCopy]:
    """Give the copies of this home; a running reader's as it last wrote it to its files."""
    for folder in sorted(copies_folder(config).glob("*/")):
        yield _local_copy(folder.name, topic, folder)


def _local_copy(role: str, topic: tuple[str, str], folder: Path) -> LocalCopy:
    for _ in range(_TRIES):
        try:
            stored = open_rows(folder, AccessType.read_only())
            meta = read_meta(stored)
            rows = read_rows(stored, meta) if meta else {}
            marked = unpurged(stored)
            stored.close()
            return LocalCopy(role, meta, rows, marked, _unfit(meta, topic))
        except CopyDamaged as error:
            why = f"it does not open: {error}"
            # A reader that runs replaces its files now and then.
            time.sleep(_RETRY_S)
    return LocalCopy(role, None, {}, [], why)


def _unfit(meta: Meta | None, topic: tuple[str, str]) -> str:
    if meta is None:
        return ""
    if (meta.topic, meta.topic_id) != topic:
        return "it is of another topic"
    if time.time() - meta.begun_at_s >= MAX_AGE_S:
        return "it is older than 7 days, and no process of that role has thrown it away"
    return ""


def stored_floors(config: Config) -> dict[bytes, Floor]:
    """Return the floors of this home.

    Raises:
        Unavailable: they cannot be read.
    """
    if not floors_path(config).exists():
        return {}
    store = FloorStore(floors_path(config))
    try:
        return store.load()
    finally:
        store.close()
