"""Attack 4: a run, then its user; the returned rows, applied to a fresh store, erase the user."""

from itertools import combinations

import pytest

from tests.attack.reading import LEVELS, SUBJECTS, check, copied, known
from tests.turnlog.keys.helpers import Store
from turnlog.keys.rows import Row


@pytest.mark.parametrize(("upper", "lower"), [*combinations(LEVELS, 2)])
def test_4_a_part_and_then_the_whole_applied_to_a_fresh_store_erase_the_whole(
    upper: int, lower: int
) -> None:
    store = Store(17, 19)
    before = known(store)
    fresh = copied(store)
    index = store.index(SUBJECTS[0])
    changes: list[Row] = []
    for prefix in (index[:lower], index[:upper]):
        changes += store.puncture(prefix)
    fresh.apply(changes)
    assert fresh.rows == store.rows
    check(fresh, before, {index[:upper]})
