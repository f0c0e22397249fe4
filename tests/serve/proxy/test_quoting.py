"""No process says anything of what it was sent or answered, however broken that is."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import pytest

from local.process import log_path
from turnlog.config import Config
from turnlog.keeper_client import create

ROOT = Path(__file__).parents[3]
CANARY = b"sk-CANARYLEAK-1234"
CHAT = b"/v1/chat/completions"
KEY = b"Authorization: Bearer " + CANARY
CHUNKED = b"Transfer-Encoding: chunked"
CLOSE = b"Connection: close"


def request(
    *headers: bytes, target: bytes = CHAT, method: bytes = b"POST", body: bytes = b""
) -> bytes:
    return b"\r\n".join([method + b" " + target + b" HTTP/1.1", b"Host: x", *headers, b"", body])


# Each is sent in parts, so that what breaks a body comes after its head.
REQUESTS: dict[str, tuple[bytes, ...]] = {
    "control in a value": (request(KEY + b"\x00"),),
    "control in a key": (request(b"x-api-key: " + CANARY + b"\x01"),),
    "control in a name": (request(b"x\x01-api-key: " + CANARY),),
    "no colon": (request(b"Authorization Bearer " + CANARY),),
    "space before the colon": (request(b"Authorization : Bearer " + CANARY),),
    "folded": (request(b"X: y", b" " + CANARY),),
    "long value": (request(b"x-api-key: " + CANARY * 2000),),
    "many headers": (request(*[b"X-%d: %b" % (n, CANARY) for n in range(500)]),),
    "long query": (request(target=CHAT + b"?key=" + CANARY * 2000),),
    "control in the query": (request(target=CHAT + b"?key=" + CANARY + b"\x01"),),
    "space in the query": (request(target=CHAT + b"?key= " + CANARY),),
    "a bad host": (request(target=b"http://[::1/v1?key=" + CANARY),),
    "no path": (request(target=b"v1?key=" + CANARY),),
    "two lengths": (request(KEY, b"Content-Length: 2", b"Content-Length: 3"),),
    "no length": (request(KEY, b"Content-Length: " + CANARY),),
    "both framings": (request(KEY, b"Content-Length: 2", CHUNKED),),
    "an unknown framing": (request(KEY, b"Transfer-Encoding: " + CANARY),),
    "a bad first chunk": (request(KEY, CHUNKED, body=CANARY + b"\r\n"),),
    "a bad chunk": (request(KEY, CHUNKED), b"5\r\nhello\r\n", CANARY + b"\r\n"),
    "a chunk too long": (request(KEY, CHUNKED), b"2\r\nhello" + CANARY + b"\r\n"),
    "a bad upload": (
        request(KEY, CHUNKED, target=b"/v1/files"),
        b"5\r\nhello\r\n",
        CANARY + b"\r\n",
    ),
    "a method": (request(method=CANARY),),
    "nonsense": (CANARY + b"\r\n\r\n",),
    "a long mark": (request(b"x-turnlog-user: " + CANARY * 100, CLOSE),),
}

OK = b"HTTP/1.1 200 OK\r\n"
ANSWERS: dict[str, tuple[bytes, ...]] = {
    "control-in-a-value": (OK + b"Content-Length: 2\r\nX-Key: " + CANARY + b"\x00\r\n\r\n{}",),
    "control-that-is-read": (OK + b"Content-Length: 2\r\nX-Key: " + CANARY + b"\x01\r\n\r\n{}",),
    "control-in-the-reason": (b"HTTP/1.1 200 " + CANARY + b"\x01\r\nContent-Length: 2\r\n\r\n{}",),
    "no-colon": (OK + b"Set-Cookie " + CANARY + b"\r\nContent-Length: 2\r\n\r\n{}",),
    "long": (OK + b"X-Key: " + CANARY * 2000 + b"\r\nContent-Length: 2\r\n\r\n{}",),
    "no-length": (OK + b"Content-Length: " + CANARY + b"\r\n\r\n{}",),
    "no-status": (b"HTTP/1.1 " + CANARY + b"\r\n\r\n",),
    "nonsense": (CANARY + b"\r\n\r\n",),
    "nothing": (b"",),
}
BODIES: dict[str, tuple[bytes, ...]] = {
    "bad-chunk": (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", CANARY + b"\r\n"),
    "cut": (OK + b"Content-Length: 200\r\n\r\n{}" + CANARY,),
    "cut-chunk": (OK + b"Transfer-Encoding: chunked\r\n\r\n40\r\n{}" + CANARY,),
}


async def say(port: int, *parts: bytes) -> bytes:
    """Send parts; return all that comes back until the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(30):
            for part in parts:
                writer.write(part)
                await asyncio.sleep(0.1)
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        await closed(writer)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@asynccontextmanager
async def provider() -> AsyncIterator[int]:
    """Answer as the path says, and close; give the port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        name = head.split()[1].partition(b"?")[0].rpartition(b"/")[2].decode()
        for part in {**ANSWERS, **BODIES}.get(name, ()):
            writer.write(part)
            await asyncio.sleep(0.1)
        if name not in ANSWERS and name not in BODIES:
            await reader.read()
        await closed(writer)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@contextmanager
def running(config: Config, output: Path, *arguments: str) -> Iterator[int]:
    """Run a command that says where it listens; give the port."""
    command = [sys.executable, "-m", "serve", *arguments, "--json"]
    environment = {**os.environ, "TURNLOG_HOME": str(config.home)}
    with (
        output.open("wb") as errors,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT
        ) as process,
    ):
        assert process.stdout is not None
        try:
            said = orjson.loads(process.stdout.readline())
            yield urlsplit(said.get("url") or said["address"]).port or 0
            process.terminate()
            assert CANARY not in process.stdout.read()
            assert process.wait(60) == 0
        finally:
            process.kill()


def status(said: bytes) -> int:
    return int(said.split()[1])


async def test_the_proxy_says_nothing_of_broken_requests_and_answers(
    stack: Config, tmp_path: Path
) -> None:
    await asyncio.to_thread(create, stack, "proxy-quoting")
    output = tmp_path / "output"
    async with provider() as upstream:
        arguments = ("proxy", "--org", "proxy-quoting", "--upstream")
        with running(stack, output, *arguments, f"http://127.0.0.1:{upstream}") as port:
            refused = await asyncio.gather(*(say(port, *parts) for parts in REQUESTS.values()))
            answered = [await say(port, asking(name)) for name in ANSWERS]
            broken = [await say(port, asking(name)) for name in BODIES]
    assert {name: status(said) for name, said in zip(REQUESTS, refused, strict=True)} == (
        dict.fromkeys(REQUESTS, 400)
    )
    assert {name: status(said) for name, said in zip(ANSWERS, answered, strict=True)} == (
        dict.fromkeys(ANSWERS, 502)
    )
    assert [said.startswith(OK) and b"{}" in said for said in broken] == [True] * len(BODIES)
    assert not [said for said in broken if said.endswith(b"0\r\n\r\n")]
    assert not [said for said in (*refused, *answered) if CANARY in said]
    assert CANARY not in output.read_bytes()


def asking(name: str) -> bytes:
    target = b"/v1/" + name.encode() + b"?key=" + CANARY
    return request(KEY, b"Content-Length: 2", CLOSE, target=target, body=b"{}")


async def test_neither_does_the_door(stack: Config, tmp_path: Path) -> None:
    output = tmp_path / "output"
    with running(stack, output, "serve", "--port", "0") as port:
        refused = await asyncio.gather(*(say(port, *parts) for parts in REQUESTS.values()))
    assert not [said for said in refused if CANARY in said or status(said) not in (400, 401, 404)]
    assert CANARY not in output.read_bytes()


@pytest.mark.parametrize("part", ["keeper", "clickhouse"])
async def test_nor_do_the_parts_of_the_stack(stack: Config, part: str) -> None:
    port = urlsplit(stack.need(part)).port or 0
    # They keep a connection open after what is no error of HTTP.
    broken = {name: parts for name, parts in REQUESTS.items() if len(parts) == 1}
    closing = [
        request(KEY, CLOSE) if "mark" in name else parts[0] for name, parts in broken.items()
    ]
    refused = await asyncio.gather(*(say(port, one) for one in closing))
    assert refused
    assert CANARY not in log_path(stack.home, part).read_bytes()
