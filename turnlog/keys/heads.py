"""Which heads a reader believes: signed ones, in an unbroken chain, never older than its floor."""

from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from turnlog.errors import KeyUnavailable, NoTree
from turnlog.keys.rows import ZERO_DIGEST, read_label, same_digest


class Floor(NamedTuple):
    """The newest head that a reader has seen of a tree.

    Attributes:
        gen: its generation.
        digest: SHA-256 of its value.
    """

    gen: int
    digest: bytes


class Heads:
    """The heads of many trees, by row key, as a reader takes them in.

    While it reads up to the end that it saw at its start, any signed head that goes forward is
    accepted, because compaction removes the ones between. From then on only the next generation
    whose `prev` is the head it holds. Anything else stops that tree: an attacker's head is never
    used, and neither is the one before it.

    Args:
        public: the keeper's public key.
        floors: what an earlier reader has seen; older heads are refused.
    """

    def __init__(
        self, public: Ed25519PublicKey, floors: Mapping[bytes, Floor] | None = None
    ) -> None:
        self._public = public
        self._values: dict[bytes, bytes] = {}
        self._floors = dict(floors or {})
        self._stopped: dict[bytes, str] = {}

    def take(self, row_key: bytes, value: bytes | None, live: bool) -> bool:
        """Take in a head's row in the order of the log; tell whether the tree's head changed.

        Args:
            row_key: the row's key.
            value: its value, None where it was removed.
            live: True from the end of the topic on that was seen at the start.

        Raises:
            KeyUnavailable: the head is not believed and the tree is stopped; raised once.
        """
        if row_key in self._stopped:
            return False
        try:
            changed = self._accept(row_key, value, live)
        except KeyUnavailable as error:
            self._stopped[row_key] = str(error)
            self._values.pop(row_key, None)
            raise
        return changed

    def _accept(self, row_key: bytes, value: bytes | None, live: bool) -> bool:
        name = row_key.decode()
        if value is None:
            raise KeyUnavailable(f"{name}: the head was removed")
        floor, digest = self._floors.get(row_key, Floor(0, b"")), sha256(value).digest()
        gen, prev = read_label(row_key, value, self._public)[1:]
        if gen == floor.gen and same_digest(digest, floor.digest):
            changed = row_key not in self._values
        else:
            _check_next(name, floor, Floor(gen, prev), live)
            changed = True
        self._values[row_key] = value
        self._floors[row_key] = Floor(gen, digest)
        return changed

    def value(self, row_key: bytes) -> bytes:
        """Return the value of a tree's head.

        Raises:
            KeyUnavailable: the tree is stopped, or all that is known of it is a floor.
            NoTree: there is no such head.
        """
        value = self._values.get(row_key)
        if value is not None:
            return value
        if row_key in self._stopped:
            raise KeyUnavailable(f"tree stopped: {self._stopped[row_key]}")
        if row_key in self._floors:
            raise KeyUnavailable(f"{row_key.decode()}: a head was seen once and is missing now")
        raise NoTree(f"{row_key.decode()}: there is no such tree")

    def floors(self) -> Mapping[bytes, Floor]:
        """Return the newest heads seen, to be kept for the next reader."""
        return dict(self._floors)

    def stopped(self) -> Mapping[bytes, str]:
        """Return the trees that are stopped, and why."""
        return dict(self._stopped)


def _check_next(name: str, floor: Floor, offered: Floor, live: bool) -> None:
    """Check a head against the newest one seen; `offered.digest` is what it calls its previous."""
    if offered.gen <= floor.gen:
        raise KeyUnavailable(f"{name}: generation {offered.gen} after {floor.gen}")
    follows = offered.gen == floor.gen + 1 and same_digest(
        offered.digest, floor.digest or ZERO_DIGEST
    )
    if live and not follows:
        raise KeyUnavailable(f"{name}: generation {offered.gen} does not follow {floor.gen}")
