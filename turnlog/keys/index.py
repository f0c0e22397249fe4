"""Where a subject's key sits in its tree: the key locator and the index of 33 bytes.

`D 1 | U 10 | G 1 | C 10 | R 10 | K 1`: day, user, generation, conversation, run (or turn, or
artefact) and which key. Whatever shares a prefix is erased by one puncture of that prefix.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from turnlog.errors import UsageError
from turnlog.keys.expand import expand

INDEX_BYTES = 33
PART_BYTES = 10
# Prefix lengths that mean something to an erasure, in bytes.
DAY_BYTES, USER_BYTES, GEN_BYTES, CONVERSATION_BYTES, RUN_BYTES = 1, 11, 12, 22, 32

MAX_GEN = 255
_R_KIND = {"o": b"r", "q": b"r", "t": b"t", "d": b"d"}


class Locator(NamedTuple):
    """Key locator of a subject: fixed when it begins, copied by all its events.

    Attributes:
        tree: tree id, 16 bytes.
        day: day of the month, 1 to 31; 0 where there is no key.
        gen: generation of the user's history, 0 to 255.
    """

    tree: bytes
    day: int
    gen: int


class Subject(NamedTuple):
    """What has a key of its own.

    Attributes:
        org: the org's id.
        user: id of the acting user, "" for none.
        conversation: conversation id, "" for none.
        id: id of the run (kinds o and q), turn (t) or artefact (d).
        kind: `o` what a run produced, `q` the request as sent, `t` a turn's own text, `d` an
            artefact (a conversation's title is the artefact with the conversation's id).
    """

    org: str
    user: str
    conversation: str
    id: str
    kind: str


Part = Callable[[bytes, bytes, str], bytes]


def part_of(index_key: bytes, kind: bytes, value: str) -> bytes:
    """Return the 10 index bytes of one id under the tree's index key."""
    return expand(index_key, b"turnlog/index/v1", kind + b"\0" + value.encode(), PART_BYTES)


# A user's and a conversation's parts recur in every one of their subjects: 4 µs each when missed.
cached_part = lru_cache(maxsize=16384)(part_of)
# A run's part is asked for three times while it begins, and hardly ever again.
_recent_part = lru_cache(maxsize=1024)(part_of)


def index_of(
    index_key: bytes, day: int, gen: int, subject: Subject, part: Part = cached_part
) -> bytes:
    """Return the index of a subject, 33 bytes.

    Args:
        index_key: the tree's, 32 bytes.
        day: day of the month of the locator.
        gen: generation of the locator.
        subject: whose key it is.
        part: how an id becomes index bytes; tests pass one with short parts.

    Raises:
        UsageError: day, generation or kind is out of range.
    """
    if not (1 <= day <= 31 and 0 <= gen <= MAX_GEN and subject.kind in _R_KIND):
        raise UsageError(f"no index for day {day}, generation {gen}, kind {subject.kind!r}")
    return (
        user_prefix(index_key, day, subject.user, part)
        + bytes((gen,))
        + _conversation_part(index_key, subject, part)
        + (_recent_part if part is cached_part else part)(
            index_key, _R_KIND[subject.kind], subject.id
        )
        + subject.kind.encode()
    )


def user_prefix(index_key: bytes, day: int, user: str, part: Part = cached_part) -> bytes:
    """Return the 11 bytes that all subjects of a user share on one day ("" is nobody)."""
    return bytes((day,)) + part(index_key, b"u" if user else b"a", user)


def _conversation_part(index_key: bytes, subject: Subject, part: Part) -> bytes:
    if subject.conversation:
        return part(index_key, b"c", subject.conversation)
    return part(index_key, b"n", subject.id)
