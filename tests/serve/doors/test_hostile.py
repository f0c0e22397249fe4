"""What a hostile client sends to an open port: each gets its 4xx, and costs a bounded amount."""

import asyncio
import gzip
import json
import os
import socket
import time
import zlib
from collections.abc import AsyncIterator

import orjson
import psutil
import pytest
import zstandard
from aiohttp import web

from serve.doors import body, protocol
from serve.doors.body import read_json
from serve.doors.callers import Callers
from serve.doors.keys import KeyBook, Keys
from serve.doors.producers import Producers
from serve.doors.route import Caller, Role, Route
from serve.doors.running import answering
from serve.doors.server import Server
from sinks.redis import connect_async
from tests.serve.doors.door import Door, new_key
from turnlog.apikeys import key_digest, key_id
from turnlog.apikeys import new_key as fresh_key
from turnlog.config import load
from turnlog.events import record
from turnlog.ids import event_id

LIMIT = 1 << 20
KEY = fresh_key()


async def echo(request: web.Request, caller: Caller) -> web.Response:
    value = await read_json(request)
    return web.Response(body=orjson.dumps({"size": len(str(value))}))


async def fail(request: web.Request, caller: Caller) -> web.Response:
    raise RuntimeError("the customer's secret text")


ROUTES = [
    Route("POST", "/echo", frozenset(Role), echo, {}),
    Route("POST", "/fail", frozenset(Role), fail, {}),
]


def book() -> KeyBook:
    made = KeyBook()
    value = {"sha256": key_digest(KEY), "project": "p", "role": "producer"}
    entry = {
        "org": "acme",
        "event_id": event_id("acme", "", "directory.entry", "k"),
        "kind": "apikey",
        "id": key_id(KEY),
        "value": value,
        "occurred_at_us": 1,
    }
    made.take(record("directory.entry", entry).value)
    return made


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A server of two routes, without a stack: what is tested is in front of every route."""
    config = load(redis="redis://127.0.0.1:9/0", kafka="127.0.0.1:9")
    redis = connect_async(config)
    server = Server(config, Producers(config), redis, Callers(Keys(book())))
    async with answering(server, "127.0.0.1", 0, ROUTES) as bound:
        yield bound
    await redis.aclose()


class Said:
    """An answer as it came over the wire."""

    def __init__(self, data: bytes) -> None:
        head, _, self.body = data.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        self.status = int(lines[0].split()[1]) if lines[0] else 0
        self.headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])
        }

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["title"])


async def say(port: int, *parts: bytes, pause_s: float = 0) -> Said:
    """Send bytes, and return the first answer, whether it comes before or after the last of them.

    It has status 0 where the server closed without one.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.create_task(hear(reader))
    try:
        for part in parts:
            if not answer.done():
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(pause_s)
        return await answer
    except ConnectionError:
        return await answer
    finally:
        writer.close()


async def hear(reader: asyncio.StreamReader) -> Said:
    try:
        async with asyncio.timeout(30):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(Said(head).headers.get("content-length", 0))
            return Said(head + await reader.readexactly(length))
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        return Said(getattr(error, "partial", b""))


def post(body: bytes, *headers: str, path: str = "/echo") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {KEY}", *headers]
    if not any(line.lower().startswith(("content-length", "transfer")) for line in lines):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


async def test_an_honest_request_is_answered(port: int) -> None:
    said = await say(port, post(b'{"a": 1}'))
    assert said.status == 200
    assert said.headers["server"] == "turnlog"
    assert said.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in said.headers["content-security-policy"]


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"a": 1, "a": 2}',
        b"[NaN]",
        b"[1e999]",
        b'"\xff\xfe"',
        b'"\\ud800"',
        b"1" * 10_000,
        b"",
    ],
    ids=lambda text: repr(text[:12]),
)
async def test_hostile_json_is_400(port: int, text: bytes) -> None:
    said = await say(port, post(text))
    assert (said.status, said.code) == (400, "invalid_json")


BOMB = bytes(100 << 20)
BOMBS = {
    "gzip": gzip.compress(BOMB, 9),
    "deflate": zlib.compress(BOMB, 9),
    "zstd": zstandard.ZstdCompressor(level=3).compress(BOMB),
}


@pytest.mark.parametrize("encoding", BOMBS)
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_a_bomb_is_413_and_costs_less_than_twice_the_limit(
    port: int, encoding: str, chunked: bool
) -> None:
    bomb, process = BOMBS[encoding], psutil.Process()
    before = process.memory_info().rss
    encoded = f"Content-Encoding: {encoding}"
    if chunked:
        framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(bomb), bomb)
        said = await say(port, post(framed, encoded, "Transfer-Encoding: chunked"))
    else:
        said = await say(port, post(bomb, encoded))
    assert (said.status, said.code) == (413, "too_large")
    # Beside the limit: buffers of the sockets, both ends of which are in this process.
    assert process.memory_info().rss - before < 2 * LIMIT + (6 << 20)


async def test_a_body_over_the_limit_is_413_before_and_while_it_comes(port: int) -> None:
    assert (await say(port, post(b"", "Content-Length: 99999999999"))).status == 413
    chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    assert (await say(port, post(chunk * 20, "Transfer-Encoding: chunked"))).status == 413


@pytest.mark.parametrize("named", ["br", "gzip, gzip", "gzip,identity", "x", "", "snappy"])
async def test_other_and_stacked_encodings_are_415(port: int, named: str) -> None:
    said = await say(port, post(b"{}", f"Content-Encoding: {named}"))
    assert (said.status, said.code) == (415, "encoding")
    assert said.headers["accept-encoding"] == "gzip, zstd, deflate"
    twice = post(b"{}", "Content-Encoding: gzip", "Content-Encoding: gzip")
    assert (await say(port, twice)).status == 415


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        post(b"{}", "Content-Length: 2", "Content-Length: 3"),
        post(b"{}", "Content-Length: -1"),
        post(b"{}", "Content-Length: 2", "Transfer-Encoding: chunked"),
        post(b"zz\r\n{}\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
        b"GET / HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n",
    ],
    ids=[
        "10,000 headers",
        "long path",
        "long header",
        "tls",
        "nonsense",
        "version",
        "two lengths",
        "negative length",
        "length and chunked",
        "bad chunk",
        "bad header",
    ],
)
async def test_what_is_no_http_is_400_and_says_nothing_of_us(port: int, raw: bytes) -> None:
    said = await say(port, raw)
    assert said.status == 400
    assert said.headers["content-type"].startswith("application/problem+json")
    assert said.headers["server"] == "turnlog"
    assert b"aiohttp" not in said.body and b"Python" not in said.body


async def test_a_body_that_trickles_in_is_408(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BODY_S", 0.5)
    head = post(b"", "Content-Length: 1000")
    said = await say(port, head, *[b" "] * 10, pause_s=0.1)
    assert (said.status, said.code) == (408, "timeout")


async def test_a_head_that_trickles_in_is_408(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_S", 0.5)
    said = await say(port, *(bytes((byte,)) for byte in b"GET /"), *[b"x"] * 20, pause_s=0.05)
    assert (said.status, said.code) == (408, "timeout")


async def test_the_clock_of_a_head_does_not_run_for_what_follows(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_S", 0.3)
    whole = post(b'{"a": "' + b"x" * 20 + b'"}')
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(2):
        head = whole.index(b"\r\n\r\n") + 4
        writer.write(whole[:20])
        await asyncio.sleep(0.05)
        writer.write(whole[20:head])
        for byte in whole[head:]:
            await asyncio.sleep(0.02)
            writer.write(bytes((byte,)))
        said = Said(await reader.readuntil(b"\r\n\r\n"))
        assert said.status == 200
        await reader.readexactly(int(said.headers["content-length"]))
        await asyncio.sleep(0.4)
    writer.close()


async def test_an_error_that_nobody_foresaw_says_nothing_of_what_was_sent(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    said = await say(port, post(b"{}", path="/fail"))
    assert (said.status, said.code) == (500, "internal")
    assert b"secret" not in said.body
    assert "RuntimeError at" in caplog.text and "secret" not in caplog.text


async def test_a_body_that_breaks_off_harms_nobody_else(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(post(b"{", "Content-Length: 100"))
    await writer.drain()
    writer.close()
    assert (await say(port, post(b"{}"))).status == 200


# -- the real server ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def viewer(door: Door) -> str:
    return new_key(door.config, f"hostile_{os.getpid()}", Role.VIEWER)


def test_many_half_open_connections_keep_nobody_out(door: Door) -> None:
    held = [socket.create_connection(("127.0.0.1", door.port)) for _ in range(500)]
    for connection in held:
        connection.send(b"POST /v1/events HTTP/1.1\r\nHost: x\r\n")
    assert door.ask("GET", "/healthz").status == 200
    for connection in held:
        connection.close()


def test_missing_foreign_and_odd_names_of_runs_get_one_answer(door: Door, viewer: str) -> None:
    until = time.monotonic() + 60
    while door.ask("GET", "/v1/runs/none", viewer).status != 404:
        assert time.monotonic() < until
    names = ["none", "run_01", "x" * 64, "a%20b", "%00", "%F0%9F%98%80", "%2e%2e%2f", "x" * 1000]
    bodies = {door.ask("GET", f"/v1/runs/{name}", viewer).body for name in names}
    assert len(bodies) == 1
