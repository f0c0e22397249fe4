import json
import os
from datetime import date

import pytest

from tests.turnlog.keys.helpers import ORG, RUN, TREE, Store
from turnlog.errors import Erased, KeyUnavailable, UsageError
from turnlog.keys import Grant, Locator, Subject
from turnlog.keys.grant import Cover, DayGrant, OrgGrant, day_of
from turnlog.keys.walk import LEAF_BITS

NOON_US = 1_795_176_000_000_000
DAY_US = 86_400_000_000
TODAY = date(2026, 11, 20)
ID_KEY = os.urandom(32)


class Clock:
    def __init__(self) -> None:
        self.at_us = NOON_US

    def __call__(self) -> int:
        return self.at_us


def grant(store: Store, clock: Clock | None = None) -> Grant:
    tree = store.tree()
    days = tuple(
        DayGrant(TREE, day, tree.head.gen, tree.head.index_key, Cover(tree.cover(bytes((day,)))))
        for day in (19, 20, 21)
    )
    places = {date(2026, 11, day): (TREE, day) for day in (19, 20, 21)}
    org = OrgGrant(ORG, ID_KEY, {"p": places}, days)
    return Grant([org], NOON_US, NOON_US + DAY_US, clock_us=clock or Clock())


def begin(found: Grant, subject: Subject = RUN) -> Locator:
    return found.begin(
        ORG,
        "p",
        user=subject.user,
        conversation=subject.conversation,
        subject_id=subject.id,
        kind=subject.kind,
    )


def test_the_clock_of_these_tests_shows_the_day_that_they_mean() -> None:
    assert day_of(NOON_US) == TODAY


def test_a_subject_begins_on_todays_node_and_its_key_is_the_trees() -> None:
    store = Store(19, 21)
    found = grant(store)
    locator = begin(found)
    assert locator == Locator(TREE, 20, 0)
    from turnlog.keys.frames import DataKey
    from turnlog.keys.walk import dek_of

    index = store.index(RUN, 20)
    dek = dek_of(store.tree().derive(index, LEAF_BITS), TREE, index, RUN)
    assert found.data_key(locator, RUN).commit == DataKey(dek).commit


def test_a_subject_keeps_its_locator_over_midnight() -> None:
    clock = Clock()
    found = grant(Store(19, 21), clock)
    locator = begin(found)
    key = found.data_key(locator, RUN)
    clock.at_us += DAY_US - 1
    assert begin(found, RUN._replace(id="later")).day == 21
    assert found.data_key(locator, RUN).commit == key.commit


def test_a_grant_that_has_expired_gives_nothing() -> None:
    clock = Clock()
    found = grant(Store(19, 21), clock)
    locator = begin(found)
    clock.at_us += DAY_US
    with pytest.raises(KeyUnavailable, match="expired"):
        found.data_key(locator, RUN)
    with pytest.raises(KeyUnavailable, match="expired"):
        begin(found)


def test_an_erased_history_begins_the_next_generation() -> None:
    store = Store(19, 21)
    store.puncture(store.index(RUN, 20)[:12])
    found = grant(store)
    assert begin(found) == Locator(TREE, 20, 1)
    assert begin(found, RUN._replace(user="other")).gen == 0
    assert found.data_key(Locator(TREE, 20, 1), RUN)
    with pytest.raises(Erased):
        found.data_key(Locator(TREE, 20, 0), RUN)


@pytest.mark.parametrize("level", [22, 32, 33])
def test_whatever_of_the_subject_is_erased_its_generation_is_not_used(level: int) -> None:
    store = Store(19, 21)
    store.puncture(store.index(RUN._replace(kind="q"), 20)[:level])
    assert begin(grant(store), RUN._replace(kind="o")).gen == 1
    assert begin(grant(store), RUN._replace(kind="t")).gen == (1 if level == 22 else 0)


def test_a_user_who_is_locked_out_begins_nothing_until_midnight() -> None:
    store, clock = Store(19, 21), Clock()
    store.puncture(store.index(RUN, 20)[:11])
    found = grant(store, clock)
    with pytest.raises(Erased, match="generation"):
        begin(found)
    clock.at_us += DAY_US - 1
    assert begin(found).day == 21


def test_an_erased_day_is_erased_and_a_day_not_granted_is_unavailable() -> None:
    store = Store(19, 22)
    store.puncture(bytes((19,)))
    found = grant(store)
    with pytest.raises(Erased):
        found.data_key(Locator(TREE, 19, 0), RUN)
    with pytest.raises(KeyUnavailable):
        found.data_key(Locator(TREE, 22, 0), RUN)
    with pytest.raises(KeyUnavailable):
        found.data_key(Locator(os.urandom(16), 20, 0), RUN)


def test_what_the_credential_does_not_cover_is_named() -> None:
    found = grant(Store(19, 21))
    with pytest.raises(UsageError, match="other"):
        found.begin("other", "p", user="", conversation="", subject_id="r", kind="o")
    with pytest.raises(UsageError, match="no project q"):
        found.begin(ORG, "q", user="", conversation="", subject_id="r", kind="o")
    with pytest.raises(UsageError, match="other"):
        found.data_key(Locator(TREE, 20, 0), RUN._replace(org="other"))
    with pytest.raises(UsageError, match="other"):
        found.id_key("other")


def test_a_grant_survives_the_wire() -> None:
    store = Store(19, 21)
    store.puncture(store.index(RUN._replace(id="gone"), 20)[:32])
    found = grant(store)
    again = Grant.from_json(json.loads(json.dumps(found.to_json())), clock_us=Clock())
    assert again.to_json() == found.to_json()
    assert (again.orgs, again.projects(ORG), again.id_key(ORG)) == ((ORG,), ("p",), ID_KEY)
    locator = begin(again)
    assert again.data_key(locator, RUN).commit == found.data_key(locator, RUN).commit
    with pytest.raises(Erased):
        again.data_key(locator, RUN._replace(id="gone"))


@pytest.mark.parametrize(
    "value", [{}, {"version": 2}, {"version": 1, "orgs": [{}]}, {"version": 1, "orgs": 3}]
)
def test_what_is_not_a_grant_is_refused_without_showing_it(value: dict[str, object]) -> None:
    with pytest.raises(KeyUnavailable, match="not a grant$"):
        Grant.from_json(value)


def test_a_grant_shows_no_key() -> None:
    store = Store(19, 21)
    found = grant(store)
    [org] = found.to_json()["orgs"]
    shown = repr(found)
    for secret in (org["id_key"], org["days"][0]["index_key"], org["days"][0]["cover"][0][2]):
        assert secret not in shown and repr(bytes.fromhex(secret)) not in shown
    day = DayGrant(TREE, 20, 1, b"i" * 32, Cover(store.tree().cover(b"\x14")))
    assert "iii" not in repr(day) + repr(OrgGrant(ORG, b"i" * 32, {}, (day,)))
    assert "bytes" not in repr(next(store.tree().cover(b"\x14")))
