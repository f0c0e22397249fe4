"""The OpenAPI document is true: schemathesis holds the running server to it."""

import os
import subprocess
import sys
from pathlib import Path

from serve.doors.route import Role
from tests.serve.doors.door import Door, eventually, new_key

SECONDS = 40


def test_schemathesis_finds_nothing(door: Door, tmp_path: Path) -> None:
    key = new_key(door.config, f"schema_{os.getpid()}", Role.ADMIN)
    eventually(lambda: door.ask("GET", "/v1/runs/x", key).status == 404)
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "st"),
            "run",
            f"http://127.0.0.1:{door.port}/openapi.json",
            "--header",
            f"Authorization: Bearer {key}",
            "--checks",
            "all",
            "--seed",
            "1",
            "--max-examples",
            "20",
            "--max-time",
            str(SECONDS),
            "--continue-on-failure",
            "--suppress-health-check",
            "all",
            "--no-color",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert door.process.poll() is None
