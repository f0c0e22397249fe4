"""The product computes the values of keys.md section 5."""

import json

import pytest
from click.testing import CliRunner

from serve.cli.keys import keys
from tests.attack.page import ON_THE_PAGE
from turnlog.keys.vectors import vectors


@pytest.mark.parametrize("name", ON_THE_PAGE)
def test_the_value_is_the_one_on_the_page(name: str) -> None:
    assert vectors()[name] == ON_THE_PAGE[name]


def test_another_run_keeps_its_leaf_through_the_puncture() -> None:
    assert vectors()["punctured_leaf_o_of_run_01K"].startswith("4e6d6c97f8080652")


def test_the_command_prints_every_vector_as_one_object() -> None:
    printed = CliRunner().invoke(keys, ["vectors", "--json"])
    assert json.loads(printed.stdout) == vectors()
