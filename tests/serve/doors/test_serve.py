"""`turnlog serve`: it says where it is, reports on itself, and drains."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from serve.doors.route import Role
from tests.serve.doors.door import Door, eventually, new_key, running_door, started_door
from turnlog.config import Config


@pytest.fixture
def own_door(stack: Config) -> Iterator[Door]:
    with running_door(stack, TURNLOG_DRAIN_S="20") as running:
        yield running


def test_it_is_healthy_and_ready_and_names_its_parts(door: Door) -> None:
    assert door.ask("GET", "/healthz").json == {"ok": True}
    ready = door.ask("GET", "/readyz")
    assert ready.status == 200
    said = ready.json
    assert said["ready"] is True and said["draining"] is False
    assert said["parts"] == {"kafka": True, "keeper": True, "redis": True}
    assert said["keys"]["state"] == "ok"
    assert said["ladder"]["rung"] == "broker"


def test_metrics_are_what_prometheus_reads(door: Door) -> None:
    door.ask("GET", "/v1/runs/secret_name?q=secret")
    answer = door.ask("GET", "/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    text = answer.body.decode()
    assert "secret" not in text
    counted = r'turnlog_http_requests_total{route="/v1/runs/{run}",method="GET",status="401"} [1-9]'
    assert re.search(counted, text)
    sample = re.compile(
        r'[a-z_]+(\{[a-z]+="(?:[^"\\\n]|\\.)*"(?:,[a-z]+="(?:[^"\\\n]|\\.)*")*\})? -?[0-9.e+-]+'
    )
    for line in text.rstrip("\n").split("\n"):
        assert line.startswith(("# HELP ", "# TYPE ")) or sample.fullmatch(line), line
    buckets = re.findall(r'duration_seconds_bucket{route="/healthz",le="([^"]+)"} (\d+)', text)
    counts = [int(count) for _, count in buckets]
    assert counts == sorted(counts) and buckets[-1][0] == "+Inf"


def test_answers_carry_security_headers_and_no_versions(door: Door) -> None:
    for path in ("/healthz", "/docs", "/openapi.json", "/nothing", "/v1/runs/x"):
        headers = door.ask("GET", path).headers
        assert headers["Server"] == "turnlog"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        assert "default-src 'none'" in headers["Content-Security-Policy"]


def begun(door: Door) -> http.client.HTTPConnection:
    """Return a connection on which a request is open: its body is not all there."""
    connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=60)
    key = new_key(door.config, f"drain_{os.getpid()}", Role.PRODUCER)
    eventually(lambda: door.ask("GET", "/v1/runs/x", key).status == 404)
    connection.putrequest("POST", "/v1/events")
    connection.putheader("Authorization", f"Bearer {key}")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", "13")
    connection.endheaders(b'{"events": ')
    return connection


def test_on_sigterm_open_requests_finish_and_new_ones_are_told_to_go_elsewhere(
    own_door: Door,
) -> None:
    connection = begun(own_door)
    eventually(lambda: b"open_requests 2" in own_door.ask("GET", "/metrics").body)
    own_door.process.send_signal(signal.SIGTERM)
    eventually(lambda: own_door.ask("GET", "/readyz").status == 503)
    refused = own_door.ask("GET", "/v1/runs/x", "tlk_any")
    assert (refused.status, refused.json["title"]) == (503, "draining")
    assert refused.headers["Retry-After"]
    assert own_door.ask("GET", "/readyz").json["draining"] is True
    assert own_door.process.poll() is None
    connection.send(b"[]")
    assert connection.getresponse().status in (200, 207, 400)
    connection.close()
    assert own_door.process.wait(30) == 0


def test_a_request_that_does_not_end_is_cut_off_at_the_deadline(stack: Config) -> None:
    with running_door(stack, TURNLOG_DRAIN_S="0.5") as door:
        connection = begun(door)
        eventually(lambda: b"open_requests 2" in door.ask("GET", "/metrics").body)
        door.process.send_signal(signal.SIGTERM)
        assert door.process.wait(30) == 0
        connection.close()


def test_a_port_that_is_taken_is_said_in_one_line(door: Door) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "serve", "serve", "--port", str(door.port)],
        env={**os.environ, "TURNLOG_HOME": str(door.config.home)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{door.port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_first_line_is_the_address(stack: Config) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "serve", "serve", "--port", "0", "--json"],
        env={**os.environ, "TURNLOG_HOME": str(stack.home)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    said = json.loads(process.stdout.readline())
    assert said["address"] == f"http://127.0.0.1:{said['port']}"
    assert said["pid"] == process.pid
    process.terminate()
    assert process.wait(30) == 0
    process.stdout.close()


def test_without_kafka_it_starts_and_says_that_it_is_not_ready(stack: Config) -> None:
    environment = {"TURNLOG_KAFKA": "127.0.0.1:9", "TURNLOG_SPOOL": str(stack.home / "no-spool")}
    with started_door(stack, **environment) as door:
        ready = door.ask("GET", "/readyz")
        assert ready.status == 503
        assert ready.json["parts"]["kafka"] is False
        assert ready.json["keys"]["state"] == "unknown"
        refused = door.ask("GET", "/v1/runs/x", "tlk_x")
        assert (refused.status, refused.json["title"]) == (503, "not_ready")
        assert door.ask("GET", "/healthz").status == 200
    assert door.process.returncode == 0
