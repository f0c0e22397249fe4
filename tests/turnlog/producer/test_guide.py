"""The examples of docs/producer.md run as they stand there, the servers with real workers."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from serve.conversation_api import read_conversation
from serve.views import wait_for
from turnlog.config import Config
from turnlog.errors import TurnlogError
from turnlog.events import decode
from turnlog.kafka import read_all
from turnlog.keeper_client import create
from turnlog.producer.fields import RunFields

GUIDE = (Path(__file__).parents[3] / "docs" / "producer.md").read_text()
BLOCKS = dict(re.findall(r"```python\n# (\S+\.py)\n(.*?)```", GUIDE, re.DOTALL))
ORG = "producer_guide"
BEGUN_S = 60.0


@pytest.fixture
def folder(stack: Config, tmp_path: Path) -> Path:
    """The blocks of the page as files, for an org of the test's own."""
    create(stack, ORG)
    opened = f'open(credential=Path("{stack.credentials}/{ORG}.json")'
    for name, code in BLOCKS.items():
        own = code.replace('"local"', f'"{ORG}"').replace("Producer.open(", f"Producer.{opened}, ")
        (tmp_path / name).write_text(f"from pathlib import Path\n{own}")
    return tmp_path


def environment(config: Config) -> dict[str, str]:
    return {**os.environ, "TURNLOG_HOME": str(config.home), "PYTHONUNBUFFERED": "1"}


def ran(config: Config, folder: Path, name: str) -> str:
    done = subprocess.run(
        [sys.executable, name], cwd=folder, env=environment(config),
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def status_of(config: Config) -> dict[str, list[str]]:
    """Event types by run."""
    found: dict[str, list[str]] = {}
    for message in read_all(config, "turnlog.runs"):
        event = decode(message.value() or b"")
        if event.body["org"] == ORG:
            found.setdefault(event.body["run"], []).append(event.type)
    return found


def test_the_asynchronous_example_runs_and_is_read_back(stack: Config, folder: Path) -> None:
    assert " completed at turnlog.runs/" in ran(stack, folder, "asynchronous.py")
    assert wait_for(stack, ["conversations", "runs"], 60) == {}
    talk = read_conversation(stack, ORG, "greetings")
    assert [(turn["role"], turn["text"]) for turn in talk.turns] == [
        ("user", "Greet the world"),
        ("assistant", "Bonjour, monde"),
        ("user", "And in Greek?"),
    ]


def test_the_synchronous_example_runs_and_is_read_back(stack: Config, folder: Path) -> None:
    assert ran(stack, folder, "synchronous.py").count("completed at turnlog.runs/") == 3
    assert wait_for(stack, ["conversations", "runs"], 60) == {}
    turns = read_conversation(stack, ORG, "greetings-sync").turns
    # Three threads at once: each question once, the visible path ends with one of them.
    assert turns and turns[-1]["text"].startswith("Yes, ")


@contextmanager
def server(config: Config, folder: Path, *command: str) -> Iterator[tuple[int, Path]]:
    """Run a server on a free port; on leaving it gets SIGTERM and must end well."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "server.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *(part.replace("PORT", str(port)) for part in command)],
            cwd=folder, env=environment(config), stdout=file, stderr=file,
        )  # fmt: skip
    try:
        yield port, log
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, -signal.SIGTERM), log.read_text()
    finally:
        process.kill()
        process.wait()


def get(port: int) -> bytes:
    """Ask until the server is there."""
    until = time.monotonic() + BEGUN_S
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.request("GET", "/", headers={"Connection": "close"})
            return connection.getresponse().read()
        except ConnectionError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        finally:
            connection.close()


GUNICORN = ("gunicorn", "--bind", "127.0.0.1:PORT", "--workers", "2", "--no-control-socket")
SERVERS = {
    "gunicorn-preload": (*GUNICORN, "wsgi:application"),
    "gunicorn": (*GUNICORN, "wsgi:application"),
    "uvicorn": ("uvicorn", "--port", "PORT", "--workers", "2", "asgi:application"),
}


@pytest.mark.parametrize("name", SERVERS)
def test_servers_with_several_workers_write_and_flush(
    stack: Config, folder: Path, name: str
) -> None:
    if name == "gunicorn":
        settings = folder / "gunicorn.conf.py"
        settings.write_text(settings.read_text().replace("preload_app = True", ""))
    before = status_of(stack)
    with server(stack, folder, *SERVERS[name]) as (port, _):
        assert [get(port) for _ in range(12)] == [b"Bonjour, monde"] * 12
    written = {run: types for run, types in status_of(stack).items() if run not in before}
    assert len(written) == 12
    assert {types[-1] for types in written.values()} == {"run.completed"}


def test_a_producer_that_was_opened_before_gunicorn_forked_is_refused_clearly(
    stack: Config, folder: Path
) -> None:
    wsgi = folder / "wsgi.py"
    opened = f'SyncProducer.open(credential=Path("{stack.credentials}/{ORG}.json"))'
    early = f"from turnlog import SyncProducer\nproducer = {opened}"
    wsgi.write_text(wsgi.read_text().replace("producer = None", early))
    (folder / "gunicorn.conf.py").write_text("preload_app = True\n")
    with server(stack, folder, *SERVERS["gunicorn-preload"]) as (port, log):
        get(port)
    assert "opened before the process was forked: open one in each process" in log.read_text()


def test_a_script_that_gets_sigterm_ends_its_run_and_flushes(stack: Config, folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "sigterm.py"],
        cwd=folder, env=environment(stack), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    run = process.stdout.readline().strip()
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (143, "")
    assert status_of(stack)[run] == ["run.created", "run.started", "run.cancelled"]


def test_the_guide_names_only_errors_and_fields_that_exist() -> None:
    errors = {kind.__name__ for kind in _below(TurnlogError)}
    named = re.findall(r"^\| `([A-Z][a-z]\w+)` \|", GUIDE, re.MULTILINE)
    assert named and set(named) <= errors
    call = BLOCKS["asynchronous.py"].partition("producer.run(\n")[2].partition(") as run")[0]
    used = re.findall(r"^\s+(\w+)=", call, re.MULTILINE)
    assert used and set(used) <= RunFields.__annotations__.keys()


def test_the_guide_names_only_settings_that_exist() -> None:
    named = {name.lower() for name in re.findall(r"`TURNLOG_([A-Z_]+)`", GUIDE)}
    assert named and named <= Config.model_fields.keys()


def _below(kind: type[TurnlogError]) -> set[type[TurnlogError]]:
    return {kind}.union(*(_below(sub) for sub in kind.__subclasses__()))
