"""Targets of a puncture: what they must name, and the prefixes that they stand for."""

from typing import Any

import pytest

from tests.turnlog.keys.helpers import RUN, Store
from turnlog.errors import UsageError
from turnlog.keys.puncture import puncture
from turnlog.keys.targets import LEVELS, Target

TREE = bytes(range(16))
WHOLE = Target("key", TREE, 17, "user_7", 3, "conv_3", "run_01J", "q")


@pytest.mark.parametrize("level", LEVELS)
def test_a_target_is_read_as_it_was_written(level: str) -> None:
    sent = WHOLE._replace(level=level).to_json()
    assert Target.from_json(sent).to_json() == sent


@pytest.mark.parametrize("level", LEVELS)
def test_its_prefix_is_that_of_the_subjects_index(level: str) -> None:
    store = Store(17, 17)
    target = Target(level, TREE, 17, RUN.user, 0, RUN.conversation, RUN.id, RUN.kind)
    assert target.prefix(RUN.org, store.index_key) == store.index()[: LEVELS[level]]


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        {},
        {"level": []},
        {"level": "leaf", "tree": "00" * 16, "day": 1},
        {"level": "day", "tree": "00" * 15, "day": 1},
        {"level": "day", "tree": "zz" * 16, "day": 1},
        {"level": "day", "tree": 5, "day": 1},
        {"level": "day", "tree": "00" * 16, "day": 0},
        {"level": "day", "tree": "00" * 16, "day": 32},
        {"level": "day", "tree": "00" * 16, "day": True},
        {"level": "day", "tree": "00" * 16, "day": "1"},
        {"level": "day", "tree": "00" * 16, "day": 1, "prefix": "11"},
        {"level": "user", "tree": "00" * 16, "day": 1},
        {"level": "user", "tree": "00" * 16, "day": 1, "user": "a b"},
        {"level": "user", "tree": "00" * 16, "day": 1, "user": None},
        {"level": "history", "tree": "00" * 16, "day": 1, "user": "u", "gen": 256},
        WHOLE._replace(conversation="", level="conversation").to_json(),
        WHOLE._replace(subject="").to_json(),
        WHOLE._replace(kind="x").to_json(),
    ],
)
def test_what_names_no_place_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError):
        Target.from_json(wrong)


def test_the_shares_of_a_change_add_up_to_it() -> None:
    store = Store(17, 18)
    one, two = store.index(), store.index(RUN._replace(id="run_2"))
    other = store.index(RUN._replace(user="user_8"), day=18)
    prefixes = [one[:32], two[:32], other[:11], other]
    rows, nodes, shares = puncture(store.tree(), prefixes, store.sealer)
    assert sum(share.rows for share in shares.values()) == sum(v is not None for _, v in rows)
    assert sum(share.nodes_destroyed for share in shares.values()) == nodes == 3
    # Contained in another prefix of the same change.
    assert other not in shares
    first, second = sorted((one[:32], two[:32]))
    assert (shares[first].rows, shares[second].rows) == (33, 9)
    store.apply(rows)
    again = puncture(store.tree(), [*prefixes, store.index(RUN._replace(id="run_3"))], store.sealer)
    assert len(again.shares) == 1
