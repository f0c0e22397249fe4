"""The keeper's punctures: over its door, on a real broker."""

import os
from collections.abc import Iterator

import pytest

from streams.keys_reader import KeyReader
from tests.streams.keeper_kafka import Served, at_home, named, new_topic, served
from tests.streams.test_keeper_door import admin, ask
from turnlog.config import Config
from turnlog.errors import Erased, KeyUnavailable, NotFound, UsageError
from turnlog.kafka import read_all
from turnlog.keeper_client import create, credential_of, fetch_grant, puncture
from turnlog.keys import Grant, Locator, Subject
from turnlog.keys.rows import head_row_key
from turnlog.keys.targets import Target
from turnlog.keys.tree import StoredTree

DAY_US = 86_400_000_000


@pytest.fixture(scope="module")
def keeper(stores: Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    config = at_home(stores, tmp_path_factory.mktemp("home"))
    with served(config, new_topic(stores)) as found:
        yield found


@pytest.fixture
def org(keeper: Served) -> str:
    name = named("acme")
    create(keeper.config, name, "p")
    return name


def granted(keeper: Served, org: str) -> Grant:
    return fetch_grant(keeper.config, credential_of(keeper.config, org))


def begin(grant: Grant, org: str, run: str = "r", user: str = "u") -> Locator:
    ids = {"user": user, "conversation": "c", "subject_id": run, "kind": "o"}
    return grant.begin(org, "p", **ids)


def targeted(level: str, locator: Locator, run: str = "r", user: str = "u") -> Target:
    return Target(level, *locator[:2], user, locator.gen, "c", run)


def topic_of(keeper: Served) -> str:
    return keeper.keeper.partitions[0]._topic


def test_a_run_is_erased_when_it_is_answered_and_its_neighbour_lives(
    keeper: Served, org: str
) -> None:
    locator = begin(granted(keeper, org), org)
    [found] = puncture(keeper.config, org, "p", [targeted("run", locator)])
    assert found == {
        "tree": locator.tree.hex(),
        "prefix": found["prefix"],
        "generation": 2,
        "rows": 33,
        "nodes_destroyed": 1,
    }
    assert len(found["prefix"]) == 64 and found["prefix"].startswith(f"{locator.day:02x}")
    with KeyReader(keeper.config, [org], topic=topic_of(keeper)) as reader:
        for kind in "oq":
            with pytest.raises(Erased):
                reader.data_key(locator, Subject(org, "u", "c", "r", kind))
        assert reader.data_key(locator, Subject(org, "u", "c", "r2", "o"))


def test_grants_made_afterwards_are_of_the_new_head(keeper: Served, org: str) -> None:
    before = granted(keeper, org)
    locator = begin(before, org)
    subject = Subject(org, "u", "c", "r", "o")
    puncture(keeper.config, org, "p", [targeted("run", locator)])
    with pytest.raises(Erased):
        granted(keeper, org).data_key(locator, subject)
    # The one from before goes on until it expires.
    assert before.data_key(locator, subject)


def test_a_repeat_changes_nothing_and_is_no_error(keeper: Served, org: str) -> None:
    locator = begin(granted(keeper, org), org)
    targets = [targeted("conversation", locator), targeted("run", locator)]
    first = puncture(keeper.config, org, "p", targets)
    count = sum(1 for _ in read_all(keeper.config, topic_of(keeper)))
    again = puncture(keeper.config, org, "p", targets)
    assert [(f["generation"], f["rows"], f["nodes_destroyed"]) for f in again] == [(2, 0, 0)] * 2
    assert [f["prefix"] for f in again] == [f["prefix"] for f in first]
    assert sum(1 for _ in read_all(keeper.config, topic_of(keeper))) == count


def test_many_prefixes_of_a_tree_are_one_head(keeper: Served, org: str) -> None:
    locator = begin(granted(keeper, org), org)
    targets = [targeted("key", locator, f"r{n}")._replace(kind="q") for n in range(1000)]
    found = puncture(keeper.config, org, "p", targets)
    assert len(found) == 1000
    assert {each["generation"] for each in found} == {2}
    head = head_row_key(org, locator.tree)
    rows = [m for m in read_all(keeper.config, topic_of(keeper)) if m.key() == head]
    assert len(rows) == 2
    grant = granted(keeper, org)
    with pytest.raises(Erased):
        grant.data_key(locator, Subject(org, "u", "c", "r999", "q"))
    assert grant.data_key(locator, Subject(org, "u", "c", "r999", "o"))


def test_an_erased_history_begins_again_with_the_next_generation(keeper: Served, org: str) -> None:
    for gen in (0, 1, 2):
        locator = begin(granted(keeper, org), org)
        assert locator.gen == gen
        puncture(keeper.config, org, "p", [targeted("history", locator)])
    assert begin(granted(keeper, org), org, user="other").gen == 0


def test_a_locked_user_begins_nothing_today_and_others_do(keeper: Served, org: str) -> None:
    locator = begin(granted(keeper, org), org)
    puncture(keeper.config, org, "p", [targeted("user", locator)])
    with pytest.raises(Erased, match="every generation"):
        begin(granted(keeper, org), org)
    assert begin(granted(keeper, org), org, user="other").gen == 0


def test_255_erased_generations_leave_the_last_one_and_then_say_so(
    keeper: Served, org: str
) -> None:
    locator = begin(granted(keeper, org), org)
    targets = [targeted("history", locator)._replace(gen=gen) for gen in range(255)]
    puncture(keeper.config, org, "p", targets)
    assert begin(granted(keeper, org), org).gen == 255
    puncture(keeper.config, org, "p", [targets[0]._replace(gen=255)])
    with pytest.raises(Erased, match="every generation"):
        begin(granted(keeper, org), org)


def test_a_day_that_is_not_minted_is_unavailable_and_nothing_is_written(
    keeper: Served, org: str
) -> None:
    locator = begin(granted(keeper, org), org)
    later = tree_without_31(keeper, org)
    count = sum(1 for _ in read_all(keeper.config, topic_of(keeper)))
    targets = [targeted("run", locator), Target("day", later, 31)]
    with pytest.raises(KeyUnavailable, match="day 31 .* not minted"):
        puncture(keeper.config, org, "p", targets)
    assert sum(1 for _ in read_all(keeper.config, topic_of(keeper))) == count


def tree_without_31(keeper: Served, org: str) -> bytes:
    """Return the newest tree without a day 31; minted on if the last day of today is one."""
    newest = newest_tree(keeper, org)
    if newest.head.minted_through == 31:
        tomorrow = keeper.keeper.clock_us() + DAY_US
        keeper.keeper.clock_us = lambda: tomorrow
        keeper.keeper.mint()
        newest = newest_tree(keeper, org)
    assert newest.head.minted_through < 31
    return newest.tree


def newest_tree(keeper: Served, org: str) -> StoredTree:
    with KeyReader(keeper.config, [org], topic=topic_of(keeper)) as reader:
        return [stored for _, _, stored in reader.trees(org)][-1]


def test_a_tree_of_others_is_refused_like_one_that_never_was(keeper: Served, org: str) -> None:
    other = named("other")
    create(keeper.config, other, "p")
    create(keeper.config, org, "q")
    theirs = begin(granted(keeper, other), other)
    second = granted(keeper, org).begin(
        org, "q", user="", conversation="", subject_id="r", kind="o"
    )
    mine = targeted("run", begin(granted(keeper, org), org))
    count = sum(1 for _ in read_all(keeper.config, topic_of(keeper)))
    answers = set()
    for tree in (theirs.tree, second.tree, os.urandom(16)):
        with pytest.raises(NotFound) as refused:
            puncture(keeper.config, org, "p", [mine, mine._replace(tree=tree)])
        answers.add(str(refused.value))
    for name, project in ((org, "none"), (named("none"), "p")):
        with pytest.raises(NotFound) as refused:
            puncture(keeper.config, name, project, [mine])
        answers.add(str(refused.value))
    assert len(answers) == 1
    assert sum(1 for _ in read_all(keeper.config, topic_of(keeper))) == count


@pytest.mark.parametrize("targets", [None, {}, [], [3], [{"level": "day", "tree": "", "day": 1}]])
def test_what_is_wrong_in_the_targets_is_refused(keeper: Served, org: str, targets: object) -> None:
    body = {"org": org, "project": "p", "targets": targets}
    status, answer = ask(keeper, "/v1/puncture", admin(keeper), body)
    assert status == 400 and set(answer) == {"error"}


def test_an_orgs_credential_punctures_nothing(keeper: Served, org: str) -> None:
    target = targeted("run", begin(granted(keeper, org), org))
    body = {"org": org, "project": "p", "targets": [target.to_json()]}
    token = credential_of(keeper.config, org).token
    assert ask(keeper, "/v1/puncture", token, body)[0] == 401
    assert granted(keeper, org).data_key(
        Locator(target.tree, target.day, 0), Subject(org, "u", "c", "r", "o")
    )


def test_more_targets_than_a_transaction_can_take_are_refused(keeper: Served, org: str) -> None:
    target = targeted("run", begin(granted(keeper, org), org))
    with pytest.raises(UsageError, match="more than 2000 targets"):
        puncture(keeper.config, org, "p", [target] * 2001)


def test_a_body_of_4_mb_of_targets_is_refused_whole(keeper: Served, org: str) -> None:
    target = targeted("run", begin(granted(keeper, org), org)).to_json()
    body = {"org": org, "project": "p", "targets": [target] * 40_000}
    assert ask(keeper, "/v1/puncture", admin(keeper), body)[0] == 413
