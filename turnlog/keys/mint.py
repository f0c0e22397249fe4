"""Planting trees and minting their days: rows out, nothing written here."""

import os
from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from turnlog.errors import UsageError
from turnlog.keys.expand import KEY_BYTES
from turnlog.keys.rows import ZERO_DIGEST, HeadLabel, Row, page_row_key, seal_head, seal_page
from turnlog.keys.tree import StoredTree

LAST_DAY = 31


class Sealer:
    """What writing rows of one org needs: its wrapping key, the keeper's key, and chance.

    Attributes:
        wrap_version: version of the wrapping key.
        org_key: the wrapping key, 32 bytes.
        signer: the keeper's signing key.
        random: gives random bytes; a test passes its own.
    """

    __slots__ = ("org_key", "random", "signer", "wrap_version")

    def __init__(
        self,
        wrap_version: int,
        org_key: bytes,
        signer: Ed25519PrivateKey,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.wrap_version = wrap_version
        self.org_key = org_key
        self.signer = signer
        self.random = random

    def key(self) -> bytes:
        """Return a fresh key of 32 bytes."""
        return self.random(KEY_BYTES)


def plant(org: str, tree: bytes, first_day: int, last_day: int, sealer: Sealer) -> list[Row]:
    """Return the rows of a new tree with some days minted: a page, then the head.

    Args:
        org: the org's id.
        tree: tree id, a UUIDv7.
        first_day: first day of the month that gets a node; earlier ones never will.
        last_day: last day that gets one now.
        sealer: of the org.
    """
    _check_days(first_day, last_day)
    page_key = sealer.key()
    entries = {(8, day): sealer.key() for day in range(first_day, last_day + 1)}
    label = HeadLabel(sealer.wrap_version, 1, ZERO_DIGEST)
    secrets = page_key, sealer.key(), last_day
    return [
        seal_page(org, tree, b"", 1, page_key, entries),
        seal_head(org, tree, label, secrets, sealer.org_key, sealer.signer),
    ]


def mint(stored: StoredTree, first_day: int, last_day: int, sealer: Sealer) -> list[Row]:
    """Return the rows that add days to a tree: a page, the head, the removal of the old page.

    A day is minted once: days that are minted already, erased ones among them, are left alone, and
    nothing is returned where no day is new.

    Args:
        stored: the tree as it is.
        first_day: first day that may get a node; those skipped never will.
        last_day: last day that gets one.
        sealer: of the org.

    Raises:
        KeyUnavailable: the tree's first page is missing or does not open.
    """
    head = stored.head
    days = range(max(first_day, head.minted_through + 1), last_day + 1)
    if not days:
        return []
    _check_days(days[0], last_day)
    entries = stored.page(b"", head.page_key) | {(8, day): sealer.key() for day in days}
    org, tree, page_key = stored.org, stored.tree, sealer.key()
    label = HeadLabel(sealer.wrap_version, head.gen + 1, head.digest)
    secrets = page_key, head.index_key, last_day
    return [
        seal_page(org, tree, b"", label.gen, page_key, entries),
        seal_head(org, tree, label, secrets, sealer.org_key, sealer.signer),
        (page_row_key(org, tree, head.page_key), None),
    ]


def _check_days(first_day: int, last_day: int) -> None:
    if not 1 <= first_day <= last_day <= LAST_DAY:
        raise UsageError(f"days {first_day} to {last_day} are not days of a month")
