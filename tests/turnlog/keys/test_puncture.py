"""What a puncture refuses and what a cover is; what it must withstand is in `tests/attack`."""

import pytest

from tests.turnlog.keys.helpers import RUN, Store
from turnlog.errors import KeyUnavailable, UsageError
from turnlog.keys.puncture import puncture
from turnlog.keys.rows import LINK
from turnlog.keys.walk import LEAF_BITS, masked, walk


def test_a_day_that_is_not_minted_cannot_be_punctured() -> None:
    store = Store(17, 17)
    with pytest.raises(KeyUnavailable, match="not minted"):
        store.puncture(bytes((18,)))


@pytest.mark.parametrize("prefix", [b"", bytes(34)])
def test_a_prefix_of_no_length_or_too_long_is_refused(prefix: bytes) -> None:
    with pytest.raises(UsageError):
        Store(17, 17).puncture(prefix)


def test_a_page_that_does_not_open_stops_the_puncture() -> None:
    store = Store(17, 17)
    store.puncture(store.index()[:32])
    tree = store.tree()
    link = tree.page(b"", tree.head.page_key)[LINK, 17]
    assert link
    for row_key in list(store.rows):
        if not row_key.endswith(b"/head"):
            store.rows[row_key] = store.rows[row_key][:-1] + b"\0"
    with pytest.raises(KeyUnavailable):
        puncture(store.tree(), [store.index(RUN._replace(id="run_2"))[:32]], store.sealer)


def test_the_cover_of_a_day_is_what_is_alive_of_it() -> None:
    store = Store(17, 18)
    assert [(n.bits, n.path) for n in store.tree().cover(b"\x12")] == [(8, b"\x12")]
    store.puncture(store.index()[:32])
    cover = list(store.tree().cover(b"\x11"))
    assert len(cover) == 248
    inside = store.index(RUN._replace(id="run_2"))
    [(bits, node)] = [(n.bits, n.node) for n in cover if masked(inside, n.bits) == n.path]
    assert walk(node, inside, bits, LEAF_BITS) == store.leaf(inside)
    assert list(store.tree().cover(store.index()[:32])) == []
