"""The orgs' wrapping keys, unwrapped when needed and forgotten after five minutes."""

import threading
import time
from collections.abc import Callable, Mapping

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from turnlog.errors import KeyUnavailable, UsageError
from turnlog.keys.kms import Kms, unwrapped
from turnlog.keys.rows import parse_wrapping, read_wrapping, verified, wrapping_row_key

ORG_KEY_SECONDS = 300.0
ORG_KEYS = 4096
"""How many are remembered; 32 bytes each, but one call of the KMS to have it again."""


class OrgKeys:
    """Wrapping keys by org and version. Safe to use from several threads.

    Args:
        rows: rows of `turnlog.keys` by row key.
        kms: what wrapped them.
        public: the keeper's public key.
        clock: seconds that only go up.
    """

    def __init__(
        self,
        rows: Mapping[bytes, bytes],
        kms: Kms,
        public: Ed25519PublicKey,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rows = rows
        self._kms = kms
        self._public = public
        self._clock = clock
        self._keys: dict[tuple[str, int], tuple[float, bytes]] = {}
        self._lock = threading.Lock()

    def get(self, org: str, version: int) -> bytes:
        """Return a wrapping key, 32 bytes.

        Raises:
            KeyUnavailable: there is no such row, or it does not open.
            UsageError: another key than this process was given wrapped it.
            Unavailable: the KMS does not answer.
        """
        with self._lock:
            now = self._clock()
            self._forget(now)
            found = self._keys.get((org, version))
            if found is None:
                found = self._keys[org, version] = now + ORG_KEY_SECONDS, self._unwrap(org, version)
                if len(self._keys) > ORG_KEYS:
                    del self._keys[next(iter(self._keys))]
            return found[1]

    def forget(self) -> None:
        """Drop the keys that are older than five minutes, whether anyone asks for them or not."""
        with self._lock:
            self._forget(self._clock())

    def _forget(self, now: float) -> None:
        # In the order in which they came in, which is that in which they expire.
        for place, (expires, _) in list(self._keys.items()):
            if expires > now:
                return
            del self._keys[place]

    def _unwrap(self, org: str, version: int) -> bytes:
        row_key = wrapping_row_key(org, version)
        value = self._rows.get(row_key)
        if value is None:
            raise KeyUnavailable(f"row {row_key.decode()} is missing")
        return unwrapped(self._kms, org, read_wrapping(row_key, value, self._public))


def check_keys(rows: Mapping[bytes, bytes], kms: Kms, public: Ed25519PublicKey, where: str) -> None:
    """Check that the keys which a process was given are those of the rows that it reads.

    Args:
        rows: rows of `turnlog.keys`, or the wrapping keys' rows among them.
        kms: what it unwraps with.
        public: the keeper's public key that it verifies with.
        where: where it got that from, for the message.

    Raises:
        UsageError: no row was wrapped by this KMS key, or none is signed with this public key.
    """
    stored = {key: value for key, value in rows.items() if is_wrapping_row(key)}
    names = {name for key, value in stored.items() if (name := _kms_name(key, value))}
    if names and kms.name not in names:
        raise UsageError(
            f"{kms.where} is not the key that turnlog.keys was written with: its rows name"
            f" {', '.join(sorted(names))}, this is {kms.name}"
        )
    if stored and not any(_is_signed(public, key, value) for key, value in stored.items()):
        raise UsageError(f"{where} is not the public key of the keeper that wrote turnlog.keys")


def is_wrapping_row(row_key: bytes) -> bool:
    """Tell whether a row holds an org's wrapping key."""
    # The first look is all that most of the rows of a start need.
    return b"/kek/" in row_key and row_key.count(b"/") == 2


def _kms_name(row_key: bytes, value: bytes) -> str:
    try:
        return parse_wrapping(row_key, value).kms
    except KeyUnavailable:
        return ""


def _is_signed(public: Ed25519PublicKey, row_key: bytes, value: bytes) -> bool:
    try:
        verified(public, row_key, value)
    except KeyUnavailable:
        return False
    return True
