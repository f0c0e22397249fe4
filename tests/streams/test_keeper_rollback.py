"""A topic that was rolled back to before a puncture: the keeper does not write over it."""

from pathlib import Path

import pytest

from streams.keeper.partition import take_over
from streams.keeper.rollback import require_floors
from tests.streams.keeper_kafka import at_home, keeper_of, named, new_topic, served
from tests.streams.test_keeper_puncture import begin, granted, targeted
from turnlog.config import Config
from turnlog.errors import KeyUnavailable
from turnlog.kafka import partition_of, read_all
from turnlog.keeper_client import create, puncture
from turnlog.keys.heads import Floor


def test_5_a_keeper_refuses_a_topic_from_before_a_puncture(stores: Config, tmp_path: Path) -> None:
    config, topic, older = at_home(stores, tmp_path), new_topic(stores), new_topic(stores)
    org = named("acme")
    number = partition_of(org.encode(), 2)
    with served(config, topic) as keeper:
        create(keeper.config, org, "p")
        before = [(m.key() or b"", m.value()) for m in read_all(stores, topic, [number])]
        puncture(keeper.config, org, "p", [targeted("run", begin(granted(keeper, org), org))])
    at_home_before = at_home(stores, tmp_path / "other")
    take_over(at_home_before, number, older).write(before)
    with pytest.raises(KeyUnavailable, match="rolled back"):
        take_over(config, number, older)
    with pytest.raises(KeyUnavailable, match="rolled back"):
        keeper_of(config, older)
    assert take_over(config, number, topic).state.rows


def test_a_head_that_is_gone_was_rolled_back_too() -> None:
    with pytest.raises(KeyUnavailable, match="has generation 0, 3 was seen"):
        require_floors({}, {b"acme/tree/head": Floor(3, b"d" * 32)})
