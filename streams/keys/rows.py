"""The rows of `turnlog.keys` as they were read so far, and the keys that they give."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from streams.keeper.state import Project, month_of
from turnlog.errors import KeyUnavailable
from turnlog.keys.cache import NODE_SECONDS, Deriver, NodeCache
from turnlog.keys.frames import DataKey
from turnlog.keys.heads import Floor, Floors, Heads
from turnlog.keys.index import Locator, Subject
from turnlog.keys.kms import Kms
from turnlog.keys.orgkeys import OrgKeys
from turnlog.keys.rows import (
    Row,
    head_row_key,
    id_row_key,
    open_head,
    open_id_key,
    read_label,
    read_month,
)
from turnlog.keys.tree import StoredTree

logger = logging.getLogger(__name__)

HEAD = b"/head"
_TREES = 4096


class KeyRowsReader:
    """The rows of `turnlog.keys` as they were read so far, with the heads that are believed.

    No client: rows in, keys out; `KeyReader` feeds it from Kafka. Safe to use from several threads.

    Args:
        kms: unwraps the orgs' keys.
        public: the keeper's public key.
        floors: heads below which none is accepted.
        store: keeps the floors for the next reader.
        clock: seconds that only go up.

    Attributes:
        rows: the last value of each row in the log, heads that are not believed among them.
        heads: which heads are.
    """

    def __init__(
        self,
        kms: Kms,
        public: Ed25519PublicKey,
        floors: Mapping[bytes, Floor] | None = None,
        store: Floors | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.heads = Heads(public, floors, store)
        self._public = public
        self._clock = clock
        self._org_keys = OrgKeys(self.rows, kms, public, clock)
        self._cache = NodeCache(clock=clock)
        self._derivers: dict[bytes, tuple[float, Deriver]] = {}
        self._lock = threading.RLock()

    def take(self, row_key: bytes, value: bytes | None, live: bool = False) -> None:
        """Take in one row in the order of the log, `live` as `Heads.take` says."""
        self.take_all([(row_key, value)], live)

    def take_all(self, rows: Iterable[Row], live: bool = False) -> None:
        """Take in rows in the order of the log; nobody sees a part of them."""
        stored = self.rows
        with self._lock:
            for row_key, value in rows:
                if row_key.endswith(HEAD):
                    self._take_head(row_key, value, live)
                if value is None:
                    stored.pop(row_key, None)
                else:
                    stored[row_key] = value

    def _take_head(self, row_key: bytes, value: bytes | None, live: bool) -> None:
        try:
            changed = self.heads.take(row_key, value, live)
        except KeyUnavailable as error:
            logger.error("a key tree is stopped: %s", error)
            changed = True
        if changed:
            self._derivers.pop(row_key, None)
            # The row key without its last word is how the places of the tree's nodes begin.
            self._cache.drop(row_key[: -len(HEAD) + 1])

    def settle(self) -> None:
        """Store the floors of the heads that were taken in, with an alarm for each refused one.

        Raises:
            Unavailable: they cannot be stored; the heads are not used until they are.
        """
        with self._lock:
            for why in self.heads.settle().values():
                logger.error("a head of a key tree is refused: %s", why)

    def miss(self, wanted: Iterable[bytes]) -> None:
        """Raise an alarm for each of these heads that was seen once and is not in the log."""
        with self._lock:
            for row_key in wanted:
                if row_key not in self.rows and (why := self.heads.refusal(row_key)):
                    logger.error("a head of a key tree is refused: %s", why)

    def forget(self) -> None:
        """Drop whatever was remembered for as long as it may be, asked for again or not."""
        with self._lock:
            now = self._clock()
            for row_key in [key for key, (end, _) in self._derivers.items() if end <= now]:
                del self._derivers[row_key]
            self._cache.forget()
            self._org_keys.forget()

    def data_key(self, locator: Locator, subject: Subject) -> DataKey:
        """Return the key of a subject, as `KeySource` says."""
        with self._lock:
            return self._deriver(subject.org, locator.tree).data_key(locator, subject)

    def _deriver(self, org: str, tree: bytes) -> Deriver:
        row_key = head_row_key(org, tree)
        expires, found = self._derivers.get(row_key, (0.0, None))
        if found is not None and expires > self._clock():
            return found
        stored = self.stored_tree(org, tree)
        head = stored.head
        deriver = Deriver(tree, head.gen, head.index_key, stored, self._cache, org)
        self._derivers.pop(row_key, None)
        self._derivers[row_key] = self._clock() + NODE_SECONDS, deriver
        if len(self._derivers) > _TREES:
            del self._derivers[next(iter(self._derivers))]
        return deriver

    def stored_tree(self, org: str, tree: bytes) -> StoredTree:
        """Return a tree as its present head has it.

        Raises:
            NoTree: there is no head.
            KeyUnavailable: the head is not believed or does not open.
            UsageError: another key than this process was given wrapped the org's key.
            Unavailable: the KMS does not answer, or the head's floor cannot be stored.
        """
        with self._lock:
            row_key = head_row_key(org, tree)
            value = self.heads.value(row_key)
            version = read_label(row_key, value, self._public).wrap_version
            head = open_head(org, tree, value, self._org_keys.get(org, version), self._public)
            return StoredTree(org, tree, head, self.rows)

    def months(self, org: str) -> Iterator[tuple[Project, str, bytes]]:
        """Give each project of an org with its months (YYYY-MM) and their tree ids.

        Raises:
            KeyUnavailable: a month's row is not believed.
        """
        start = f"{org}/".encode()
        with self._lock:
            mine = sorted(key for key in self.rows if key.startswith(start))
        for key in mine:
            found = month_of(key) if key.count(b"/") == 3 else None
            if found is not None:
                yield *found, read_month(key, self.rows[key], self._public)

    def trees(self, org: str) -> Iterator[tuple[Project, str, StoredTree]]:
        """Give each project of an org with its months (YYYY-MM) and their trees.

        Raises:
            KeyUnavailable: a month's row or a head is not believed or does not open.
        """
        for project, month, tree in self.months(org):
            yield project, month, self.stored_tree(org, tree)

    def id_key(self, org: str) -> bytes:
        """Return an org's id key.

        Raises:
            KeyUnavailable: there is none, or it does not open.
        """
        with self._lock:
            row_key = id_row_key(org)
            value = self.rows.get(row_key)
            if value is None:
                raise KeyUnavailable(f"row {row_key.decode()} is missing")
            version = read_label(row_key, value, self._public).wrap_version
            return open_id_key(org, value, self._org_keys.get(org, version), self._public)
