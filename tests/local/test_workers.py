"""Workers of a whole stack: replaced when they die, restarted when an address moves."""

import os
import signal
import socket
import time

from local import process, stack
from local.parts import NAMES
from local.process import PidFile
from turnlog.config import Config, load

WORKERS = (
    "keeper",
    "conversations",
    "usage-sink",
    "runs-sink",
    "ingest-sink",
    "locator",
    "finalizer",
)


def pids(config: Config) -> dict[str, int | None]:
    return {part.name: part.pid for part in stack.status(config)}


def test_workers_are_replaced_alone_and_moved_together(own_stack: Config) -> None:
    first = pids(own_stack)
    assert None not in first.values()

    victim = first["usage-sink"]
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    while PidFile(own_stack.home, "usage-sink").read():
        time.sleep(0.01)
    assert {p.name: p.state for p in stack.status(own_stack)}["usage-sink"] == "died"
    assert stack.up(own_stack) == own_stack
    second = pids(own_stack)
    assert {name for name in NAMES if second[name] != first[name]} == {"usage-sink"}

    stack.down(own_stack, ["redis"])
    with socket.create_server(("127.0.0.1", int(own_stack.redis.split(":")[2].split("/")[0]))):
        moved = stack.up(own_stack, ["redis"])
    assert moved.redis != own_stack.redis
    assert load(home=own_stack.home) == moved
    third = pids(moved)
    # An address is read once: whoever was told the old one is started anew.
    assert {name for name in NAMES if third[name] != second[name]} == {"redis", *WORKERS}

    assert sorted(stack.down(moved)) == sorted(NAMES)
    assert process.marked(moved.home) == {}
