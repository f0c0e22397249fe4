"""Gateways that leave runs behind, and what the log and the views say of them."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from local.stack import status
from serve.runs_api import list_runs
from streams.content import Content
from tests.lost import REQUEST
from tests.streams.log import read
from turnlog import Producer
from turnlog.config import Config
from turnlog.events import Event, decode
from turnlog.ids import event_id
from turnlog.keeper_client import create, credential_of
from turnlog.producer import Run

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0


@contextmanager
def gateway(config: Config, org: str, *runs: str) -> Iterator["subprocess.Popen[str]"]:
    """A gateway whose first run has shown output, and that waits."""
    create(config, org)
    command = [sys.executable, "-m", "tests.lost", org, *runs]
    pipe = subprocess.PIPE
    environment = {**os.environ, "TURNLOG_HOME": str(config.home)}
    with subprocess.Popen(
        command, env=environment, stdin=pipe, stdout=pipe, text=True, cwd=ROOT
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "shown\n"
            yield process
        finally:
            process.kill()


def go_on(process: "subprocess.Popen[str]") -> None:
    """Tell a gateway to end its runs, and wait until it has."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "ended\n"
    process.wait(PATIENCE_S)


Work = Callable[[Producer, Run], Any]


def abandoned(config: Config, org: str, run: str, work: Work) -> Run:
    """Begin a run, do something to it, and leave it open."""

    async def begin() -> Run:
        async with Producer.open(config, credential_of(config, org)) as producer:
            opened = producer.run(org=org, run=run, provider="openai", request=REQUEST)
            await opened.__aenter__()
            opened.chunk("shown")
            opened.seal()
            await asyncio.gather(*opened._others)
            await work(producer, opened)
            producer._opened.discard(opened)  # which would end it on leaving
        return opened

    create(config, org)
    return asyncio.run(begin())


def body_of(run: Run, type_: str, natural: str, **fields: Any) -> dict[str, Any]:
    org = cast(str, run._events.fields["org"])
    now_us = time.time_ns() // 1000
    return {
        **run._events.fields,
        "event_id": event_id(org, run.run, type_, natural or f"1/hb/{now_us}"),
        "occurred_at_us": now_us,
    } | fields


async def beat(producer: Producer, run: Run) -> None:
    await producer.append("run.heartbeat", own(body_of(run, "run.heartbeat", "")))


def own(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if not name.startswith("producer_")}


def events(config: Config, org: str, topic: str, run: str = "") -> list[Event]:
    found = [decode(message.value() or b"") for message in read(config, topic, org)]
    return [event for event in found if not run or event.body["run"] == run]


def until(condition: Callable[[], Any], complaint: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, complaint
        time.sleep(0.1)
    return found


def ends(config: Config, org: str, run: str) -> list[Event]:
    found = events(config, org, "turnlog.runs", run)
    return [event for event in found if event.type == "run.interrupted"]


def ended(config: Config, org: str, run: str) -> Event:
    """Wait for the finalizer's end of a run."""
    return cast(Event, until(lambda: ends(config, org, run), f"nobody ended {run}")[0])


def ended_epochs(config: Config, org: str, run: str) -> list[int]:
    return [event.body["writer_epoch"] for event in ends(config, org, run)]


def output_of(config: Config, org: str, run: str) -> Any:
    """Return the output that stands in the finalizer's end of a run."""
    for message in read(config, "turnlog.runs", org):
        event = decode(message.value() or b"")
        if event.type == "run.interrupted" and event.body["run"] == run:
            with Content(config, org) as content:
                place = cast(int, message.partition()), cast(int, message.offset())
                return content.open(org, "turnlog.runs", *place).get("output")
    return None


def sums(config: Config, org: str, run: str) -> dict[str, int]:
    used = events(config, org, "turnlog.usage", run)
    names = ("input_uncached", "output_text", "output_reasoning")
    return {n: sum(e.body["sign"] * e.body[n] for e in used) for n in names}


def listed(config: Config, org: str, run: str) -> tuple[str, str]:
    rows = {row["run"]: row for row in list_runs(config, org)}
    return (rows[run]["status"], rows[run]["usage"]["quality"]) if run in rows else ("", "")


def pid_of(config: Config, part: str) -> int:
    return cast(int, next(state.pid for state in status(config) if state.name == part))
