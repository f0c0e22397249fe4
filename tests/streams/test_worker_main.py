"""`python -m streams NAME`: what a worker does when it cannot work, and when it is told to stop."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0


@contextmanager
def worker(log: Path, *arguments: str, **environment: str) -> Iterator["subprocess.Popen[bytes]"]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("TURNLOG_")}
    home = {"TURNLOG_HOME": str(log.parent), "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "streams", *arguments],
            env=env | home | environment,
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def nowhere() -> dict[str, str]:
    return {
        "TURNLOG_KAFKA": f"127.0.0.1:{closed_port()}",
        "TURNLOG_CLICKHOUSE": f"http://127.0.0.1:{closed_port()}",
    }


@pytest.mark.parametrize("arguments", [(), ("nobody",), ("usage-sink", "twice")])
def test_an_unknown_worker_is_used_wrongly(arguments: tuple[str, ...], tmp_path: Path) -> None:
    with worker(tmp_path / "log", *arguments) as process:
        assert process.wait(PATIENCE_S) == 2
    assert "usage: python -m streams keeper|" in (tmp_path / "log").read_text()


def test_a_worker_without_a_stack_says_what_to_do_and_stays_down(tmp_path: Path) -> None:
    with worker(tmp_path / "log", "usage-sink") as process:
        assert process.wait(PATIENCE_S) == 2
    said = (tmp_path / "log").read_text()
    assert "clickhouse has no address: run `turnlog up`" in said
    assert "Traceback" not in said


def test_a_worker_whose_store_is_away_starts_again_under_the_same_pid(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with worker(log, "usage-sink", **nowhere()) as process:
        until = time.monotonic() + PATIENCE_S
        while log.read_text().count("usage-sink crashed: clickhouse does not answer") < 2:
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
    assert "Traceback" not in log.read_text()


def test_the_new_start_can_be_turned_off(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with worker(log, "usage-sink", TURNLOG_WORKER_RESTART="0", **nowhere()) as process:
        assert process.wait(PATIENCE_S) == 1
    assert log.read_text().count("crashed") == 1
