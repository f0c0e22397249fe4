"""`python -m streams NAME`: what a worker does when it cannot work, and when it is told to stop."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from local.ports import free_ports
from turnlog.config import Config

ROOT = Path(__file__).parents[2]
PATIENCE_S = 90.0


def start(*arguments: str, log: Path, **environment: str) -> "subprocess.Popen[bytes]":
    env = {**os.environ, "TURNLOG_WORKER_ATTEMPT": "0", **environment}
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "streams", *arguments],
            env=env,
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
