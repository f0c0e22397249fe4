"""One tree in one store, written and read by both implementations."""

import os
from collections.abc import Callable, Sequence
from itertools import product

from tests.attack.second import derive, frames, pages, tree
from tests.turnlog.keys.helpers import ORG, SIGNER, TREE, Store
from turnlog.errors import Erased, KeyUnavailable
from turnlog.keys.cache import Deriver, NodeCache
from turnlog.keys.frames import Place
from turnlog.keys.index import Locator, Subject

PLACE = pages.Place(ORG, TREE)
_PART = {"o": "r", "q": "r", "t": "t", "d": "d"}

Outcome = bytes | str
"""A key, or what was said instead: `erased` or `unavailable`."""


def as_second(subject: Subject, day: int, generation: int = 0) -> derive.Subject:
    """The same subject as the second implementation writes it."""
    _, user, conversation, name, kind = subject
    return derive.Subject(day, user, generation, conversation, _PART[kind], name, kind)


def where(place: Place) -> frames.Where:
    return frames.Where(
        place["org"],
        place["tree"],
        place["event_id"],
        place["subject_id"],
        place["writer_epoch"],
        place["seq"],
        place["kind"],
    )


class Both(Store):
    """A store of the product's whose rows the second implementation reads and changes too."""

    def read_by_second(self) -> tree.Tree:
        rows = {key.decode(): value for key, value in self.rows.items()}
        return tree.read(PLACE, self.sealer.org_key, SIGNER, rows)

    def apply_second(self, changes: tree.Changes) -> None:
        self.apply((key.encode(), value) for key, value in changes)

    def puncture_by_second(self, *prefixes: bytes) -> tree.Changes:
        changes = tree.puncture(self.read_by_second(), list(prefixes))
        self.apply_second(changes)
        return changes

    def mint_by_second(self, first_day: int, last_day: int) -> None:
        days = {day: os.urandom(32) for day in range(first_day, last_day + 1)}
        self.apply_second(tree.mint(self.read_by_second(), days))

    def keys(self, subjects: Sequence[Subject], days: Sequence[int]) -> list[Outcome]:
        """The DEKs' commitments by the product, or what it says instead."""
        stored = self.tree()
        deriver = Deriver(TREE, stored.head.gen, stored.head.index_key, stored, NodeCache())
        return [
            _outcome(lambda: deriver.data_key(Locator(TREE, day, 0), subject).commit)  # noqa: B023
            for subject, day in product(subjects, days)
        ]

    def keys_by_second(self, subjects: Sequence[Subject], days: Sequence[int]) -> list[Outcome]:
        """The same by the second implementation."""
        found = self.read_by_second()
        return [
            _outcome(lambda: _commit(found, as_second(subject, day)))  # noqa: B023
            for subject, day in product(subjects, days)
        ]


def _commit(found: tree.Tree, names: derive.Subject) -> bytes:
    path = derive.index(found.head.index_key, names)
    return derive.frame_keys(derive.dek(tree.derive(found, path), TREE, path, names))[1]


def _outcome(ask: Callable[[], bytes]) -> Outcome:
    try:
        return ask()
    except (Erased, tree.Erased):
        return "erased"
    except (KeyUnavailable, tree.NotMinted):
        return "unavailable"


def nodes_of(store: Store) -> dict[str, bytes]:
    """Every node that the product finds, by its path in bits."""
    return {derive.bits(node.path)[: node.bits]: node.node for node in store.tree().cover()}
