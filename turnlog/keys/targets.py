"""What a puncture is aimed at: a place given by locator and ids, and the prefix it stands for.

Who asks names ids and never index bytes: those come from the tree's secret index key, which only
the keeper and readers have.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from turnlog.errors import UsageError
from turnlog.ids import is_id
from turnlog.keys.index import (
    CONVERSATION_BYTES,
    DAY_BYTES,
    GEN_BYTES,
    INDEX_BYTES,
    MAX_GEN,
    RUN_BYTES,
    USER_BYTES,
    Part,
    Subject,
    cached_part,
    index_of,
)

LEVELS: Mapping[str, int] = {
    "day": DAY_BYTES,
    "user": USER_BYTES,
    "history": GEN_BYTES,
    "conversation": CONVERSATION_BYTES,
    "run": RUN_BYTES,
    "key": INDEX_BYTES,
}
"""Levels of a target and how many bytes their prefixes have."""

# What a level needs besides tree and day, in the order of the index.
_NEEDS: Mapping[str, tuple[str, ...]] = {
    "day": (),
    "user": ("user",),
    "history": ("user", "gen"),
    "conversation": ("user", "gen", "conversation"),
    "run": ("user", "gen", "conversation", "subject"),
    "key": ("user", "gen", "conversation", "subject", "kind"),
}
_KINDS = ("o", "q", "t", "d")
# Nobody acts, or nothing is talked in; a subject is always somebody.
_MAY_BE_EMPTY = ("user", "conversation")


class Target(NamedTuple):
    """One place that a puncture erases, whole.

    Attributes:
        level: one of `LEVELS`.
        tree: tree id, 16 bytes.
        day: day of the month, 1 to 31.
        user: acting user's id, "" for the place that all subjects without a user share.
        gen: generation, 0 to 255.
        conversation: conversation id, "" for none.
        subject: id of the run, turn or artefact.
        kind: as in `Subject`; at level `run` it is a run's both keys.
    """

    level: str
    tree: bytes
    day: int
    user: str = ""
    gen: int = 0
    conversation: str = ""
    subject: str = ""
    kind: str = "o"

    def prefix(self, org: str, index_key: bytes, part: Part = cached_part) -> bytes:
        """Return the index prefix that it stands for, 1 to 33 bytes.

        Args:
            org: the org's id.
            index_key: the tree's, 32 bytes.
            part: how an id becomes index bytes.
        """
        subject = Subject(org, self.user, self.conversation, self.subject, self.kind)
        return index_of(index_key, self.day, self.gen, subject, part)[: LEVELS[self.level]]

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads: tree and day, and what the level needs."""
        named = {name: getattr(self, name) for name in _NEEDS[self.level]}
        return {"level": self.level, "tree": self.tree.hex(), "day": self.day} | named

    @classmethod
    def from_json(cls, value: object) -> "Target":
        """Read a target and check it.

        Raises:
            UsageError: it is none; the message names the field and not its value.
        """
        level = value.get("level") if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(level, str) or level not in LEVELS:
            raise UsageError(f"a target is an object with a level of {', '.join(LEVELS)}")
        needs = _NEEDS[level]
        if set(value) != {"level", "tree", "day", *needs}:
            wanted = ", ".join(("level", "tree", "day", *needs))
            raise UsageError(f"a target of level {level} has exactly {wanted}")
        for name in needs:
            _CHECKS[name](name, value[name])
        _number("day", value["day"], 1, 31)
        if level == "conversation" and not value["conversation"]:
            raise UsageError("a target of level conversation needs a conversation")
        return cls(**value | {"tree": _tree(value["tree"])})


def _tree(value: object) -> bytes:
    try:
        tree = bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        tree = b""
    if len(tree) != 16:
        raise UsageError("tree is not 32 hex digits")
    return tree


def _number(name: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise UsageError(f"{name} is not a number from {low} to {high}")


def _gen(name: str, value: object) -> None:
    _number(name, value, 0, MAX_GEN)


def _id(name: str, value: object) -> None:
    if value == "" and name in _MAY_BE_EMPTY:
        return
    if not isinstance(value, str) or not is_id(value):
        raise UsageError(f"{name} is not an id: 1 to 64 characters of A-Z a-z 0-9 _ -")


def _kind(name: str, value: object) -> None:
    if value not in _KINDS:
        raise UsageError(f"{name} is none of {', '.join(_KINDS)}")


_CHECKS = {"user": _id, "gen": _gen, "conversation": _id, "subject": _id, "kind": _kind}
