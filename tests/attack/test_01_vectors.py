"""Attack 1: both vectors of keys.md section 5, from the second implementation and the product.

What the product computes is held to the same values in `tests/turnlog/keys/test_vectors.py`; here
they are also compared name by name.
"""

from hashlib import sha256
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.attack.page import ON_THE_PAGE
from tests.attack.second import derive, frames, pages, tree
from turnlog.keys.vectors import vectors

DAY_NODE = bytes(range(0x00, 0x20))
INDEX_KEY = bytes(range(0x20, 0x40))
TREE = bytes.fromhex("0192f0c1a2b3700080000000000000bb")
OUTPUT = derive.Subject(17, "user_7", 0, "conv_3", "r", "run_01J", "o")
AT = frames.Where(
    "org_acme",
    TREE,
    bytes.fromhex("0192f0c1a2b3700080000000000000cc"),
    "run_01J",
    1,
    7,
    "run.completed",
)


def by_second() -> dict[str, Any]:
    """The same values by the same names, from the second implementation."""
    path = derive.index(INDEX_KEY, OUTPUT)
    request = OUTPUT._replace(letter="q")
    found = {name: derive.walk(DAY_NODE, derive.bits(path[1:n])) for name, n in LEVELS.items()}
    commits = {
        f"{name}_commit": derive.node_commit(found[name], TREE, derive.bits(path[:n]))
        for name, n in (("user_node", 11), ("run_node", 32))
    }
    values = {
        "index_o": path,
        "index_q": derive.index(INDEX_KEY, request),
        **found,
        **commits,
        **keys(OUTPUT),
        **keys(request),
    }
    frame = frames.seal_bytes(values["dek_o"], bytes(range(12)), AT, '{"output":"café"}'.encode())
    texts: dict[str, Any] = {name: value.hex() for name, value in values.items()}
    return {**texts, "frame": frame.hex(), **punctured(path)}


LEVELS = {"user_node": 11, "conversation_node": 22, "run_node": 32, "leaf_o": 33}


def keys(subject: derive.Subject) -> dict[str, bytes]:
    path, letter = derive.index(INDEX_KEY, subject), subject.letter
    leaf = derive.walk(DAY_NODE, derive.bits(path[1:]))
    dek = derive.dek(leaf, TREE, path, subject)
    k_enc, commit = derive.frame_keys(dek)
    return {f"dek_{letter}": dek, f"k_enc_{letter}": k_enc, f"dek_commit_{letter}": commit}


def punctured(path: bytes) -> dict[str, Any]:
    at = pages.Place("org_acme", TREE)
    days = {17: DAY_NODE}
    found, _ = tree.create(at, bytes(32), Ed25519PrivateKey.generate(), INDEX_KEY, days)
    changes = tree.puncture(found, [path[:32]])
    nodes = tree.nodes(found)
    other = derive.index(INDEX_KEY, OUTPUT._replace(id="run_01K"))
    return {
        "punctured_rows": sum(value is not None for _, value in changes),
        "punctured_removed": sum(value is None for _, value in changes),
        "punctured_nodes": len(nodes),
        "punctured_links": sum(len(page.below) for page in tree.pages(found.top)),
        "punctured_nodes_sha256": sha256(b"".join(sorted(nodes.values()))).hexdigest(),
        "punctured_leaf_o_of_run_01K": tree.derive(found, other).hex(),
    }


@pytest.mark.parametrize("name", ON_THE_PAGE)
def test_1_the_second_implementation_computes_what_the_page_says(name: str) -> None:
    assert by_second()[name] == ON_THE_PAGE[name]


def test_1_the_other_run_keeps_its_leaf() -> None:
    assert by_second()["punctured_leaf_o_of_run_01K"].startswith("4e6d6c97f8080652")


def test_1_product_and_second_implementation_compute_the_same_values() -> None:
    assert vectors() == by_second()
