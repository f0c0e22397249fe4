from collections.abc import Mapping
from hashlib import sha256

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.turnlog.keys.helpers import ORG, RUN, SIGNER, TREE, Store
from turnlog.errors import KeyUnavailable, NoTree, Unavailable
from turnlog.keys.heads import Floor, Heads
from turnlog.keys.mint import Sealer, mint
from turnlog.keys.rows import head_row_key
from turnlog.keys.tree import StoredTree

ROW = head_row_key(ORG, TREE)


def chain(count: int) -> list[bytes]:
    """Return the values of the first heads of a tree."""
    store = Store(1, 1)
    values = [store.head_value]
    for day in range(2, count + 1):
        store.mint(day, day)
        values.append(store.head_value)
    return values


def heads(floors: dict[bytes, Floor] | None = None) -> Heads:
    return Heads(SIGNER.public_key(), floors)


def test_a_chain_is_followed_head_by_head() -> None:
    found = heads()
    for value in chain(4):
        assert found.take(ROW, value, live=True)
        assert found.value(ROW) == value


def test_at_the_start_heads_may_be_missing_between() -> None:
    values = chain(5)
    found = heads()
    assert found.take(ROW, values[1], live=False)
    assert found.take(ROW, values[4], live=False)
    assert found.value(ROW) == values[4]


def test_from_the_end_on_a_gap_stops_the_tree() -> None:
    values = chain(4)
    found = heads()
    found.take(ROW, values[0], live=False)
    with pytest.raises(KeyUnavailable, match="does not follow"):
        found.take(ROW, values[2], live=True)
    with pytest.raises(KeyUnavailable, match="stopped"):
        found.value(ROW)


def test_6_a_head_of_the_next_generation_on_another_history_is_refused_by_prev() -> None:
    store = Store(1, 1)
    found = heads()
    found.take(ROW, store.head_value, live=False)
    stale = StoredTree(ORG, TREE, store.tree().head, dict(store.rows))
    store.puncture(store.index(RUN, 1)[:32])
    found.take(ROW, store.head_value, live=True)
    # Two keepers: the stopped one goes on from where it was, twice.
    forced = dict(mint(stale, 2, 2, store.sealer))
    with pytest.raises(KeyUnavailable, match="generation 2 after 2"):
        found.take(ROW, forced[ROW], live=True)


def test_6_the_same_with_the_right_generation_is_refused_by_prev() -> None:
    one, two = Store(1, 1), Store(1, 1)
    two.sealer = one.sealer
    two.rows = dict(one.rows)
    two.index_key = one.index_key
    found = heads()
    found.take(ROW, one.head_value, live=False)
    one.mint(2, 2)
    found.take(ROW, one.head_value, live=True)
    two.mint(3, 3)
    two.mint(4, 4)
    with pytest.raises(KeyUnavailable, match="does not follow"):
        found.take(ROW, two.head_value, live=True)


def test_the_same_head_again_is_ignored() -> None:
    first, second = chain(2)
    found = heads()
    found.take(ROW, first, live=False)
    assert not found.take(ROW, first, live=False)
    found.take(ROW, second, live=True)
    assert not found.take(ROW, second, live=True)
    assert found.value(ROW) == second


def test_an_older_head_stops_the_tree_and_what_follows_is_not_believed() -> None:
    values = chain(3)
    found = heads()
    for value in values:
        found.take(ROW, value, live=False)
    with pytest.raises(KeyUnavailable, match="generation 1 after 3"):
        found.take(ROW, values[0], live=True)
    assert not found.take(ROW, values[2], live=True)
    assert ROW in found.stopped()
    with pytest.raises(KeyUnavailable):
        found.value(ROW)


def test_a_head_that_the_keeper_did_not_sign_stops_the_tree() -> None:
    store = Store(1, 1)
    other = Sealer(1, store.sealer.org_key, Ed25519PrivateKey.generate())
    [_, (_, forged), _] = mint(store.tree(), 2, 2, other)
    found = heads()
    found.take(ROW, store.head_value, live=False)
    with pytest.raises(KeyUnavailable, match="not signed"):
        found.take(ROW, forged, live=True)


def test_a_head_moved_to_another_tree_is_not_believed() -> None:
    found, other = heads(), head_row_key("other", TREE)
    found.take(other, chain(1)[0], live=False)
    assert found.settle() == {other: found.refusal(other)}
    with pytest.raises(KeyUnavailable, match="not signed"):
        found.value(other)


def test_a_removed_head_is_not_a_tree_that_never_was() -> None:
    found = heads()
    found.take(ROW, chain(1)[0], live=False)
    with pytest.raises(KeyUnavailable, match="removed"):
        found.take(ROW, None, live=True)
    with pytest.raises(KeyUnavailable):
        found.value(ROW)


def test_what_was_never_seen_is_no_tree() -> None:
    with pytest.raises(NoTree):
        heads().value(ROW)


def test_a_floor_refuses_what_is_older_and_accepts_what_is_newer() -> None:
    values = chain(3)
    floor = {ROW: Floor(2, sha256(values[1]).digest())}
    for accepted in (values[1], values[2]):
        found = heads(floor)
        assert found.take(ROW, accepted, live=False)
        assert found.value(ROW) == accepted
    found = heads(floor)
    found.take(ROW, values[0], live=False)
    assert ROW in found.settle()
    with pytest.raises(KeyUnavailable, match="generation 1 in the log, 2 seen before"):
        found.value(ROW)
    with pytest.raises(KeyUnavailable, match="seen once"):
        heads(floor).value(ROW)


def test_older_heads_on_the_way_to_the_floor_are_no_reason_to_stop() -> None:
    values = chain(3)
    found = heads({ROW: Floor(3, sha256(values[2]).digest())})
    for value in values:
        found.take(ROW, value, live=False)
    assert found.settle() == {}
    assert found.value(ROW) == values[2]


def test_a_reader_behind_the_floor_serves_again_when_the_chain_has_reached_it() -> None:
    values = chain(3)
    found = heads({ROW: Floor(3, sha256(values[2]).digest())})
    found.take(ROW, values[0], live=False)
    found.settle()
    found.take(ROW, values[1], live=True)
    with pytest.raises(KeyUnavailable, match="3 seen before"):
        found.value(ROW)
    found.take(ROW, values[2], live=True)
    assert found.value(ROW) == values[2]


def test_a_chain_that_reaches_the_floor_by_another_head_stops_the_tree() -> None:
    store = Store(1, 1)
    first = store.head_value
    rows = dict(store.rows)
    store.mint(2, 2)
    floor = {ROW: Floor(2, sha256(store.head_value).digest())}
    store.rows = rows
    store.puncture(store.index(RUN, 1)[:32])
    found = heads(floor)
    found.take(ROW, first, live=False)
    with pytest.raises(KeyUnavailable, match="another head of generation 2"):
        found.take(ROW, store.head_value, live=True)
    assert ROW in found.stopped()


def test_another_head_of_the_floors_generation_is_refused() -> None:
    floor = {ROW: Floor(1, sha256(b"another").digest())}
    found = heads(floor)
    found.take(ROW, chain(1)[0], live=False)
    with pytest.raises(KeyUnavailable, match="another head of generation 1"):
        found.value(ROW)


def test_a_head_is_served_only_once_its_floor_is_stored() -> None:
    class Broken:
        def raise_to(self, floors: Mapping[bytes, Floor]) -> Mapping[bytes, Floor]:
            raise Unavailable("disk full")

    values = chain(2)
    for live in (False, True):
        found = Heads(SIGNER.public_key(), store=Broken())
        found.take(ROW, values[0], live)
        with pytest.raises(Unavailable, match="disk full"):
            found.settle()
        with pytest.raises(Unavailable, match="disk full"):
            found.value(ROW)


def test_what_another_process_has_seen_counts_at_once() -> None:
    values = chain(3)

    class Shared:
        def raise_to(self, floors: Mapping[bytes, Floor]) -> Mapping[bytes, Floor]:
            return {ROW: Floor(3, sha256(values[2]).digest())}

    found = Heads(SIGNER.public_key(), store=Shared())
    found.take(ROW, values[1], live=False)
    with pytest.raises(KeyUnavailable, match="3 seen before"):
        found.value(ROW)
    found.take(ROW, values[2], live=True)
    assert found.value(ROW) == values[2]


def test_a_head_that_goes_back_during_the_start_stops_the_tree() -> None:
    values = chain(2)
    found = heads()
    found.take(ROW, values[1], live=False)
    with pytest.raises(KeyUnavailable, match="generation 1 after 2"):
        found.take(ROW, values[0], live=False)
    with pytest.raises(KeyUnavailable):
        found.value(ROW)


def test_floors_are_the_newest_heads_seen() -> None:
    values = chain(2)
    found = heads()
    for value in values:
        found.take(ROW, value, live=False)
    assert found.floors() == {ROW: Floor(2, sha256(values[1]).digest())}
