"""What callers get wrong, and disks: one clear error each, and the neighbours are whole."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.turnlog.producer.parts import ORG, Opened, content_of, later_ns, producer_in_memory
from turnlog import Producer
from turnlog.config import Config
from turnlog.errors import TooLarge, UsageError
from turnlog.keeper_client import create, credential_of
from turnlog.keys import Subject

STACK_ORG = "producer-bad"


async def neighbour(opened: Opened) -> None:
    """A run that is as it should be, and is written whole."""
    async with opened.producer.run(org=ORG, request=b"{}") as run:
        run.chunk("whole")
        await run.complete(b"{}", {"output_text": 1})
    ends = [body for body in opened.transport.of("run.completed") if body["run"] == run.run]
    assert [end["output_chars"] for end in ends] == [5]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"org": 1}, "org must be text"),
        ({"org": ORG, "user": b"ann"}, "user must be text"),
        ({"org": ORG, "streaming": "yes"}, "streaming must be True or False"),
        ({"org": ORG, "request": object()}, "request must be bytes, text or a mapping"),
        ({"org": ORG, "request": {"a": object()}}, "request holds what JSON cannot"),
        ({"org": ORG, "versions": {"prompt": 3}}, "versions must be a mapping of text to text"),
        ({"org": ORG, "temperature": 1}, "a run has no field temperature"),
        ({"user": "ann"}, "a run needs org"),
        ({"org": "another"}, "the credential does not name org 'another'"),
        ({"org": ""}, "the credential does not name org ''"),
        ({"org": ORG, "project": "another"}, "org acme has no project 'another'"),
        ({"org": ORG, "user": "\ud800"}, "user is not Unicode text"),
        ({"org": ORG, "conversation": "a\udfff"}, "conversation is not Unicode text"),
        ({"org": ORG, "input": "hi"}, "a turn needs a conversation"),
    ],
)
async def test_wrong_fields_of_a_run_are_named(fields: dict[str, Any], said: str) -> None:
    async with producer_in_memory() as opened:
        with pytest.raises(UsageError, match=said):
            opened.producer.run(**fields)
        assert opened.transport.kept == []
        await neighbour(opened)


@pytest.mark.parametrize(
    "chunk",
    [(b"bytes",), (None,), ("text", "0"), ("text", 0, "video"), ("text", -1), ("text", 2**31)],
    ids=["bytes", "none", "choice", "kind", "below", "above"],
)
async def test_a_chunk_of_a_wrong_type_is_refused_and_the_run_goes_on(chunk: Any) -> None:
    async with producer_in_memory() as opened, opened.producer.run(org=ORG) as run:
        run.chunk("be")
        with pytest.raises(UsageError, match="a chunk is str"):
            run.chunk(*chunk)
        run.chunk("fore")
        await run.complete()
        assert opened.transport.of("run.completed")[0]["output_chars"] == 6


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"call": object()}, "call is a whole number"),
        ({"call": True}, "call is a whole number"),
        ({"call": 2**64}, "call is a whole number"),
        ({"call": -1}, "call is a whole number"),
        ({"id": 7}, "id and name of a tool call are str"),
        ({"name": b"f"}, "id and name of a tool call are str"),
        ({"at_ns": "now"}, "at_ns is a whole number"),
        ({"at_ns": 1.5}, "at_ns is a whole number"),
    ],
)
async def test_a_wrong_delta_of_a_tool_call_costs_no_neighbour_its_chunks(
    more: dict[str, Any], said: str
) -> None:
    async with producer_in_memory() as opened, opened.producer.run(org=ORG) as run:
        async with opened.producer.run(org=ORG) as other:
            with pytest.raises(UsageError, match=said):
                run.chunk("{}", 0, "tool_call", **more)
            other.chunk("whole")
            await opened.producer.tick()
            await other.complete()
        run.chunk("goes on")
        await run.complete()
        ends = opened.transport.of("run.completed")
        assert [end["output_chars"] for end in ends] == [5, 7]


@pytest.mark.parametrize("at_ns", [-(2**70), -1, 2**70], ids=["long ago", "before", "to come"])
async def test_a_chunk_of_another_time_is_one_of_the_run(at_ns: int) -> None:
    async with producer_in_memory() as opened, opened.producer.run(org=ORG) as run:
        run.chunk("ab", at_ns=at_ns)
        run.tick(later_ns(1))
        [started] = opened.transport.of("run.started")
        assert 0 <= started["ttft_us"] < 60e6
        assert len(opened.transport.of("chunk.batch")) == 1
        await run.complete()


@pytest.mark.parametrize(
    "value", [2**70, object(), {1: "a"}, {"a": {2, 3}}], ids=["int", "object", "key", "set"]
)
async def test_content_that_no_frame_holds_is_refused_before_it_is_numbered(value: Any) -> None:
    async with producer_in_memory() as opened:
        async with opened.producer.run(org=ORG) as run:
            locator = run.key_locator
            subject = Subject(ORG, "", "", run.run, "o")
            body = {"org": ORG, "run": run.run, "writer_epoch": 1, "seq": 99}
            with pytest.raises(UsageError, match="what msgpack cannot"):
                opened.producer.append("run.created", body, {"a": value}, subject, locator)
            await run.complete()
        await neighbour(opened)


async def test_nothing_follows_the_end_of_a_run() -> None:
    async with producer_in_memory() as opened:
        async with opened.producer.run(org=ORG) as run:
            await run.complete()
            with pytest.raises(UsageError, match="not open: it takes no chunk"):
                run.chunk("late")
            for end in (run.complete, run.fail, run.cancel, run.interrupt):
                with pytest.raises(UsageError, match="is not open: it cannot be"):
                    await end()
        ends = [type for type in opened.transport.types() if type.startswith("run.")]
        assert ends == ["run.created", "run.completed"]


@pytest.mark.parametrize(
    "usage",
    [{"output_text": -1}, {"output_text": "2"}, {"output_text": 1.5}, {"output_text": 2**70}],
    ids=["negative", "text", "half", "huge"],
)
async def test_a_usage_that_is_none_is_refused_and_the_run_is_still_open(usage: Any) -> None:
    async with producer_in_memory() as opened, opened.producer.run(org=ORG) as run:
        run.chunk("shown")
        with pytest.raises(UsageError):
            await run.complete(b"{}", usage)
        await run.complete(b"{}", {"output_text": 1})
        assert len(opened.transport.of("usage.recorded")) == 1
        assert opened.transport.of("run.completed")[0]["output_chars"] == 5


async def test_lone_surrogates_and_nul_are_content_like_any_other() -> None:
    texts = ["\ud83d", "\ude00", "\0", "é\0"]
    async with producer_in_memory() as opened:
        async with opened.producer.run(org=ORG, model="m\0", user="u\0", request="\ud83d\0") as run:
            for text in texts:
                run.chunk(text)
            await run.complete("\udc00\0".encode("utf-8", "surrogatepass"))
        (end,) = opened.transport.of("run.completed")
        (created,) = opened.transport.of("run.created")
        content = content_of(opened.grant, "run.completed", end, "o")
        assert content["output"][0]["text"] == "".join(texts)
        assert end["output_chars"] == 5
        assert (created["model"], created["user"][:2]) == ("other", "x_")
        request = content_of(opened.grant, "run.created", created, "q")
        assert request["source"] == {"model": "m\0", "user": "u\0"}
        await neighbour(opened)


async def test_a_chunk_of_100_mb_is_batched_but_is_too_large_for_the_end() -> None:
    async with producer_in_memory() as opened:
        with pytest.raises(TooLarge):
            async with opened.producer.run(org=ORG) as run:
                run.chunk("x" * 100_000_000)
                run.tick(later_ns(1))
                await run.complete(b"{}", {"output_text": 1})
        batches = opened.transport.of("chunk.batch")
        assert sum(batch["chars"] for batch in batches) == 100_000_000
        ends = [type for type in opened.transport.types() if type == "run.failed"]
        assert ends == ["run.failed"]  # by the exception that left the block
        await neighbour(opened)


# The disk.


async def test_a_spool_that_cannot_be_written_is_named_when_opening(
    stack: Config, tmp_path: Path
) -> None:
    create(stack, STACK_ORG)
    (tmp_path / "file").write_text("")
    # /proc takes no folder of anybody, root included; as a read-only file system takes none.
    for spool in (Path("/proc/turnlog"), tmp_path / "file"):
        config = stack.model_copy(update={"spool": spool})
        with pytest.raises(UsageError, match=f"spool {spool}: "):
            async with Producer.open(config, credential_of(stack, STACK_ORG)):
                pass


FULL = """
import asyncio, resource, sys
from turnlog import Producer
from turnlog.config import load
from turnlog.errors import SpoolFull
from turnlog.keeper_client import credential_of
config = load()
async def main():
    # Bytes a file: what is written beyond is refused by the system, as by a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
    async with Producer.open(config, credential_of(config, sys.argv[1]), close_timeout_s=0.2) as p:
        begun = 0
        try:
            while begun < 1_000:
                async with p.run(org=sys.argv[1], request="r" * 3000) as run:
                    begun += 1
                    run.chunk("shown")
                    await run.complete()
        except SpoolFull as error:
            print("refused", error)
        print(begun, p.state.rung, sum(p.state.spool_events.values()) > begun)
asyncio.run(main())
"""


async def test_a_full_disk_is_an_error_at_once_and_loses_nothing_that_was_accepted(
    stack: Config, tmp_path: Path
) -> None:
    create(stack, STACK_ORG)
    config = stack.model_copy(update={"spool": tmp_path})
    async with Producer.open(config, credential_of(config, STACK_ORG)):
        pass
    away = {
        "TURNLOG_HOME": str(stack.home),
        "TURNLOG_KAFKA": "127.0.0.1:1",
        "TURNLOG_SPOOL": str(tmp_path),
        "TURNLOG_SPOOL_AFTER_MS": "400",
    }
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", FULL, STACK_ORG],
        env={**os.environ, **away}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    refused, state = done.stdout.splitlines()
    assert refused == "refused the spool cannot be written: File too large"
    begun, rung, more = state.split()
    assert 1 < int(begun) < 1_000
    assert more == "True"
    assert rung == "refusing"
    async with Producer.open(config, credential_of(config, STACK_ORG)) as heir:
        assert heir.state.spool_events["runs"] >= 2 * (int(begun) - 1)
        async with asyncio.timeout(60):
            while heir.state.spool_events:
                await asyncio.sleep(0.05)
