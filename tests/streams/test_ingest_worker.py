"""The two workers on their real loop: stopped, started again, everything once."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sinks.clickhouse.locator import LocatorTable
from streams import ingest_sink, locator
from streams.archive import Archive
from streams.batch import Sink, run_sink
from streams.progress import Progress
from streams.views import View, named
from tests.streams.log import Events, new_org, run_body, write
from turnlog.config import Config, load

DEADLINE_S = 120


@contextmanager
def working(config: Config, view: View, sink: Sink) -> Iterator[None]:
    """Run a worker's loop in a thread until it has caught up at the end of the block."""
    stop, failures = threading.Event(), []

    def loop() -> None:
        try:
            run_sink(config, view.worker, view.topics, sink, stop=stop)
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
        _wait(config, view, thread)
    finally:
        stop.set()
        thread.join()
    assert failures == []


def _wait(config: Config, view: View, thread: threading.Thread) -> None:
    progress = Progress(config)
    ends = progress.ends(view.topics)
    deadline = time.monotonic() + DEADLINE_S
    while progress.behind(view, ends):
        assert thread.is_alive() and time.monotonic() < deadline
        time.sleep(0.1)


def runs(org: str, count: int, first: int = 0) -> Events:
    numbers = range(first, first + count)
    return [("run.completed", run_body(org, f"run_{number}")) for number in numbers]


def rows_in_objects(config: Config, org: str) -> int:
    archive = Archive(config)
    names = {
        name for name, parts in archive.objects.items() if any(p.manifest.org == org for p in parts)
    }
    return sum(len(list(archive.pack(name).footer.rows_of(org))) for name in names)


@pytest.fixture(scope="module")
def quick(stores: Config) -> Config:
    return load(**stores.model_dump() | {"pack_max_age_s": 0.3})


def test_workers_that_are_stopped_and_started_archive_and_locate_everything_once(
    quick: Config,
) -> None:
    org = new_org("worked")
    for count in (40, 25):
        with working(quick, named("packs"), ingest_sink.IngestSink(quick)):
            write(quick, runs(org, count))
        with working(quick, named("locator"), locator.LocatorSink(quick)):
            pass
    archived = sorted(row[1:4] for row in Archive(quick).rows() if row.org == org)
    located = sorted(row[1:4] for row in LocatorTable(quick).rows() if row.org == org)
    assert archived == located
    assert len(archived) == rows_in_objects(quick, org) == 65


@contextmanager
def process(config: Config, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker as a process of its own; kill it at the end if it still lives."""
    environment = os.environ | {"TURNLOG_HOME": str(config.home), "TURNLOG_PACK_MAX_AGE_S": "0.3"}
    worker = subprocess.Popen(
        [sys.executable, "-m", "streams", name], env=environment, stderr=subprocess.DEVNULL
    )
    try:
        yield worker
    finally:
        worker.kill()
        worker.wait()


def test_a_worker_that_is_killed_loses_and_repeats_nothing(stores: Config) -> None:
    view, org, written = named("packs"), new_org("killed"), 0
    progress = Progress(stores)
    for _ in range(2):
        with process(stores, view.worker) as worker:
            begun = progress.committed(view)
            while progress.committed(view) == begun:
                assert worker.poll() is None
                write(stores, runs(org, 100, first=written))
                written += 100
            write(stores, runs(org, 300, first=written))
            written += 300
            assert progress.lag(view).events > 0
            worker.send_signal(signal.SIGKILL)
            worker.wait()
    with process(stores, view.worker) as worker:
        ends = progress.ends(view.topics)
        while progress.behind(view, ends):
            assert worker.poll() is None
            time.sleep(0.2)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait() == 0
    rows = [row for row in Archive(stores).rows() if row.org == org]
    assert len(rows) == len({row.event_id for row in rows}) == written
