"""Kill a part with -9 while the feed runs and start it again: views equal the fold of the log."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

from local.stack import status, up
from replay.fold import fold_log
from serve.runs_api import list_runs
from serve.views import wait_for
from streams.progress import Progress
from streams.views import VIEWS, named
from tests.conftest import running_stack
from turnlog.config import Config

RECOVERY_S = 90.0
# Part to kill, and the view whose lag shows that it had work in flight (None: the feed's own).
KILLED = [
    ("kafka", None),
    ("clickhouse", "usage"),
    ("usage-sink", "usage"),
    ("conversations", "conversations"),
    ("ingest-sink", "packs"),
]


@pytest.fixture(scope="module")
def killed_stack() -> Iterator[Config]:
    with running_stack() as config:
        yield config


@pytest.mark.parametrize(("part", "view"), KILLED)
def test_kill_while_the_feed_runs(
    killed_stack: Config, part: str, view: str | None, tmp_path: Path
) -> None:
    log = tmp_path / f"{part.replace('-', '')}.log"
    with start_feed(killed_stack, log) as feed:
        wait_until(lambda: len(lines(log, "ack ended")) > 20, "the feed did not start")
        wait_until(lambda: work_in_flight(killed_stack, log, view), "no work was in flight")
        os.kill(pid_of(killed_stack, part), signal.SIGKILL)
        assert unanswered(log) if view is None else True
        time.sleep(1)
        up(killed_stack)
        log.with_suffix(".stop").touch()
        _, complaint = feed.communicate(timeout=RECOVERY_S)
        assert feed.returncode == 0, complaint
    assert wait_for(killed_stack, timeout_s=RECOVERY_S) == {}
    assert_views_equal_the_fold(killed_stack)
    assert_nothing_acknowledged_is_missing(killed_stack, log)


@contextmanager
def start_feed(config: Config, log: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "tests.feed", str(log)]
    environment = {**os.environ, "TURNLOG_HOME": str(config.home)}
    root = Path(__file__).parents[1]
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, cwd=root
    ) as feed:
        try:
            yield feed
        finally:
            feed.kill()


def lines(log: Path, kind: str) -> set[str]:
    if not log.exists():
        return set()
    # The last line may be half written.
    found = log.read_text().split("\n")[:-1]
    return {line.removeprefix(kind + " ") for line in found if line.startswith(kind + " ")}


def unanswered(log: Path) -> set[str]:
    return lines(log, "ask created") - lines(log, "ack created") | (
        lines(log, "ask ended") - lines(log, "ack ended")
    )


def work_in_flight(config: Config, log: Path, view: str | None) -> bool:
    if view is None:
        return bool(unanswered(log))
    return Progress(config).lag(named(view)).events > 0


def pid_of(config: Config, part: str) -> int:
    pid = next(state.pid for state in status(config) if state.name == part)
    assert pid is not None
    return pid


def wait_until(condition: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.02)


def assert_views_equal_the_fold(config: Config) -> None:
    stored = {view.name: import_module(view.module).digest(config) for view in VIEWS}
    assert stored == fold_log(config)


def assert_nothing_acknowledged_is_missing(config: Config, log: Path) -> None:
    runs = {row["run"]: row for row in list_runs(config, "local")}
    assert lines(log, "ack created") - set(runs) == set()
    ended = lines(log, "ack ended")
    assert {run for run in ended if runs[run]["status"] != "completed"} == set()
    assert {run for run in ended if runs[run]["usage"]["output_text"] != 7} == set()
