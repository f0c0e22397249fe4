"""Attack 1: both vectors of keys.md section 5, from the second implementation and the product.

The values were typed in from the page. What the product computes is held to the same ones in
`tests/turnlog/keys/test_vectors.py`; here they are also compared name by name.
"""

from hashlib import sha256
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

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
ON_THE_PAGE = {
    "index_o": "1138576dcf7f5e5668130a00487749a4fa22d1ed6684d0336de2ce131b5812036f",
    "index_q": "1138576dcf7f5e5668130a00487749a4fa22d1ed6684d0336de2ce131b58120371",
    "user_node": "739750c7a1430f8b387dd0248703236feca4b5b1c3b8dfd807445ae7915770a8",
    "conversation_node": "d51b6e6a97a206c4d3330c2af0cfe9855898dbea0f375df3110ec6a14f3604c1",
    "run_node": "57f0df610a64ad7515e12c0479fb75586b593d980fccc23cca2638c96ebfaeff",
    "leaf_o": "7e50c210748a34ea60dfb475ffe57a9405d7cc7a20d673fafbe16c13efc2919c",
    "dek_o": "809b3e4a13816a17502cd03e6e98b2d87c99b97c3179ecd10be030f218c6ce05",
    "k_enc_o": "20846059fa38c24caa6afb554af2639e951de981c12b611327d671b2eaf36f90",
    "dek_commit_o": "35d233331e0fc0ab1bd9864546d73cc6a50c537eb7751e0b6b276aad4515b166",
    "dek_q": "cbc958ae15fa631d6ecd36686d6c91ac9d239bb57869215993a5f6a9eb2ea15e",
    "dek_commit_q": "18c121d8b3db5d2aa3e293c8d7c34e986c52b311de643749e17e104220e167f0",
    "frame": (
        "010135d233331e0fc0ab1bd9864546d73cc6000102030405060708090a0b"
        "920decc371ad5a4f79c27dbf8e23cecfd36e6ea0ffbef7b7f9a947fe9724f89cc60d"
    ),
    "user_node_commit": "0c99ecbebe915b6de410a76d72e41ebc1eb8b3811c78d20e0aa1e9600483c186",
    "run_node_commit": "ac8d7bee825383409cb2cc1acb29d348496d4a63276b9575f27a1cf1770f9fd9",
    "punctured_rows": 33,
    "punctured_removed": 1,
    "punctured_nodes": 248,
    "punctured_links": 31,
    "punctured_nodes_sha256": "8aba0518916fcd795b830ba06b8c09842ab6c83354249b29651e8e79317b5e62",
}


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
