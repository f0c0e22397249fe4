"""The test vectors of the key tree, as they are computed here: for a second implementation."""

import os
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from turnlog.keys.frames import DataKey, frame_keys, frame_under, place_of
from turnlog.keys.index import CONVERSATION_BYTES, RUN_BYTES, USER_BYTES, Subject, index_of
from turnlog.keys.mint import Sealer, plant
from turnlog.keys.puncture import puncture
from turnlog.keys.rows import Row, head_row_key, open_head
from turnlog.keys.tree import StoredTree
from turnlog.keys.walk import LEAF_BITS, dek_of, node_commit, walk

DAY = 17
DAY_NODE = bytes(range(0x20))
INDEX_KEY = bytes(range(0x20, 0x40))
TREE = bytes.fromhex("0192f0c1a2b3700080000000000000bb")
EVENT_ID = bytes.fromhex("0192f0c1a2b3700080000000000000cc")
NONCE = bytes(range(12))
SUBJECT = Subject("org_acme", "user_7", "conv_3", "run_01J", "o")


def vectors() -> dict[str, Any]:
    """Return every value by its name; bytes in hex."""
    return {**_nodes(), **dict(_keys()), "frame": _frame().hex(), **_punctured()}


def _nodes() -> dict[str, str]:
    index = index_of(INDEX_KEY, DAY, 0, SUBJECT)
    request = index_of(INDEX_KEY, DAY, 0, SUBJECT._replace(kind="q"))
    levels = {"user": USER_BYTES, "conversation": CONVERSATION_BYTES, "run": RUN_BYTES}
    nodes = {name: walk(DAY_NODE, index, 8, level * 8) for name, level in levels.items()}
    commits = {name: (nodes[name], levels[name] * 8) for name in ("user", "run")}
    return {
        "index_o": index.hex(),
        "index_q": request.hex(),
        **{f"{name}_node": node.hex() for name, node in nodes.items()},
        "leaf_o": walk(DAY_NODE, index, 8, LEAF_BITS).hex(),
        **{
            f"{name}_node_commit": node_commit(node, TREE, bits, index).hex()
            for name, (node, bits) in commits.items()
        },
    }


def _dek(kind: str) -> bytes:
    subject = SUBJECT._replace(kind=kind)
    index = index_of(INDEX_KEY, DAY, 0, subject)
    return dek_of(walk(DAY_NODE, index, 8, LEAF_BITS), TREE, index, subject)


def _keys() -> Iterator[tuple[str, str]]:
    for kind in "oq":
        dek = _dek(kind)
        yield f"dek_{kind}", dek.hex()
        yield f"k_enc_{kind}", frame_keys(dek)[0].hex()
        yield f"dek_commit_{kind}", DataKey(dek).commit.hex()


def _frame() -> bytes:
    encryption_key, commit = frame_keys(_dek("o"))
    place = place_of(
        org=SUBJECT.org,
        tree=TREE,
        event_id=EVENT_ID,
        subject_id=SUBJECT.id,
        writer_epoch=1,
        seq=7,
        kind="run.completed",
    )
    plaintext = '{"output":"café"}'.encode()
    return frame_under(commit[:16], AESGCM(encryption_key), NONCE, plaintext, place)


def _punctured() -> dict[str, Any]:
    """Puncture the run in a tree that has day 17 alone."""
    given = iter((bytes(32), DAY_NODE, INDEX_KEY))
    sealer = Sealer(
        1,
        bytes(32),
        Ed25519PrivateKey.from_private_bytes(bytes(32)),
        lambda length: next(given, None) or os.urandom(length),
    )
    rows = dict(_present(plant(SUBJECT.org, TREE, DAY, DAY, sealer)))
    index = index_of(INDEX_KEY, DAY, 0, SUBJECT)
    changed = puncture(_tree(rows, sealer), [index[:RUN_BYTES]], sealer).rows
    written = dict(_present(changed))
    after = _tree(written, sealer)
    nodes = list(after.cover())
    other = index_of(INDEX_KEY, DAY, 0, SUBJECT._replace(id="run_01K"))
    return {
        "punctured_rows": len(written),
        "punctured_removed": len(changed) - len(written),
        "punctured_nodes": after.size().nodes,
        "punctured_links": after.size().links,
        "punctured_nodes_sha256": sha256(b"".join(sorted(n.node for n in nodes))).hexdigest(),
        "punctured_leaf_o_of_run_01K": after.derive(other, LEAF_BITS).hex(),
    }


def _present(rows: Iterable[Row]) -> Iterator[tuple[bytes, bytes]]:
    for key, value in rows:
        if value is not None:
            yield key, value


def _tree(rows: Mapping[bytes, bytes], sealer: Sealer) -> StoredTree:
    value = rows[head_row_key(SUBJECT.org, TREE)]
    head = open_head(SUBJECT.org, TREE, value, sealer.org_key, sealer.signer.public_key())
    return StoredTree(SUBJECT.org, TREE, head, rows)
