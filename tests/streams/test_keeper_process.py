"""The keeper as a process: stopped, killed, fenced, given the wrong key file."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import running_stack
from turnlog.config import Config
from turnlog.errors import TurnlogError, Unavailable
from turnlog.keeper_client import create, credential_of, fetch_grant
from turnlog.keys.keyfile import create_key_file


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Config]:
    with running_stack(("kafka", "keeper")) as config:
        yield config


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def another(config: Config, **environment: str) -> tuple[subprocess.Popen[bytes], Config]:
    """Start a second keeper of the same log at an address of its own."""
    address = f"http://127.0.0.1:{free_port()}"
    env = {
        **os.environ,
        "TURNLOG_HOME": str(config.home),
        "TURNLOG_KAFKA": config.kafka,
        "TURNLOG_KEEPER": address,
        **environment,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "serve", "keys", "keeper"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return process, config.model_copy(update={"keeper": address})


def answering(config: Config, org: str) -> None:
    """Wait until a keeper grants."""
    deadline = time.monotonic() + 120
    while True:
        try:
            fetch_grant(config, credential_of(config, org))
            return
        except Unavailable:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=120)
    return process.returncode, output.decode()


def test_a_wrong_key_file_ends_it_with_a_line_that_names_the_file(
    own: Config, tmp_path: Path
) -> None:
    wrong = create_key_file(tmp_path / "wrong.key").path
    process, _ = another(own, TURNLOG_KEY_FILE=str(wrong))
    code, output = ended(process)
    assert code == 2
    assert f"key file {wrong} is not the key" in output
    assert "Traceback" not in output


def test_a_second_keeper_takes_over_and_the_first_stays_down(own: Config) -> None:
    org = f"takeover_{os.getpid()}"
    create(own, org, "p")
    id_key = fetch_grant(own, credential_of(own, org)).id_key(org)
    first, at_first = another(own)
    answering(at_first, org)
    second, at_second = another(own)
    answering(at_second, org)
    with pytest.raises(TurnlogError):
        create(at_first, org, "q")
    code, output = ended(first)
    assert code == 1
    assert "another keeper" in output and "Traceback" not in output
    create(at_second, org, "q")
    grant = fetch_grant(at_second, credential_of(at_second, org))
    assert set(grant.projects(org)) == {"p", "q"}
    assert grant.id_key(org) == id_key
    second.send_signal(signal.SIGTERM)
    assert ended(second)[0] == 0


def test_a_killed_keeper_comes_back_with_every_key(own: Config) -> None:
    org = f"killed_{os.getpid()}"
    process, config = another(own)
    answering(config, "local")
    create(config, org, "p")
    before = fetch_grant(config, credential_of(config, org)).to_json()["orgs"]
    process.kill()
    ended(process)
    process, config = another(own)
    answering(config, org)
    assert fetch_grant(config, credential_of(config, org)).to_json()["orgs"] == before
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 0
