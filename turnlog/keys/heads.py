"""Which heads a reader believes: signed ones, in an unbroken chain, never older than its floor."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple, Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from turnlog.errors import KeyUnavailable, NoTree
from turnlog.keys.rows import ZERO_DIGEST, read_label, same_digest

# Where a head says its generation: behind the version byte and the wrap version.
_GEN = slice(5, 13)


class Floor(NamedTuple):
    """The newest head that a reader has seen of a tree.

    Attributes:
        gen: its generation.
        digest: SHA-256 of its value.
    """

    gen: int
    digest: bytes


class Floors(Protocol):
    """Where floors are kept for the next reader."""

    def raise_to(self, floors: Mapping[bytes, Floor]) -> Mapping[bytes, Floor]:
        """Make floors durable by row key, never lowering one; return those in force for the keys.

        Raises:
            Unavailable: they cannot be stored; nothing may be done with the heads.
        """
        ...


class _Held(NamedTuple):
    """The last head of a tree in the log; `checked` once its signature was."""

    value: bytes
    gen: int
    digest: bytes
    checked: bool


class Heads:
    """The heads of many trees, by row key, as a reader takes them in.

    While it reads up to the end that it saw at its start, any signed head that goes forward is
    accepted, because compaction removes the ones between; of these only the last one of a tree has
    its signature checked (0.1 ms each). From then on only the next generation whose `prev` is the
    head it holds. Anything else stops that tree: an attacker's head is never used, and neither is
    the one before it.

    A head is served only when its floor is stored, and only while nothing newer was ever seen. A
    tree whose log ends below its floor (rolled back, or read by another process a moment ago) is
    KeyUnavailable until the chain has reached the floor.

    Args:
        public: the keeper's public key.
        floors: what earlier readers have seen; older heads are refused.
        store: keeps them for the next reader; without one they end with this object.
    """

    def __init__(
        self,
        public: Ed25519PublicKey,
        floors: Mapping[bytes, Floor] | None = None,
        store: Floors | None = None,
    ) -> None:
        self._public = public
        self._store = store
        self._held: dict[bytes, _Held] = {}
        self._floors = dict(floors or {})
        self._stopped: dict[bytes, str] = {}
        self._unsettled: dict[bytes, None] = {}

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
            if not row_key.isascii():
                raise KeyUnavailable(f"{_name(row_key)}: no row of Turnlog's has such a key")
            return self._follow(row_key, value) if live else self._forward(row_key, value)
        except KeyUnavailable as error:
            self._stop(row_key, error)
            raise

    def settle(self, row_keys: Sequence[bytes] | None = None) -> Mapping[bytes, str]:
        """Check what was taken in and store its floors; return what is refused, and why.

        Args:
            row_keys: only these heads; all that were taken in since the last time by default.

        Raises:
            Unavailable: the floors cannot be stored; it is tried again when a head is asked for.
        """
        wanted = list(self._unsettled) if row_keys is None else row_keys
        stopped = {key: why for key in wanted if (why := self._check(key))}
        self._raise(
            {key: held for key in wanted if (held := self._held.get(key)) and key not in stopped}
        )
        for row_key in wanted:
            self._unsettled.pop(row_key, None)
        return {key: why for key in wanted if (why := self.refusal(key))}

    def value(self, row_key: bytes) -> bytes:
        """Return the value of a tree's head.

        Raises:
            NoTree: there is no such head.
            KeyUnavailable: the tree is stopped, or its head is not the newest that was ever seen.
            Unavailable: its floor cannot be stored.
        """
        if row_key in self._unsettled:
            self.settle([row_key])
        why = self.refusal(row_key)
        if why:
            raise KeyUnavailable(why)
        held = self._held.get(row_key)
        if held is None:
            raise NoTree(f"{_name(row_key)}: there is no such tree")
        return held.value

    def refusal(self, row_key: bytes) -> str:
        """Return why a tree's head is not used, "" where it is or where there is none."""
        if row_key in self._stopped:
            return f"tree stopped: {self._stopped[row_key]}"
        held, floor = self._held.get(row_key), self._floors.get(row_key)
        if floor is None:
            return ""
        if held is None:
            return f"{_name(row_key)}: a head was seen once and is missing now"
        if held.gen < floor.gen:
            return f"{_name(row_key)}: generation {held.gen} in the log, {floor.gen} seen before"
        return ""

    def floors(self) -> Mapping[bytes, Floor]:
        """Return the newest heads seen, to be kept for the next reader."""
        self.settle()
        return dict(self._floors)

    def stopped(self) -> Mapping[bytes, str]:
        """Return the trees that are stopped, and why."""
        return dict(self._stopped)

    def _stop(self, row_key: bytes, error: KeyUnavailable) -> None:
        self._stopped[row_key] = str(error)
        self._held.pop(row_key, None)
        self._unsettled.pop(row_key, None)

    def _forward(self, row_key: bytes, value: bytes | None) -> bool:
        """Take a head that was there at the start: later in the log, so it must be newer."""
        held = self._held.get(row_key)
        if held is not None and held.value == value:
            return False
        gen = stated_gen(row_key, value)
        if held is not None and gen <= held.gen:
            raise KeyUnavailable(f"{_name(row_key)}: generation {gen} after {held.gen}")
        self._hold(row_key, _Held(value or b"", gen, b"", False))
        return True

    def _follow(self, row_key: bytes, value: bytes | None) -> bool:
        """Take a head that came since: it must be the one after that which is held."""
        name = _name(row_key)
        stated_gen(row_key, value)
        if (why := self._check(row_key)) is not None:
            raise KeyUnavailable(why)
        held = self._held.get(row_key)
        last = Floor(held.gen, held.digest) if held else Floor(0, ZERO_DIGEST)
        value = value or b""
        digest = sha256(value).digest()
        if digest == last.digest:
            return False
        _, gen, prev = read_label(row_key, value, self._public)
        if gen <= last.gen:
            raise KeyUnavailable(f"{name}: generation {gen} after {last.gen}")
        if gen != last.gen + 1 or not same_digest(prev, last.digest):
            raise KeyUnavailable(f"{name}: generation {gen} does not follow {last.gen}")
        self._hold(row_key, _Held(value, gen, digest, True))
        self._check_fork(row_key)
        return True

    def _hold(self, row_key: bytes, held: _Held) -> None:
        self._held[row_key] = held
        self._unsettled[row_key] = None

    def _check(self, row_key: bytes) -> str | None:
        """Check a head's signature if that was left for later; stop the tree and say why."""
        held = self._held.get(row_key)
        if held is None or held.checked:
            return None
        digest, floor = sha256(held.value).digest(), self._floors.get(row_key)
        try:
            # A floor is stored of checked heads alone: what is one needs no second check.
            if floor is None or digest != floor.digest:
                read_label(row_key, held.value, self._public)
            self._held[row_key] = held._replace(digest=digest, checked=True)
            self._check_fork(row_key)
        except KeyUnavailable as error:
            self._stop(row_key, error)
            return str(error)
        return None

    def _check_fork(self, row_key: bytes) -> None:
        held, floor = self._held[row_key], self._floors.get(row_key)
        if floor and held.gen == floor.gen and not same_digest(held.digest, floor.digest):
            raise KeyUnavailable(
                f"{_name(row_key)}: another head of generation {held.gen} was seen before"
            )

    def _raise(self, heads: Mapping[bytes, _Held]) -> None:
        """Store the floors of heads that are newer; another process may know of newer ones."""
        offered = {
            key: Floor(held.gen, held.digest)
            for key, held in heads.items()
            if held.gen > self._floors.get(key, Floor(0, b"")).gen
        }
        if not offered:
            return
        self._floors.update(self._store.raise_to(offered) if self._store else offered)
        for row_key in offered:
            try:
                self._check_fork(row_key)
            except KeyUnavailable as error:
                self._stop(row_key, error)


def _name(row_key: bytes) -> str:
    return row_key.decode(errors="replace")


def stated_gen(row_key: bytes, value: bytes | None) -> int:
    """Return the generation that a head states; its signature is another matter."""
    if value is None:
        raise KeyUnavailable(f"{_name(row_key)}: the head was removed")
    return int.from_bytes(value[_GEN], "big")
