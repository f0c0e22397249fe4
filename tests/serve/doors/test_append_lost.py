"""What the door loses, and what it does not: its own process, and Redis."""

import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from hashlib import sha1
from typing import Any
from urllib.parse import urlsplit

from serve.appending.batch import LINGER_S
from serve.appending.seen import _MARK
from serve.conversation_api import read_conversation
from serve.views import wait_for
from tests.serve.doors.door import Door, eventually, new_key, running_door
from turnlog.apikeys import Role
from turnlog.config import Config

ORG = "append-lost"
MARK = sha1(_MARK.encode(), usedforsecurity=False).hexdigest().encode()


def turn(conversation: str) -> dict[str, Any]:
    event = {"id": uuid.uuid4().hex, "type": "turn.appended", "conversation": conversation}
    return event | {"content": {"text": "once"}}


def texts(stack: Config, conversation: str) -> list[Any]:
    assert not wait_for(stack, ["conversations"])
    return [row["text"] for row in read_conversation(stack, ORG, conversation).turns]


def usable(door: Door, key: str) -> None:
    eventually(lambda: door.ask("POST", "/v1/events", key, []).status == 200)


class Forwarder:
    """Stands between a server and Redis; holds back marks and calls `on_mark` instead."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._target = parts.hostname or "", parts.port or 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"redis://127.0.0.1:{self._listener.getsockname()[1]}{parts.path}"
        self.on_mark: Callable[[], object] = int
        self.armed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            threading.Thread(target=self._pass, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near, False), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, from_server: bool) -> None:
        with source, target:
            try:
                while data := source.recv(1 << 16):
                    if from_server and self.armed and MARK in data:
                        self.on_mark()
                        return
                    target.sendall(data)
            except OSError:
                return

    def close(self) -> None:
        self._listener.close()


@contextmanager
def forwarder(stack: Config) -> Iterator[Forwarder]:
    made = Forwarder(stack.redis)
    try:
        yield made
    finally:
        made.close()


def test_a_server_killed_between_write_and_mark_loses_and_doubles_nothing(stack: Config) -> None:
    key, event = new_key(stack, ORG, Role.PRODUCER), turn("killed")
    with forwarder(stack) as between, running_door(stack, TURNLOG_REDIS=between.address) as door:
        usable(door, key)
        between.on_mark, between.armed = door.process.kill, True
        with suppress(OSError):
            door.ask("POST", "/v1/events", key, [event])
        door.process.wait(30)
    assert texts(stack, "killed") == ["once"]
    with running_door(stack) as door:
        usable(door, key)
        answers = [door.ask("POST", "/v1/events", key, [event]).json for _ in range(2)]
    outcomes = [answer["results"][0]["outcome"] for answer in answers]
    assert outcomes == ["accepted", "duplicate"]
    assert texts(stack, "killed") == ["once"]


def test_without_redis_events_are_accepted_and_the_fold_decides(stack: Config) -> None:
    key, event = new_key(stack, ORG, Role.PRODUCER), turn("no-redis")
    with running_door(stack, TURNLOG_REDIS="redis://127.0.0.1:1/0") as door:
        usable(door, key)
        other = event | {"content": {"text": "other"}}
        answers = []
        for each in (event, event, other):
            answers.append(door.ask("POST", "/v1/events", key, [each]))
            time.sleep(LINGER_S + 0.2)  # so long the process itself remembers
        began = door.ask("POST", "/v1/runs", key, {"provider": "openai"})
        run = began.json["run"]
        ended = door.ask("POST", f"/v1/runs/{run}/complete", key, {"response": "x"})
    assert [answer.json["results"][0]["outcome"] for answer in answers] == ["accepted"] * 3
    assert (began.status, ended.json["status"]) == (201, "completed")
    assert texts(stack, "no-redis") == ["once"]


def test_one_id_at_two_servers_at_once_is_accepted_once(stack: Config) -> None:
    key = new_key(stack, ORG, Role.PRODUCER)
    with running_door(stack) as one, running_door(stack) as two, ThreadPoolExecutor(4) as pool:
        usable(one, key)
        usable(two, key)
        for _ in range(10):
            event = turn("two-servers")
            asked = [event | {"content": {"text": text}} for text in "abcd"]
            answers = pool.map(
                lambda each: each[0].ask("POST", "/v1/events", key, [each[1]]).json,
                zip((one, two, one, two), asked, strict=True),
            )
            found = sorted(answer["results"][0]["status"] for answer in answers)
            assert found == [201, 409, 409, 409]
    assert len(texts(stack, "two-servers")) == 10
