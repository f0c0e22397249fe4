"""Attack 3: a puncture that stops after any of its rows, without a transaction."""

from collections.abc import Callable, Iterator

import pytest

from tests.attack.reading import SUBJECTS, check, known
from tests.turnlog.keys.helpers import ORG, TREE, Store
from turnlog.keys.rows import LINK, Row, head_row_key, page_row_key
from turnlog.keys.tree import StoredTree

Order = Callable[[list[Row]], list[Row]]


def as_given(rows: list[Row]) -> list[Row]:
    return rows


def head_first(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: not is_head(row))


def removals_first(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row[1] is not None)


def is_head(row: Row) -> bool:
    return row[0].endswith(b"/head")


def batches(store: Store) -> list[set[bytes]]:
    one, two = store.index(SUBJECTS[0]), store.index(SUBJECTS[4], 18)
    return [{one[:32]}, {one[:22], two}, {one[:12]}, {one[:11], two[:1]}]


def crash_everywhere(order: Order) -> None:
    """Stop after each row of each puncture, check every key, then retry from what is stored."""
    store = Store(17, 18)
    subjects = [SUBJECTS[n] for n in (0, 1, 2, 4)]
    before = known(store, subjects)
    erased: set[bytes] = set()
    for batch in batches(store):
        rows = order(store.punctured(*batch))
        intact = dict(store.rows)
        for kept in range(len(rows) + 1):
            store.rows = dict(intact)
            store.apply(rows[:kept])
            done = any(map(is_head, rows[:kept]))
            check(store, before, erased | (batch if done else set()))
        for kept in (0, 1, len(rows) // 2, len(rows) - 1, len(rows)):
            store.rows = dict(intact)
            store.apply(rows[:kept])
            store.puncture(*batch)
            check(store, before, erased | batch)
        erased |= batch


def test_3_stopped_after_any_row_every_live_key_derives_and_a_retry_completes() -> None:
    crash_everywhere(as_given)


@pytest.mark.parametrize("order", [head_first, removals_first])
def test_3_the_same_property_refuses_any_other_order(order: Order) -> None:
    with pytest.raises(AssertionError):
        crash_everywhere(order)


def test_3_a_page_is_written_after_every_page_that_it_leads_to() -> None:
    store = Store(17, 18)
    store.puncture(store.index(SUBJECTS[0])[:32])
    other_day = store.index(SUBJECTS[0], 18)
    rows = store.puncture(store.index(SUBJECTS[2])[:32], store.index(SUBJECTS[4]), other_day)
    order = {row_key: at for at, (row_key, _) in enumerate(rows)}
    for above, below in links(store.tree()):
        assert order.get(below, -1) < order.get(above, len(rows))
    assert len(store.tree().page(b"", store.tree().head.page_key)) == 2


def links(tree: StoredTree) -> Iterator[tuple[bytes, bytes]]:
    """Give the row keys of each page and of each that it leads to, the head's included."""
    waiting = [(b"", tree.head.page_key)]
    yield head_row_key(ORG, TREE), page_row_key(ORG, TREE, tree.head.page_key)
    while waiting:
        prefix, page_key = waiting.pop()
        for (n, v), below in tree.page(prefix, page_key).items():
            if n == LINK:
                yield page_row_key(ORG, TREE, page_key), page_row_key(ORG, TREE, below)
                waiting.append((prefix + bytes((v,)), below))
