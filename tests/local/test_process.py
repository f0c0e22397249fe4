"""Processes, pid files, ports and locks, with real ones."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from local import process
from local.lock import locked
from local.ports import Ports, holder, is_free
from local.process import Launch, PidFile, Running
from turnlog.errors import Unavailable, UsageError

# A parent and a child, neither of which heeds SIGTERM.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) == 2:
    subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[PidFile]:
    file = PidFile(tmp_path / "a home", "part")
    file.home.mkdir()
    yield file
    process.stop(file, 0)


def start(file: PidFile, *command: str) -> Running:
    return process.start(file, Launch([sys.executable, *command], file.home, {}), {})


def wait_for(file: PidFile, word: str, times: int = 1) -> None:
    while process.log_path(file.home, file.name).read_text().count(word) < times:
        time.sleep(0.01)


def test_a_started_process_is_found_and_stopped(file: PidFile) -> None:
    running = start(file, "-c", "import time; time.sleep(600)")
    assert file.read() == running
    assert process.stop(file, 10)
    assert file.read() is None
    assert not file.exists()
    assert not process.stop(file, 10)


def test_children_that_do_not_listen_are_stopped_too(file: PidFile) -> None:
    start(file, "-c", STUBBORN, STUBBORN)
    wait_for(file, "ready", times=2)
    assert len(process.marked(file.home)["part"]) == 2
    process.stop(file, 0.1)
    assert process.marked(file.home) == {}


def test_an_orphan_is_stopped_though_its_parent_is_gone(file: PidFile) -> None:
    running = start(file, "-c", STUBBORN, STUBBORN)
    wait_for(file, "ready", times=2)
    os.kill(running.pid, signal.SIGKILL)
    while file.read():
        time.sleep(0.01)
    assert len(process.marked(file.home)["part"]) == 1
    assert process.stop(file, 0.1)
    assert process.marked(file.home) == {}


def test_a_process_that_replaced_itself_is_still_the_same(file: PidFile) -> None:
    again = "import os, sys, time; print('again', flush=True); time.sleep(600)"
    running = start(
        file, "-c", "import os, sys; os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])",
        again,
    )  # fmt: skip
    wait_for(file, "again")
    assert file.read() == running


@pytest.mark.parametrize("text", ["", "{", "12", '{"pid": 1}', '{"pid": 1, "identity": "x"}'])
def test_a_broken_pid_file_is_no_process(file: PidFile, text: str) -> None:
    process.replace(file.path, text)
    assert file.read() is None


def test_a_log_that_has_grown_large_is_put_aside(file: PidFile) -> None:
    log = process.log_path(file.home, "part")
    log.parent.mkdir()
    log.write_bytes(b"old\n" * (3 << 20))
    start(file, "-c", "print('new')")
    wait_for(file, "new")
    assert log.with_suffix(".log.1").stat().st_size == 12 << 20
    assert process.log_tail(file.home, "part") == ["new"]


def test_a_port_that_is_taken_is_told_and_left(tmp_path: Path) -> None:
    ports = Ports(tmp_path)
    ports.choose(["a", "b"])
    kept = dict(ports.by_name)
    assert Ports(tmp_path).by_name == kept
    with socket.create_server(("127.0.0.1", kept["a"])):
        assert not is_free(kept["a"])
        assert f"(process {os.getpid()})" in holder(kept["a"])
        assert ports.move("a") != kept["a"]
    assert holder(kept["a"]) == ""
    assert Ports(tmp_path).by_name["b"] == kept["b"]


def test_a_port_taken_on_every_address_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        assert not is_free(server.getsockname()[1])


def test_a_broken_ports_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "ports.json").write_text("[]")
    with pytest.raises(UsageError, match=r"ports\.json cannot be read"):
        Ports(tmp_path)


def test_a_lock_is_released_by_the_death_of_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    hold = (
        "import sys, time; from pathlib import Path; from local.lock import locked\n"
        "with locked(Path(sys.argv[1]), print, 1):\n"
        "    print('held', flush=True); time.sleep(600)"
    )
    told: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(path)], stdout=subprocess.PIPE
    ) as holding:
        assert holding.stdout is not None
        assert holding.stdout.readline() == b"held\n"
        with pytest.raises(Unavailable, match=f"process {holding.pid} has held"):
            _take(path, told)
        assert told == [f"waiting for process {holding.pid}, which holds {path}"]
        holding.kill()
    _take(path, told)


def _take(path: Path, told: list[str]) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(path, told.append, 0.2))


def test_how_a_process_ended_is_known_to_who_started_it(file: PidFile) -> None:
    running = start(file, "-c", "import time; time.sleep(600)")
    os.kill(running.pid, signal.SIGKILL)
    while file.read() is not None:
        time.sleep(0.01)
    assert file.ending() == "killed by signal 9"
    start(file, "-c", "raise SystemExit(3)")
    while file.read() is not None:
        time.sleep(0.01)
    assert file.ending() == "exit code 3"
    file.write(Running(2**22 + 1, "another boot", {}))
    assert file.ending() == "gone"


@pytest.mark.parametrize(
    ("line", "is_error"),
    [
        ("[2026-12-01 03:00:00,123] WARN [Producer] Got error produce response", False),
        ("1:M 01 Dec 2026 03:00:00.000 * Ready to accept connections tcp", False),
        ("[2026-12-01 03:00:00,123] ERROR Exiting Kafka due to fatal exception", True),
        ("1:M 01 Dec 2026 03:00:00.000 # Fatal error loading the DB", True),
        ("java.lang.OutOfMemoryError: Java heap space", True),
        ("ERROR streams: usage-sink crashed: ClickHouse does not answer", True),
    ],
)
def test_a_remark_is_no_reason(file: PidFile, line: str, is_error: bool) -> None:
    log = process.log_path(file.home, file.name)
    log.parent.mkdir()
    log.write_text(f"--- started by turnlog 2026-12-01 03:00:00\n{line}\n")
    assert process.last_error(file.home, file.name) == (line if is_error else "")
