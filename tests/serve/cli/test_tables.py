"""A table at a terminal: what is to be copied is whole, what says nothing gives way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serve.cli import guarded
from tests.serve.cli.terminal import at_terminal
from turnlog.errors import Unavailable

RUN = "run_01J000000000000000000000000000000000000"
ROWS = [
    {"run": RUN, "cost_usd": "0.000000123", "dead": 0, "note": None, "n": 3},
    {"run": RUN[::-1], "cost_usd": "1.200000007", "dead": 0, "note": "", "n": 0},
]
NAMES = ["run", "cost_usd", "dead", "note", "n"]
CODE = f"from serve.cli.output import table; table({ROWS}, {NAMES})"


def test_nothing_is_cut_where_the_terminal_is_too_narrow(tmp_path: Path) -> None:
    code, lines = at_terminal(tmp_path, 40, "-c", CODE)
    assert code == 0
    assert [line.split() for line in lines] == [
        ["run", "cost_usd", "n"],
        [RUN, "0.000000123", "3"],
        [RUN[::-1], "1.200000007", "0"],
    ]


def test_a_table_that_has_room_keeps_its_zeros(tmp_path: Path) -> None:
    _, lines = at_terminal(tmp_path, 120, "-c", CODE)
    assert lines[0].split() == NAMES
    assert lines[1].split() == [RUN, "0.000000123", "0", "-", "3"]


def test_a_pipe_has_no_width_and_is_told_all(tmp_path: Path) -> None:
    env = {**os.environ, "COLUMNS": "40"}
    done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True)
    assert done.stdout.splitlines()[0].split() == NAMES


def test_a_command_at_eighty_columns_keeps_its_words(tmp_path: Path) -> None:
    code, lines = at_terminal(tmp_path, 80, "-m", "serve", "keys", "vectors")
    assert code == 0
    assert all(len(line.split()) == 2 for line in lines)


def test_a_full_disk_is_said_in_a_line(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "serve", "keys", "vectors"],
            stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "turnlog: the output: No space left on device\n"


def test_kafkas_constants_are_words_and_the_silent_address_is_named(tmp_path: Path) -> None:
    env = {**os.environ, "TURNLOG_HOME": str(tmp_path), "TURNLOG_KAFKA": "127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-m", "serve", "dead"], env=env, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith("turnlog: Kafka does not answer at 127.0.0.1:9: no ")


def test_no_constant_of_the_client_reaches_a_person(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        raise Unavailable("topic a_B: _ALL_BROKERS_DOWN, then _TRANSPORT; __MARK stays")

    assert guarded(fails) == 1
    said = capsys.readouterr().err.splitlines()[0]
    assert said == "turnlog: topic a_B: no broker can be reached, then no connection; __MARK stays"
