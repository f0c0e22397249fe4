"""A server process on the stack that all tests share, and how tests talk to it."""

import http.client
import json
import os
import string
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from turnlog.apikeys import Role, key_id
from turnlog.apikeys import new_key as fresh_key
from turnlog.config import Config
from turnlog.keeper_client import create, create_apikey


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Door(NamedTuple):
    config: Config
    port: int
    process: subprocess.Popen[str]

    def ask(
        self,
        method: str,
        path: str,
        key: str | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request on a connection of its own; a body that is no bytes goes as JSON."""
        sent = dict(headers or {})
        if key is not None:
            sent["Authorization"] = f"Bearer {key}"
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.headers), answer.read())
        finally:
            connection.close()

    def is_ready(self) -> bool:
        return self.ask("GET", "/readyz").status == 200


@contextmanager
def running_door(config: Config, **environment: str) -> Iterator[Door]:
    """Run `turnlog serve` as a process of its own, ready, until the block is left."""
    with started_door(config, **environment) as door:
        eventually(door.is_ready)
        yield door


@contextmanager
def started_door(config: Config, **environment: str) -> Iterator[Door]:
    """Run `turnlog serve` until the block is left; SIGTERM ends it well."""
    process = subprocess.Popen(
        [sys.executable, "-m", "serve", "serve", "--port", "0", "--json"],
        env={**os.environ, "TURNLOG_HOME": str(config.home), **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield Door(config, json.loads(process.stdout.readline())["port"], process)
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def eventually(holds: Any, seconds: float = 60) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it never held"
        time.sleep(0.05)


def new_key(config: Config, org: str, role: Role, project: str = "default") -> str:
    """Return a new key of an org, which is made where there is none."""
    create(config, org, project)
    return create_apikey(config, org, project, role)


def forged(key: str) -> str:
    """Return a well-formed key with the id of another and a secret of its own."""
    head = f"tlk_{key_id(key)}_{fresh_key().split('_')[2]}"
    number, digits = zlib.crc32(head.encode()), []
    for _ in range(6):
        number, digit = divmod(number, 62)
        digits.append((string.digits + string.ascii_uppercase + string.ascii_lowercase)[digit])
    return f"{head}_{''.join(reversed(digits))}"
