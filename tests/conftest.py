"""Stacks for tests: one shared by the whole session, and one of a test's own."""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from local import stack as local_stack
from turnlog.config import Config, load

# From 240 down to 90 s each, with several of them at a time on two cores.
LONGEST = (
    "streams/test_finalizer.py",
    "test_kill.py",
    "replay/test_reconcile.py",
    "serve/test_keys_puncture.py",
    "house/test_layout.py",
    "streams/test_conversations_worker.py",
    "bench/test_chaos_producer.py",
    "local/test_stack.py",
    "litellm/test_logger.py",
    "streams/test_ingest_sink.py",
    "serve/proxy/test_process.py",
    "streams/test_keeper_process.py",
)

# A loaded machine makes any one example slow; no test asserts a time.
settings.register_profile("turnlog", deadline=None)
settings.load_profile("turnlog")


def pytest_configure() -> None:
    # `timeout` and CI end a run by SIGTERM: it must take its stacks with it, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Containers often set this. Every worker of a stack and every command is a Python process that
    # compiles all its modules then: 3.9 s of CPU until it starts instead of 1.0, half of the suite.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # A loaded machine's broker is slow and not away; tests of the ladder say 400 ms themselves.
    os.environ.setdefault("TURNLOG_SPOOL_AFTER_MS", "20000")
    # Tests leave runs open, and compare digests of the whole log: nothing may end them meanwhile.
    # Tests of the finalizer say 3 s themselves.
    os.environ.setdefault("TURNLOG_RUN_DEADLINE_S", "86400")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, so that at the end no worker is left alone with it.

    Whole files, which is how `make test` hands them out: in this order, not by their number of
    tests, which puts files of a few long tests last.
    """
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    file = item.nodeid.partition("::")[0].removeprefix("tests/")
    return LONGEST.index(file) if file in LONGEST else len(LONGEST)


@contextmanager
def running_stack(names: tuple[str, ...] = (), **settings: Any) -> Iterator[Config]:
    """Run a stack (all of it, or the parts named) in a new home; nothing of it stays.

    Args:
        names: of its parts.
        **settings: fields of the config.
    """
    # Short: a Unix socket's path, of which the stack has some, may have 107 bytes.
    home = Path(tempfile.mkdtemp(prefix="turnlog-test-"))
    config = load(home=home, **settings)
    try:
        yield local_stack.up(config, names)
    finally:
        local_stack.down(config)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def stack() -> Iterator[Config]:
    """The config of a running stack that all tests share: use org names of your own.

    Its home is in TURNLOG_HOME too, so that commands and workers started by a test find it.
    """
    before = os.environ.get("TURNLOG_HOME")
    with running_stack() as config:
        os.environ["TURNLOG_HOME"] = str(config.home)
        try:
            yield config
        finally:
            os.environ.pop("TURNLOG_HOME")
            if before is not None:
                os.environ["TURNLOG_HOME"] = before


@pytest.fixture
def own_stack() -> Iterator[Config]:
    """The config of a running stack that the test may break: expensive, use it sparingly."""
    with running_stack() as config:
        yield config


@pytest.fixture
def own_stores() -> Iterator[Config]:
    """Like `own_stack`, with the stores alone."""
    with running_stack(("kafka", "s3", "redis", "clickhouse")) as config:
        yield config
