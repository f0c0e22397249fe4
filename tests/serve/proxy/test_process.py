"""`turnlog proxy` as a process: on a real log, killed in mid-stream, told to stop, read back."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest
from click.testing import CliRunner

from serve.cli import cli
from serve.views import wait_for
from sinks.clickhouse.locator import LocatorTable
from streams.keys_reader import KeyReader
from tests.conftest import running_stack
from tests.provider import HEADER, SHARED, Provider, Recordings
from tests.provider.recordings import exchanges
from tests.serve.proxy.parts import CHAT, CHAT_PATH, until
from tests.serve.proxy.parts import read as read_body
from tests.serve.test_import import opened
from tests.streams import orphans
from tests.streams.log import read
from turnlog.config import Config
from turnlog.events import decode
from turnlog.keeper_client import create
from turnlog.providers import Source

STREAMS = SHARED / "streams.jsonl"
ROOT = Path(__file__).parents[3]


@contextmanager
def proxy(config: Config, *arguments: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Run the command; yield the process and its URL."""
    command = [sys.executable, "-m", "serve", "proxy", "--json", *arguments]
    environment = {**os.environ, "TURNLOG_HOME": str(config.home)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())["url"]
        finally:
            process.kill()


@pytest.fixture
def org(stack: Config) -> str:
    name = f"proxy-{uuid4().hex[:12]}"
    create(stack, name)
    return name


@asynccontextmanager
async def asked(url: str, data: bytes, **headers: str) -> AsyncIterator[aiohttp.ClientResponse]:
    async with (
        aiohttp.ClientSession(auto_decompress=False) as http,
        http.post(url, data=data, headers=headers) as answer,
    ):
        yield answer


async def test_every_recorded_stream_reads_back_from_the_log_byte_for_byte(
    stack: Config, org: str
) -> None:
    if not STREAMS.exists():
        pytest.skip(f"{STREAMS} is not on this machine: test_passing.py has the own samples")
    sources = list(exchanges(STREAMS))
    async with Provider.serving(Recordings(sources)) as provider:
        with proxy(stack, "--upstream", provider.url(), "--org", org) as (process, url):
            runs = await asyncio.gather(*(passed(url, source) for source in sources))
            process.terminate()
            assert await asyncio.to_thread(process.wait, 60) == 0
    contents = await asyncio.to_thread(stored, stack, org)
    expected = {run: (s.request, s.response) for run, s in zip(runs, sources, strict=True)}
    assert contents == expected


def stored(config: Config, org: str) -> dict[str, tuple[bytes, bytes]]:
    """Return request and response of each run of an org, opened from the log itself."""
    found: dict[str, dict[str, Any]] = {}
    with KeyReader(config, [org]) as keys:
        for message in read(config, "turnlog.runs", org):
            event = decode(message.value() or b"")
            if event.body["frame"]:
                found.setdefault(event.body["run"], {}).update(opened(keys, event))
    return {run: (held.get("request", b""), held["response"]) for run, held in found.items()}


async def passed(url: str, source: Source) -> str:
    """Pass one exchange; return its run."""
    async with (
        aiohttp.ClientSession(auto_decompress=False) as http,
        http.request(
            source.method,
            url + source.path,
            data=source.request or None,
            headers={HEADER: f"exchange={source.id}"},
        ) as answer,
    ):
        assert await read_body(answer) == (source.response, False)
        return answer.headers["x-turnlog-run"]


async def test_the_command_shows_what_the_proxy_recorded(stack: Config, org: str) -> None:
    async with Provider.serving() as provider:
        upstream = ("--upstream", provider.url(), "--provider", "openai", "--org", org)
        with proxy(stack, *upstream) as (_, url):
            async with asked(url + CHAT_PATH, CHAT) as answer:
                body, _ = await read_body(answer)
                run = answer.headers["x-turnlog-run"]
            await until_ended(stack, org, run)
    shown = CliRunner().invoke(cli, ["run", run, "--org", org, "--response", "--raw"])
    assert (shown.exit_code, shown.stdout_bytes) == (0, body)


async def until_ended(stack: Config, org: str, run: str) -> None:
    """Wait until the runs view has the end of a run."""

    def ended() -> bool:
        assert wait_for(stack, timeout_s=60) == {}
        shown = CliRunner().invoke(cli, ["run", run, "--org", org, "--json"])
        return shown.exit_code == 0 and json.loads(shown.output)["status"] == "completed"

    while not await asyncio.to_thread(ended):
        await asyncio.sleep(0.1)


async def test_told_to_stop_it_lets_open_streams_end(stack: Config, org: str) -> None:
    async with Provider.serving() as provider:
        with proxy(stack, "--upstream", provider.url(), "--org", org) as (process, url):
            async with asked(f"{url}/~pace_ms=100{CHAT_PATH}", CHAT) as answer:
                start = await answer.content.readany()
                process.terminate()
                rest, broke = await read_body(answer)
            assert await asyncio.to_thread(process.wait, 60) == 0
        assert not broke
        assert start + rest == provider.recordings.by_id["made-chat-no-usage"].response
    ((_, response),) = (await asyncio.to_thread(stored, stack, org)).values()
    assert response == start + rest


async def test_killed_in_mid_stream_what_was_shown_is_in_the_log_and_the_run_ends() -> None:
    settings: dict[str, Any] = {"run_deadline_s": 3.0, "tick_s": 0.3, "checkpoint_s": 1.0}
    parts = ("kafka", "clickhouse", "keeper", "runs-sink", "usage-sink", "finalizer")
    with running_stack(parts, **settings) as config:
        LocatorTable(config).ensure()
        await asyncio.to_thread(create, config, "local")
        async with Provider.serving() as provider:
            with proxy(config, "--upstream", provider.url()) as (process, url):
                async with asked(f"{url}/~stall=2000{CHAT_PATH}", CHAT) as answer:
                    run = answer.headers["x-turnlog-run"]
                    await answer.content.readexactly(2000)
                    await asyncio.to_thread(until_shown, config, run)
                    os.kill(process.pid, signal.SIGKILL)
                    _, broke = await read_body(answer)
            assert broke
            await until(lambda: provider.asked[-1].ended)
        end = await asyncio.to_thread(orphans.ended, config, "local", run)
        assert end.body["provisional"] is True
        output = await asyncio.to_thread(orphans.output_of, config, "local", run)
        assert output[0]["text"].startswith("Yes")


def until_shown(config: Config, run: str) -> None:
    topic = "turnlog.run-chunks"
    orphans.until(
        lambda: [
            event
            for event in orphans.events(config, "local", topic, run)
            if event.type == "chunk.batch"
        ],
        "no output reached the log",
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("--upstream", "http://127.0.0.1:1", "--org", "nobody-knows"),
        ("--upstream", "http://127.0.0.1:1", "--drain-s", "-1"),
    ],
    ids=["org", "drain"],
)
def test_wrong_use_is_one_line_and_exit_2(stack: Config, arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "serve", "proxy", *arguments]
    environment = {**os.environ, "TURNLOG_HOME": str(stack.home)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
