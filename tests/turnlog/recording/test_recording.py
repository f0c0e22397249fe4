"""An exchange as it happens: what is stored, what is shown, and how its run ends."""

import asyncio
import base64
import gzip
import random
import zlib
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import zstandard

from tests.provider import CHECKOUT_SAMPLES, SHARED
from tests.provider.recordings import exchanges
from tests.turnlog.producer.parts import ORG, Opened, content_of, producer_in_memory
from turnlog.errors import Unavailable, UsageError
from turnlog.providers import Source, understand
from turnlog.recording import COUNTS, Recording, Seen, body, is_model_call, without_secrets

SSE = {"Content-Type": "text/event-stream"}
HELLO = b'data: {"choices":[{"index":0,"delta":{"content":"Hello"}}],"model":"m"}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
ASKED = b'{"model":"gpt-4o-mini","stream":true,"messages":[{"role":"user","content":"Hi?"}]}'


def seen(request: bytes = ASKED, path: str = "/v1/chat/completions", **who: Any) -> Seen:
    return Seen.of(
        provider="openai",
        method="POST",
        host="api.openai.com",
        path=path,
        request=request,
        content_type="application/json",
        **{"org": ORG, **who},
    )


def ended(opened: Opened) -> tuple[dict[str, Any], dict[str, Any]]:
    """The one terminal event of what was written, and its content."""
    (kept,) = [k for k in opened.transport.kept if k.type.removeprefix("run.") in ENDS]
    body = kept.body
    return body, content_of(opened.grant, kept.type, body, "o") if body["frame"] else {}


ENDS = ("completed", "failed", "cancelled", "interrupted")


async def record(source: Source, size: int = 700, **who: Any) -> tuple[Opened, dict[str, Any]]:
    """Have a recorded exchange happen again."""
    async with producer_in_memory() as opened:
        request = Seen.of(
            provider=source.provider,
            method=source.method,
            host=source.host,
            path=source.path,
            request=source.request,
            **{"org": ORG, **who},
        )
        recording = await Recording.begin(opened.producer, request)
        recording.head(source.status, {"content-type": source.content_type})
        for at in range(0, len(source.response), size):
            recording.data(source.response[at : at + size])
        await recording.done()
    return opened, request.run_fields()  # type: ignore[return-value]


@pytest.mark.parametrize("source", list(exchanges(CHECKOUT_SAMPLES)), ids=lambda source: source.id)
async def test_a_run_says_what_its_exchange_says(source: Source) -> None:
    opened, _ = await record(source)
    said = understand(source, at_us=0)
    terminal, content = ended(opened)
    (usage,) = opened.transport.of("usage.recorded")
    assert terminal["status"] == said.status
    assert terminal["finish_reason"] == said.finish_reason
    assert terminal["http_status"] == source.status
    assert terminal["error_code"] == said.error_code
    assert terminal["model"] == said.model
    assert content["response"] == source.response
    assert content.get("error", "") == said.error
    assert usage["quality"] == said.usage.quality
    assert {name: usage[name] for name in said.usage.classes} == dict(said.usage.classes)
    assert usage["provider_usage"] == dict(said.usage.provider_usage)
    output = {one["index"]: one for one in content.get("output", ())}
    for choice in said.choices:
        assert output[choice.index].get("text", "") == choice.text
        calls = output[choice.index].get("tool_calls", [])
        assert [call["arguments"] for call in calls] == [c.arguments for c in choice.tool_calls]


@pytest.mark.skipif(not SHARED.exists(), reason="the recordings beside the checkout are not there")
async def test_recorded_streams_are_stored_byte_for_byte() -> None:
    for source in islice(exchanges(SHARED / "streams.jsonl"), 0, None, 4):
        opened, _ = await record(source, size=4096)
        terminal, content = ended(opened)
        assert content.get("response", b"") == source.response, source.id
        assert terminal["status"] == understand(source, at_us=0).status, source.id


async def test_the_run_is_durable_before_the_request_may_go_out() -> None:
    async with producer_in_memory() as opened:
        opened.transport.hold = True
        beginning = asyncio.ensure_future(Recording.begin(opened.producer, seen()))
        await asyncio.sleep(0.01)
        assert not beginning.done()
        assert opened.transport.types() == ["run.created"]
        opened.transport.hold = False
        opened.transport.release()
        await (await beginning).cancelled()


async def test_output_is_shown_while_the_answer_still_comes() -> None:
    async with producer_in_memory() as opened:
        recording = await Recording.begin(opened.producer, seen())
        recording.head(200, SSE)
        recording.data(HELLO[:20])
        recording.data(HELLO[20:])
        (run,) = opened.producer._opened
        async with asyncio.timeout(30):
            while not (batches := opened.transport.of("chunk.batch")):
                await asyncio.sleep(0.01)
                run.seal()
        (batch,) = batches
        assert batch["chars"] == len("Hello")
        recording.data(END)
        await recording.done()
    terminal, _ = ended(opened)
    assert terminal["status"] == "completed"
    assert terminal["model"] == "m"


@pytest.mark.parametrize(
    ("data", "how", "status", "code"),
    [
        ([HELLO, END], "done", "completed", ""),
        ([HELLO, END], "cancelled", "completed", ""),
        ([HELLO, END], "broke", "completed", ""),
        ([HELLO], "done", "interrupted", "cut_off"),
        ([HELLO], "cancelled", "cancelled", ""),
        ([HELLO], "broke", "interrupted", "cut_off"),
        ([], "broke", "failed", "no_answer"),
        ([], "cancelled", "cancelled", ""),
        ([b'data: {"error":{"message":"no"}}\n\n'], "cancelled", "failed", "provider_error"),
    ],
)
async def test_how_a_run_ends(data: list[bytes], how: str, status: str, code: str) -> None:
    async with producer_in_memory() as opened:
        recording = await Recording.begin(opened.producer, seen())
        if data:
            recording.head(200, SSE)
        for piece in data:
            recording.data(piece)
        error = (ConnectionResetError("gone"),) if how == "broke" else ()
        await getattr(recording, how)(*error)
        await recording.done()  # the first end is the one that holds
    terminal, content = ended(opened)
    assert (terminal["status"], terminal["error_code"]) == (status, code)
    assert content.get("response", b"") == b"".join(data)
    (usage,) = opened.transport.of("usage.recorded")
    assert usage["quality"] == "unknown"


async def test_half_of_a_plain_answer_is_none() -> None:
    for headers in ({"Content-Type": "audio/mpeg"}, {"Content-Type": "application/json"}):
        async with producer_in_memory() as opened:
            recording = await Recording.begin(opened.producer, seen(b"{}", "/v1/audio/speech"))
            recording.head(200, headers)
            recording.data(b"{half")
            await recording.cancelled()
        assert ended(opened)[0]["status"] == "cancelled"


async def test_an_error_answer_whose_body_nobody_read_failed() -> None:
    async with producer_in_memory() as opened:
        recording = await Recording.begin(opened.producer, seen())
        recording.head(429, {})
        await recording.cancelled()
    terminal, _ = ended(opened)
    assert (terminal["status"], terminal["error_code"]) == ("failed", "http_429")


def deflated(data: bytes) -> bytes:
    raw = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return raw.compress(data) + raw.flush()


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.compress,
    "": lambda data: data,
}


@pytest.mark.parametrize("name", ENCODERS)
async def test_an_encoded_body_is_stored_as_the_application_sees_it(name: str) -> None:
    wire = ENCODERS[name](HELLO + END)
    opened = await received(wire, {**SSE, "Content-Encoding": name})
    terminal, content = ended(opened)
    assert content["response"] == HELLO + END
    assert terminal["status"] == "completed"
    assert terminal["output_chars"] == len("Hello")


async def received(wire: bytes, headers: dict[str, str], size: int = 11) -> Opened:
    async with producer_in_memory() as opened:
        recording = await Recording.begin(opened.producer, seen())
        recording.head(200, headers)
        for at in range(0, len(wire), size):
            recording.data(wire[at : at + size])
        await recording.done()
    return opened


async def test_raw_deflate_is_read_as_servers_send_it() -> None:
    opened = await received(deflated(HELLO + END), {**SSE, "content-encoding": "deflate"})
    assert ended(opened)[1]["response"] == HELLO + END


async def test_an_encoding_that_nobody_knows_is_stored_as_it_came() -> None:
    opened = await received(b"\x00\x01\x02", {**SSE, "content-encoding": "rot13"})
    terminal, content = ended(opened)
    assert content["response"] == b"\x00\x01\x02"
    assert terminal["status"] == "interrupted"


async def test_a_damaged_or_endless_body_ends_its_run_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = COUNTS.cut
    opened = await received(b"no gzip at all", {**SSE, "content-encoding": "gzip"})
    assert "response" not in ended(opened)[1]
    monkeypatch.setattr(body, "MAX_BODY_BYTES", 100)
    opened = await received(gzip.compress(bytes(10_000)), {"content-encoding": "gzip"})
    assert "response" not in ended(opened)[1]
    assert COUNTS.cut == before + 2


async def test_a_request_that_no_frame_holds_is_left_out() -> None:
    noise = base64.b64encode(random.Random(1).randbytes(2 << 20))
    big = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % noise
    async with producer_in_memory() as opened:
        recording = await Recording.begin(opened.producer, seen(big, conversation="c"))
        await recording.cancelled()
    (created,) = opened.transport.of("run.created")
    assert created["model"] == "m"
    assert "request" not in content_of(opened.grant, "run.created", created, "q")


async def test_what_cannot_begin_raises_and_is_not_counted() -> None:
    before = COUNTS.begun
    async with producer_in_memory() as opened:
        with pytest.raises(UsageError):
            await Recording.begin(opened.producer, seen(org="another"))
        opened.transport.refuse = Unavailable("away")
        with pytest.raises(Unavailable):
            await Recording.begin(opened.producer, seen())
    assert before == COUNTS.begun


async def test_an_end_that_cannot_be_written_is_counted_and_raises_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = COUNTS.unended
    async with producer_in_memory() as opened:
        recording = await Recording.begin(opened.producer, seen())
        recording.head(200, SSE)
        recording.data(HELLO)
        opened.transport.refuse = Unavailable("away")
        await recording.done()
        opened.transport.refuse = None
    assert before + 1 == COUNTS.unended
    assert "Hello" not in caplog.text


async def test_closing_the_producer_waits_for_an_end_that_nobody_waited_for() -> None:
    async with producer_in_memory() as opened:
        recording = await Recording.begin(opened.producer, seen())
        recording.head(200, SSE)
        recording.data(HELLO + END)
        recording.done_later()
    assert ended(opened)[0]["status"] == "completed"


async def test_bytes_after_the_producer_closed_are_nobodys() -> None:
    async with producer_in_memory() as opened:
        recording = await Recording.begin(opened.producer, seen())
        recording.head(200, SSE)
    recording.data(HELLO)
    await recording.done()
    assert ended(opened)[0]["status"] == "interrupted"


async def test_a_conversation_gets_the_question_and_the_answer() -> None:
    async with producer_in_memory() as opened:
        recording = await Recording.begin(opened.producer, seen(conversation="c-1", user="u-1"))
        await recording.cancelled()
    turns = opened.transport.of("turn.appended")
    assert [turn["role"] for turn in turns] == ["user", "assistant"]


def test_a_request_says_its_model_and_whether_it_streams() -> None:
    assert (seen().model, seen().streaming, seen().input) == ("gpt-4o-mini", True, "Hi?")
    gemini = "/v1beta/models/gemini-2.5-flash:streamGenerateContent?key=AIzaSECRET&alt=sse"
    found = seen(b'{"contents":[]}', gemini)
    assert (found.model, found.streaming) == ("gemini-2.5-flash", True)
    assert found.path == "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse"


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/v1/x", "/v1/x"),
        ("/v1/x?key=SECRET", "/v1/x"),
        ("/v1/x?api-version=2024-10-21&api-key=SECRET", "/v1/x?api-version=2024-10-21"),
        ("/v1/x?SECRET", "/v1/x"),
    ],
)
def test_a_query_keeps_only_what_holds_no_secret(path: str, kept: str) -> None:
    assert without_secrets(path) == kept


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/v1/chat/completions", True),
        ("POST", "/openai/deployments/d/chat/completions?api-version=1", True),
        ("POST", "/v1/responses", True),
        ("POST", "/v1/responses/resp_1/cancel", False),
        ("GET", "/v1/responses/resp_1", False),
        ("GET", "/v1/chat/completions", False),
        ("POST", "/v1/messages", True),
        ("POST", "/v1/messages/count_tokens", False),
        ("POST", "/v1/messages/batches", False),
        ("POST", "/v1beta/models/gemini:streamGenerateContent?alt=sse", True),
        ("POST", "/v1/threads/thread_1/messages", False),
        ("POST", "/v1/files", False),
        ("POST", "/model/amazon.nova/converse-stream", True),
    ],
)
def test_model_calls_are_told_from_other_calls(method: str, path: str, expected: bool) -> None:
    assert is_model_call(method, path) is expected


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("bad header: x-api-key: SECRET"), "ValueError"),
        (ConnectionRefusedError(111, "refused"), "ConnectionRefusedError: refused"),
    ],
)
async def test_the_error_of_a_run_quotes_no_header_and_no_address(
    error: Exception, said: str
) -> None:
    async with producer_in_memory() as opened:
        recording = await Recording.begin(opened.producer, seen())
        await recording.broke(error)
    terminal, content = ended(opened)
    assert (terminal["status"], content["error"]) == ("failed", said)
