"""Attack 2 at size: many random subjects, punctures at all levels, and a search of every row.

`TURNLOG_SOAK=1` takes a million subjects and 10,000 punctures (7 to 8 minutes of one core, 0.9 GB;
`-s` shows how far it is); without it the same test runs with as many as CI has seconds for.
"""

import hmac
import os
import random
import time
from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice

from tests.attack.reading import derived, secrets_of
from tests.turnlog.keys.helpers import ORG, TREE, Store
from turnlog.errors import Erased
from turnlog.keys.cache import Deriver, NodeCache
from turnlog.keys.grant import Cover
from turnlog.keys.index import Subject
from turnlog.keys.tree import CoverNode
from turnlog.keys.walk import LEAF_BITS

IS_SOAK = bool(os.environ.get("TURNLOG_SOAK"))
SUBJECTS, PUNCTURES, SAMPLE = (1_000_000, 10_000, 5_000) if IS_SOAK else (4_000, 200, 100)
RUNS_A_CONVERSATION, CONVERSATIONS_A_USER = (20, 10) if IS_SOAK else (5, 4)
SEED = random.SystemRandom().randrange(2**32)
# How often each level is punctured, of a hundred: few of the wide ones, so that most keys live.
LEVELS = {1: 0.03, 11: 2, 12: 3, 22: 15, 32: 40, 33: 39.97}

# One block of HKDF-Expand: label 00 bit, then the counter 1.
STEPS = (b"turnlog/tree/v1\x000\x01", b"turnlog/tree/v1\x001\x01")

Leaves = dict[bytes, bytes]


def indexes(store: Store, count: int) -> list[bytes]:
    """Return the indexes of random subjects of a month, sorted: both keys of each run."""
    found: list[bytes] = []
    for number in range(count // 2):
        conversation = number // RUNS_A_CONVERSATION
        user = conversation // CONVERSATIONS_A_USER
        day, gen = user % 31 + 1, conversation % 3
        name = f"conv_{conversation}" if conversation % 9 else ""
        run = Subject(ORG, f"user_{user}" if user % 11 else "", name, f"run_{number}", "o")
        path = store.index(run, day, gen)
        found += [path, path[:32] + b"q"]
    return sorted(found)


def targets(paths: list[bytes], count: int, chance: random.Random) -> Iterator[bytes]:
    """Give prefixes of random subjects, some of them twice or inside one another."""
    levels = chance.choices(list(LEVELS), list(LEVELS.values()), k=count)
    # At least one of each, whatever the size.
    for level in [*LEVELS, *levels][:count]:
        yield chance.choice(paths)[:level]


def leaves(store: Store, paths: list[bytes]) -> Leaves:
    """Return every leaf, derived as a reader derives it."""
    stored = store.tree()
    deriver = Deriver(TREE, stored.head.gen, store.index_key, stored, NodeCache())
    return {path: deriver.leaf(path) for path in paths}


def split(paths: list[bytes], erased: set[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Return the indexes that live and those that are erased."""
    gone = [any(path[:level] in erased for level in LEVELS) for path in paths]
    pairs = list(zip(paths, gone, strict=True))
    return [path for path, dead in pairs if not dead], [path for path, dead in pairs if dead]


def span(bits: int, path: bytes) -> tuple[int, int]:
    """Return the first and the last leaf under a place, as numbers."""
    first = int.from_bytes(path.ljust(33, b"\0"), "big")
    return first, first + (1 << (LEAF_BITS - bits)) - 1


def check_places(nodes: list[CoverNode], live: list[bytes], erased: list[bytes]) -> None:
    """Check that one node lies above each live leaf, none above an erased one, and none in another.

    Every stored node is looked at: they are sorted, and disjoint, so the last that begins at or
    before a leaf is the only one that can hold it.
    """
    spans = sorted(span(node.bits, node.path) for node in nodes)
    starts = [first for first, _ in spans]
    assert all(a[1] < b[0] for a, b in zip(spans, spans[1:], strict=False))
    for paths, wanted in ((live, True), (erased, False)):
        for path in paths:
            leaf = int.from_bytes(path, "big")
            at = bisect_right(starts, leaf) - 1
            assert (at >= 0 and leaf <= spans[at][1]) is wanted


def check_values(secrets: set[bytes], days: dict[int, bytes], erased: list[bytes]) -> None:
    """Check that nothing stored is a node on the path to an erased leaf, whatever its place.

    `erased` is sorted: the nodes that a path shares with the one before are not computed again.
    """
    before, nodes = b"", [b""]
    for path in erased:
        shared = 8 * len(os.path.commonprefix([before, path]))
        if not shared:
            nodes, shared = [days[path[0]]], 8
            assert nodes[0] not in secrets
        nodes = nodes[: shared - 7]
        number = int.from_bytes(path, "big")
        for depth in range(shared, LEAF_BITS):
            step = STEPS[number >> (LEAF_BITS - 1 - depth) & 1]
            nodes.append(hmac.digest(nodes[-1], step, "sha256"))
            assert nodes[-1] not in secrets
        before = path


def check_rows(store: Store) -> None:
    """Check that the head leads to every row: there is no other node anywhere."""
    assert len(store.rows) == store.tree().size().pages + 1


def test_2_many_punctures_change_no_live_key_and_leave_no_erased_one() -> None:
    began_s = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began_s:6.0f} s  {what}", flush=True)

    say(f"{SUBJECTS} subjects, {PUNCTURES} punctures, seed {SEED}")
    chance, store = random.Random(SEED), Store(1, 31)
    paths = indexes(store, SUBJECTS)
    days = {node.path[0]: node.node for node in store.tree().cover()}
    before = leaves(store, paths)
    assert len(set(before.values())) == len(paths)
    say("all leaves derived")

    erased = set(targets(paths, PUNCTURES, chance))
    for prefix in sorted(erased, key=lambda prefix: chance.random()):
        store.puncture(prefix)
    live, gone = split(paths, erased)
    assert live and gone
    say(f"punctured: {len(live)} keys live, {len(gone)} are erased")

    check_rows(store)
    nodes = list(store.tree().cover())
    check_places(nodes, live, gone)
    say(f"{len(nodes)} nodes in {len(store.rows)} rows: none above an erased key")
    check_values(secrets_of(store.tree()), days, gone)
    say("no value is a node on the way to an erased key")
    check_keys(store, nodes, before, live, gone)
    say("every live key is as it was")


def check_keys(
    store: Store, nodes: list[CoverNode], before: Leaves, live: list[bytes], gone: list[bytes]
) -> None:
    """Check every live leaf from the cover, as a gateway derives it, and some from the pages."""
    stored = store.tree()
    deriver = Deriver(TREE, stored.head.gen, store.index_key, Cover(nodes), NodeCache())
    for path in live:
        assert deriver.leaf(path) == before[path]
    for path in islice(live, None, None, max(1, len(live) // SAMPLE)):
        assert derived(stored, path) == before[path]
    for path in islice(gone, None, None, max(1, len(gone) // SAMPLE)):
        assert derived(stored, path) is Erased
