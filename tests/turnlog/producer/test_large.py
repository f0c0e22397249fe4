"""Content too large for a Kafka record: kept on the disk, put into S3, read back byte for byte."""

import asyncio
import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest

from serve.conversation_api import read_conversation
from serve.views import wait_for
from tests.turnlog.producer.parts import ORG as MEMORY_ORG
from tests.turnlog.producer.parts import producer_in_memory
from turnlog import Producer
from turnlog.config import Config
from turnlog.errors import FrameError, TooLarge
from turnlog.events import decode
from turnlog.ids import new_id
from turnlog.kafka import read_all
from turnlog.keeper_client import create, credential_of
from turnlog.keys import MAX_FRAME_BYTES
from turnlog.keys.outside import point_to, pointer_in

ORG = "producer-large"
LONG_S = 60.0


def picture(size: int) -> bytes:
    """A request with an image of so many bytes, as providers take it."""
    data = base64.b64encode(os.urandom(size * 3 // 4))
    return b'{"messages":[{"role":"user","content":[{"image":"' + data + b'"}]}]}'


async def settled(producer: Producer) -> None:
    async with asyncio.timeout(LONG_S):
        while producer.state.spool_events or producer.state.unacknowledged:
            await asyncio.sleep(0.05)


def raw(config: Config, run: str, part: str) -> bytes:
    command = [sys.executable, "-m", "serve", "run", run, "--org", ORG, part, "--raw"]
    environment = {**os.environ, "TURNLOG_HOME": str(config.home)}
    return subprocess.run(command, env=environment, check=True, capture_output=True).stdout


async def test_a_request_of_20_mb_comes_back_byte_for_byte(stack: Config) -> None:
    create(stack, ORG)
    request, response = picture(20_000_000), picture(3_000_000)
    async with Producer.open(stack, credential_of(stack, ORG), close_timeout_s=60) as producer:
        async with producer.run(org=ORG, provider="openai", request=request) as run:
            run.chunk("a picture")
            await run.complete(response, {"output_text": 2})
        await settled(producer)
        in_log = [m.value() or b"" for m in read_all(stack, "turnlog.runs")]
        mine = [value for value in in_log if decode(value).body["run"] == run.run]
        assert [decode(value).type for value in mine] == [
            "run.created",
            "run.started",
            "run.completed",
        ]
        assert max(map(len, mine)) < 2_000
    assert wait_for(stack, ["runs"], 60) == {}
    assert await asyncio.to_thread(raw, stack, run.run, "--request") == request
    assert wait_for(stack, ["locator"], 60) == {}  # from now on it is read from its pack
    assert await asyncio.to_thread(raw, stack, run.run, "--request") == request
    assert await asyncio.to_thread(raw, stack, run.run, "--response") == response


async def test_large_turns_are_read_back_in_their_conversation(stack: Config) -> None:
    create(stack, ORG)
    conversation = new_id("turns")
    said, then = picture(2_000_000).decode(), picture(1_500_000).decode()
    async with Producer.open(stack, credential_of(stack, ORG), close_timeout_s=60) as producer:
        async with producer.run(org=ORG, conversation=conversation, input=said) as run:
            run.chunk("seen")
            await run.complete(usage={"output_text": 1})
        await producer.turn(org=ORG, conversation=conversation, text=then)
        await settled(producer)
    assert wait_for(stack, ["conversations", "runs"], 60) == {}
    turns = (await asyncio.to_thread(read_conversation, stack, ORG, conversation)).turns
    assert [turn["text"] for turn in turns] == [said, "seen", then]


async def test_without_s3_it_waits_on_the_disk_and_what_follows_behind_it(
    stack: Config, tmp_path: Path
) -> None:
    create(stack, ORG)
    conversation = new_id("waits")
    away = stack.model_copy(update={"spool": tmp_path, "s3": "http://127.0.0.1:1"})
    async with Producer.open(away, credential_of(away, ORG), close_timeout_s=0.5) as producer:
        async with producer.run(
            org=ORG, conversation=conversation, request=picture(2_000_000)
        ) as run:
            position = await run.complete(b"{}", {"output_text": 2})
        assert position.via == "spool"  # behind run.created, which waits for S3
        async with producer.run(org=ORG, conversation=new_id("other")) as other:
            assert (await other.complete()).via == "broker"
    assert list(tmp_path.glob("*/runs-*.seg"))
    # The next one finds both in one segment, and S3 away still.
    async with Producer.open(away, credential_of(away, ORG), close_timeout_s=1) as waiting:
        assert waiting.state.spool_events == {"runs": 2}
    back = away.model_copy(update={"s3": stack.s3})
    async with Producer.open(back, credential_of(back, ORG)) as heir:
        await settled(heir)
    key = f"{ORG}/{conversation}".encode()
    found = [m.value() or b"" for m in read_all(stack, "turnlog.runs") if m.key() == key]
    assert [decode(value).type for value in found] == ["run.created", "run.completed"]


async def test_without_a_store_it_is_refused_and_content_over_64_mib_always_is() -> None:
    async with producer_in_memory() as opened:
        with pytest.raises(TooLarge):
            async with opened.producer.run(org=MEMORY_ORG, request=os.urandom(MAX_FRAME_BYTES)):
                pass
        with pytest.raises(TooLarge):
            async with opened.producer.run(org=MEMORY_ORG, request=bytes(65 << 20)):
                pass
        assert opened.transport.kept == []


async def test_large_content_that_compresses_into_a_record_stays_in_it() -> None:
    async with producer_in_memory() as opened:
        async with opened.producer.run(org=MEMORY_ORG, request=b"a" * 5_000_000) as run:
            run.chunk("b" * 1_000_000)
            await run.complete()
        assert opened.transport.types()[-2:] == ["run.completed", "usage.recorded"]
        assert opened.transport.of("run.completed")[0]["output_chars"] == 1_000_000


def test_a_pointer_names_its_own_frame_of_its_own_org_alone() -> None:
    frame = b"\1\1" + bytes(100)
    pointer = point_to(frame, "acme", b"e" * 16, "2026-11-30")
    assert pointer_in(pointer.packed(), "acme") == pointer
    assert pointer.checked(frame) == frame
    assert pointer_in(frame, "acme") is None
    with pytest.raises(FrameError, match="of this org"):
        pointer_in(pointer.packed(), "another")
    with pytest.raises(FrameError, match="damaged"):
        pointer_in(pointer.packed()[:40], "acme")
    for other in (frame + b"x", b"\1\1" + bytes(99) + b"\1"):
        with pytest.raises(FrameError, match="another frame"):
            pointer.checked(other)
