"""What a puncture of a project's trees changes: rows out, nothing written here."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from streams.keeper.minting import OrgBook
from turnlog.errors import NotFound, UsageError
from turnlog.keys.mint import Sealer
from turnlog.keys.puncture import Share, puncture
from turnlog.keys.rows import Row
from turnlog.keys.targets import Target
from turnlog.keys.tree import StoredTree

MAX_TARGETS = 2_000
"""Of one call: its transactions must end within 30 s, and 1,000 targets took 12 s at worst."""


class Result(NamedTuple):
    """What became of one prefix.

    Attributes:
        tree: tree id, 16 bytes.
        prefix: index bytes under which no key can be derived any more.
        generation: of the tree's head afterwards.
        share: rows and nodes on account of this prefix; zeros where nothing was left to erase.
    """

    tree: bytes
    prefix: bytes
    generation: int
    share: Share

    def to_json(self) -> dict[str, Any]:
        """Return what the keeper's door answers."""
        return {
            "tree": self.tree.hex(),
            "prefix": self.prefix.hex(),
            "generation": self.generation,
            **self.share._asdict(),
        }


class Change(NamedTuple):
    """The change of one tree: one transaction, and none where there are no rows."""

    rows: list[Row]
    results: list[Result]


def plan_punctures(
    book: OrgBook, org: str, project: str, targets: Sequence[Target]
) -> list[Change]:
    """Return one change a tree that erases everything under the targets.

    A tree of another org or project is refused like one that does not exist (law 8).

    Raises:
        UsageError: there are no targets, or too many for one call.
        NotFound: a target's tree is not one of the project's.
        KeyUnavailable: a day is not minted, or a row that must change is missing.
    """
    if len(targets) > MAX_TARGETS:
        raise UsageError(f"more than {MAX_TARGETS} targets in one call")
    by_tree: dict[bytes, list[Target]] = {}
    for target in targets:
        by_tree.setdefault(target.tree, []).append(target)
    if not by_tree:
        raise UsageError("there is nothing to puncture: no targets")
    trees = book.trees(org, project)
    if any(tree not in trees for tree in by_tree):
        raise NotFound("a target's tree: not found in this org and project")
    sealer = book.sealer(org)
    return [_change(book.stored(org, tree), found, sealer) for tree, found in by_tree.items()]


def _change(stored: StoredTree, targets: Iterable[Target], sealer: Sealer) -> Change:
    index_key, gen = stored.head.index_key, stored.head.gen
    prefixes = sorted({target.prefix(stored.org, index_key) for target in targets})
    rows, _, shares = puncture(stored, prefixes, sealer)
    return Change(rows, _results(stored.tree, prefixes, gen + bool(rows), shares))


def _results(
    tree: bytes, prefixes: Iterable[bytes], gen: int, shares: Mapping[bytes, Share]
) -> list[Result]:
    return [Result(tree, prefix, gen, shares.get(prefix, Share())) for prefix in prefixes]
