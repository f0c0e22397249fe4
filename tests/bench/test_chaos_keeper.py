"""`kill -9` of a keeper, a few times; `turnlog chaos keeper --kills 100` does it in earnest."""

from pathlib import Path

from bench.chaos.keeper import kill_keepers
from turnlog.config import Config


def test_a_killed_keeper_neither_erases_what_lives_nor_forgets_what_it_answered(
    stack: Config, tmp_path: Path
) -> None:
    notified: list[int] = []
    found = kill_keepers(stack, tmp_path / "home", 3, 11, notified.append)
    assert found.wrong == []
    assert notified == [1, 2, 3]
    assert found.punctures > 0 and found.heads > 1
    assert found.checks > found.subjects > 200
