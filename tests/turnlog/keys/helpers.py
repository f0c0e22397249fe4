"""A key tree in a dict, for tests of the pure core."""

import os
from collections.abc import Iterable, Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from turnlog.keys.frames import Place
from turnlog.keys.index import Subject, index_of
from turnlog.keys.mint import Sealer, mint, plant
from turnlog.keys.puncture import puncture
from turnlog.keys.rows import Row, head_row_key, open_head
from turnlog.keys.tree import StoredTree
from turnlog.keys.walk import LEAF_BITS

ORG = "org_acme"
TREE = bytes.fromhex("0192f0c1a2b3700080000000000000bb")
SIGNER = Ed25519PrivateKey.generate()
RUN = Subject(ORG, "user_7", "conv_3", "run_01J", "o")


class Store:
    """Rows of one tree and what changes them."""

    def __init__(self, first_day: int = 17, last_day: int = 19) -> None:
        self.sealer = Sealer(1, os.urandom(32), SIGNER)
        self.rows: dict[bytes, bytes] = {}
        self.apply(plant(ORG, TREE, first_day, last_day, self.sealer))
        self.index_key = self.tree().head.index_key

    def apply(self, rows: Iterable[Row]) -> None:
        for key, value in rows:
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value

    @property
    def head_value(self) -> bytes:
        return self.rows[head_row_key(ORG, TREE)]

    def tree(self) -> StoredTree:
        head = open_head(ORG, TREE, self.head_value, self.sealer.org_key, SIGNER.public_key())
        return StoredTree(ORG, TREE, head, self.rows)

    def index(self, subject: Subject = RUN, day: int = 17, gen: int = 0) -> bytes:
        return index_of(self.index_key, day, gen, subject)

    def leaf(self, index: bytes) -> bytes:
        return self.tree().derive(index, LEAF_BITS)

    def punctured(self, *prefixes: bytes) -> list[Row]:
        return puncture(self.tree(), prefixes, self.sealer).rows

    def puncture(self, *prefixes: bytes) -> list[Row]:
        rows = self.punctured(*prefixes)
        self.apply(rows)
        return rows

    def mint(self, first_day: int, last_day: int) -> list[Row]:
        rows = mint(self.tree(), first_day, last_day, self.sealer)
        self.apply(rows)
        return rows


def runs(count: int, users: Sequence[str] = ("user_7", "", "user_8")) -> list[Subject]:
    """Return both keys of some runs, spread over users and conversations."""
    return [
        Subject(ORG, users[n % len(users)], f"conv_{n % 4}" if n % 3 else "", f"run_{n}", kind)
        for n in range(count)
        for kind in "oq"
    ]


PLACE: Place = {
    "org": "org_acme",
    "tree": os.urandom(16),
    "event_id": os.urandom(16),
    "subject_id": "run_01J",
    "writer_epoch": 1,
    "seq": 7,
    "kind": "run.completed",
}
CONTENT = {"output": "café", "chunks": [[0, 0, "text", "c"]]}
