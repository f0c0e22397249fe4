"""The bench of the key tree runs and prints what it promises; what it measures is not asserted."""

import json

import pytest
from click.testing import CliRunner

from bench.keys import paths
from serve.cli.bench import _KEYS_PATHS, bench
from tests.bench.test_spine import COLUMNS
from turnlog.config import Config


def test_the_command_knows_every_path() -> None:
    assert set(paths()) == set(_KEYS_PATHS)


@pytest.mark.parametrize("path", _KEYS_PATHS)
def test_a_path_prints_its_line(stack: Config, path: str) -> None:
    arguments = ["keys", "--path", path, "--records", "600", "--json"]
    ran = CliRunner().invoke(bench, arguments, catch_exceptions=False)
    line = json.loads(ran.stdout)
    assert line.keys() == COLUMNS
    assert line["path"] == path
    assert all(line[name] > 0 for name in COLUMNS - {"path"})
