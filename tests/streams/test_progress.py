"""Who asks for positions outlives a broker that comes back and coordinates nothing for a while."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from local.stack import status
from tests.conftest import running_stack
from turnlog.config import Config

ASK = """
import sys, threading
from streams.progress import Progress
from streams.views import VIEWS
from turnlog.config import load
from turnlog.errors import Unavailable

def ask():
    progress, config = Progress(load()), load()
    while True:
        for view in VIEWS:
            try:
                progress.committed(view)
            except Unavailable:
                continue
        print("asked", flush=True)

for _ in range(4):
    threading.Thread(target=ask, daemon=True).start()
sys.stdin.read()
"""
# Behind `broker.session.timeout.ms` (3 s) the controller takes the broker for dead.
STOPPED_S = 4.5


@pytest.fixture
def kafka() -> Iterator[Config]:
    with running_stack(("kafka",)) as config:
        yield config


def test_asking_survives_a_broker_that_comes_back(kafka: Config, tmp_path: Path) -> None:
    (pid,) = (part.pid for part in status(kafka) if part.name == "kafka")
    assert pid is not None
    said = tmp_path / "said"
    with said.open("wb") as out:
        asking = subprocess.Popen(
            [sys.executable, "-c", ASK],
            env={**os.environ, "TURNLOG_KAFKA": kafka.kafka, "TURNLOG_HOME": str(kafka.home)},
            stdin=subprocess.PIPE,
            stdout=out,
        )
    with asking:
        for _ in range(2):
            more_is_said(said, asking)
            psutil.Process(pid).suspend()
            time.sleep(STOPPED_S)
            psutil.Process(pid).resume()
        more_is_said(said, asking)
        asking.send_signal(signal.SIGKILL)


def more_is_said(said: Path, asking: "subprocess.Popen[bytes]") -> None:
    """Wait until positions were read some times more."""
    size, until = said.stat().st_size, time.monotonic() + 60
    while said.stat().st_size < size + 200:
        assert asking.poll() is None, "who asks for positions is gone"
        assert time.monotonic() < until
        time.sleep(0.05)
