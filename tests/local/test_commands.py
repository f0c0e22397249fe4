"""`turnlog up | down | status | doctor` as a user meets them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from local import workers
from local.process import PidFile, Running, log_path
from turnlog.config import Config


def turnlog(home: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNLOG_")}
    return subprocess.run(
        [sys.executable, "-m", "serve", *arguments],
        env={**kept, "TURNLOG_HOME": str(home), **env},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_doctor_finds_this_machine_fit(tmp_path: Path) -> None:
    done = turnlog(tmp_path, "doctor", "--json")
    findings = [json.loads(line) for line in done.stdout.splitlines()]
    assert [finding for finding in findings if not finding["ok"]] == []
    assert done.returncode == 0


def test_doctor_says_what_to_install_where_java_is_missing(tmp_path: Path) -> None:
    done = turnlog(tmp_path, "doctor", PATH="", JAVA_HOME="")
    assert done.returncode == 1
    assert "openjdk-17-jre-headless" in done.stdout
    assert done.stderr == "turnlog: not fit for a local stack: java\n"


def test_up_without_java_says_what_to_install(tmp_path: Path) -> None:
    done = turnlog(tmp_path, "up", "kafka", PATH="", JAVA_HOME="")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "turnlog: no Java: Kafka needs 17 or newer (Debian: openjdk-17-jre-headless)\n"
    )


def test_an_old_java_is_told_with_its_version(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    done = turnlog(tmp_path / "home", "doctor", JAVA_HOME=str(tmp_path))
    assert done.returncode == 1
    assert 'is Java version "11.0.2"; Kafka needs 17' in done.stdout


def test_fetch_is_quiet_when_kafka_is_there(tmp_path: Path) -> None:
    done = turnlog(tmp_path, "doctor", "--fetch", https_proxy="http://127.0.0.1:9")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_nothing_is_fetched_for_a_kafka_that_is_given(tmp_path: Path) -> None:
    given = {"TURNLOG_KAFKA": "127.0.0.1:9", "PATH": "", "JAVA_HOME": ""}
    assert turnlog(tmp_path, "doctor", "--fetch", **given).returncode == 0
    done = turnlog(tmp_path, "doctor", **given)
    assert done.stderr == "turnlog: not fit for a local stack: kafka\n"
    assert "unset TURNLOG_KAFKA" in done.stdout


@pytest.mark.parametrize("command", ["up", "down"])
def test_a_wrong_name_is_a_mistake_of_the_user(tmp_path: Path, command: str) -> None:
    done = turnlog(tmp_path / "home", command, "kafak")
    assert done.returncode == 2
    assert done.stderr == (
        "turnlog: there is no part 'kafak'; the parts are kafka s3 redis clickhouse keeper"
        " conversations usage-sink runs-sink ingest-sink locator finalizer\n"
    )
    assert not (tmp_path / "home").exists()


def test_down_says_in_a_pipe_that_nothing_ran(tmp_path: Path) -> None:
    done = turnlog(tmp_path, "down")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_home_that_is_a_file_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    done = turnlog(tmp_path / "home", "up", "redis")
    assert done.returncode == 2
    assert done.stderr.startswith("turnlog: ")
    assert "Not a directory" in done.stderr


def test_status_of_no_stack_shows_every_part_stopped(tmp_path: Path) -> None:
    done = turnlog(tmp_path, "status", "--json")
    assert done.returncode == 0
    shown = json.loads(done.stdout)
    assert shown["home"] == str(tmp_path)
    assert {part["state"] for part in shown["parts"]} == {"stopped"}
    assert [part["name"] for part in shown["parts"]][:4] == ["kafka", "s3", "redis", "clickhouse"]
    assert set(shown["parts"][0]) == {"name", "kind", "pid", "address", "state"}


def test_status_of_no_home_is_no_stack(tmp_path: Path) -> None:
    done = turnlog(tmp_path / "none", "status")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"turnlog: no stack at {tmp_path}/none: set TURNLOG_HOME, or run `turnlog up` here\n"
    )


def test_a_part_that_is_gone_is_a_fault_and_its_last_remark_no_reason(tmp_path: Path) -> None:
    file = PidFile(tmp_path, "kafka")
    file.write(Running(2**22 + 1, "another boot", {}))
    log = log_path(tmp_path, "kafka")
    log.parent.mkdir()
    log.write_text("--- started by turnlog 2026-12-01 03:00:00\nWARN of minutes ago\n")
    done = turnlog(tmp_path, "status")
    assert done.returncode == 1
    said = done.stdout.splitlines()
    assert f"kafka died: gone ({log})" in said and "`turnlog up` starts what died" in said
    assert "WARN" not in done.stdout


def test_a_view_that_cannot_be_asked_says_who_is_silent(tmp_path: Path) -> None:
    done = turnlog(tmp_path, "status", TURNLOG_KAFKA="127.0.0.1:9")
    assert done.returncode == 1
    assert "Kafka does not answer at 127.0.0.1:9" in done.stdout


def test_a_demo_of_a_file_that_is_missing_starts_nothing(tmp_path: Path) -> None:
    done = turnlog(tmp_path / "home", "demo", str(tmp_path / "missing.jsonl"))
    assert done.returncode == 2
    assert done.stderr == f"turnlog: {tmp_path}/missing.jsonl: No such file or directory\n"
    assert not (tmp_path / "home").exists()


def test_a_password_in_a_given_address_is_not_shown(tmp_path: Path) -> None:
    done = turnlog(tmp_path, "status", "--json", TURNLOG_REDIS="redis://me:secret@127.0.0.1:9/0")
    parts = {part["name"]: part for part in json.loads(done.stdout)["parts"]}
    assert parts["redis"]["address"] == "redis://***@127.0.0.1:9/0"
    assert (parts["redis"]["kind"], parts["redis"]["state"]) == ("external", "unreachable")
    assert "secret" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("said", "failing"),
    [
        ("ERROR streams: usage-sink crashed: ClickHouse does not answer", True),
        ("ERROR streams: usage-sink crashed: x\nINFO streams.batch: usage-sink reads", False),
        ("", False),
    ],
)
def test_a_worker_whose_last_word_is_a_crash_is_failing(
    tmp_path: Path, said: str, failing: bool
) -> None:
    log = log_path(tmp_path, "usage-sink")
    log.parent.mkdir()
    log.write_text(f"--- started by turnlog 2026-11-30 16:00:00\n{said}\n")
    assert workers.is_failing(tmp_path, "usage-sink") is failing


def test_the_whole_stack_is_up(stack: Config) -> None:
    done = turnlog(stack.home, "status", "--json")
    shown = json.loads(done.stdout)
    assert {part["state"] for part in shown["parts"]} == {"running"}
    assert len(shown["views"]) == 5
