"""What passes is unchanged, and what was passed is in the log."""

import asyncio
import gzip
import io
import random
from collections.abc import AsyncIterator
from pathlib import Path

import anthropic
import openai
import pytest

from serve.proxy.calls import is_call
from tests.provider import HEADER, SHARED, Recordings
from tests.provider.recordings import CHECKOUT_SAMPLES, exchanges
from tests.serve.proxy.parts import CHAT, CHAT_PATH, Way, between, raw, read, until
from turnlog.errors import Unavailable
from turnlog.providers import Source

STREAMS = SHARED / "streams.jsonl"
CANARY = "sk-canary-4711"


def recorded(path: Path) -> list[Source]:
    if not path.exists():
        pytest.skip(f"{path} is not on this machine: the project's own samples serve")
    return list(exchanges(path))


@pytest.mark.parametrize("path", [CHECKOUT_SAMPLES, STREAMS], ids=lambda path: path.name)
async def test_every_recorded_exchange_arrives_and_is_stored_byte_for_byte(path: Path) -> None:
    sources = recorded(path)
    calls = [source for source in sources if is_call(source.method, source.path)]
    async with between(Recordings(sources)) as way:
        await asyncio.gather(*(exchange(way, source) for source in sources))
        await until(lambda: len(way.runs()) == len(calls))
        stored = {kept.ended["run"]: kept for kept in way.runs().values()}
    pairs = [(kept.asked.get("request", b""), kept.said["response"]) for kept in stored.values()]
    assert sorted(pairs) == sorted((source.request, source.response) for source in calls)


async def exchange(way: Way, source: Source) -> None:
    headers = {HEADER: f"exchange={source.id}", "content-type": "application/json"}
    url = way.url(source.path)
    async with way.http.request(
        source.method, url, data=source.request or None, headers=headers
    ) as answer:
        body, broke = await read(answer)
    assert (answer.status, broke, body) == (source.status, False, source.response), source.id
    assert ("x-turnlog-run" in answer.headers) == is_call(source.method, source.path)


async def test_headers_pass_in_their_order_and_ours_do_not() -> None:
    async with between() as way:
        said = await raw(
            way.proxy.port,
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: evil.example\r\nX-B: 1\r\nx-a: 2\r\n"
            b"X-B: 3\r\nAuthorization: Bearer " + CANARY.encode() + b"\r\n"
            b"x-turnlog-user: ann\r\nx-turnlog-project: default\r\n"
            b"Connection: keep-alive, x-own\r\nx-own: 1\r\nX-Latin: \xe9\r\n"
            b"Content-Length: %d\r\n\r\n" % len(CHAT) + CHAT,
        )
        asked = way.provider.asked[-1]
        assert asked.body == CHAT
        assert asked.header("host") == [f"127.0.0.1:{way.provider.port}"]
        names = [name for name, _ in asked.headers]
        assert [name for name in names if name not in ("Host", "Content-Length")] == [
            "X-B",
            "x-a",
            "X-B",
            "Authorization",
            "X-Latin",
        ]
        assert asked.header("x-b") == ["1", "3"]
        head = said.partition(b"\r\n\r\n")[0].lower()
        assert head.count(b"set-cookie: ") == 2
        assert b"x-request-id: req-made-chat-no-usage" in head
        assert b"transfer-encoding: chunked" in head
        kept = await way.one()
    assert (kept.created["user"], kept.created["project"]) == ("ann", "default")
    assert kept.end == "run.completed"


async def test_targets_pass_as_they_were_written_and_go_to_one_host() -> None:
    paths = (
        b"/v1/models/a%3Ab/../x%20y?q=a+b&key=%2F",
        b"//evil.example/v1/models",
        b"http://evil.example:1/v1/models",
    )
    async with between() as way:
        for path in paths:
            sent = b"GET " + path + b" HTTP/1.1\r\nHost: evil.example\r\n\r\n"
            assert await raw(way.proxy.port, sent, b"\r\n")
        assert [asked.path for asked in way.provider.asked] == [
            "/v1/models/a%3Ab/../x%20y?q=a+b&key=%2F",
            "//evil.example/v1/models",
            "/v1/models",
        ]
        assert way.runs() == {}


async def test_secrets_are_neither_stored_nor_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with between() as way:
        url = way.url(f"/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse&key={CANARY}")
        headers = {"authorization": f"Bearer {CANARY}", "x-api-key": CANARY}
        async with way.http.post(url, data=b"{}", headers=headers) as answer:
            await answer.read()
        assert CANARY in way.provider.asked[-1].path
        kept = await way.one()
    assert kept.asked["path"].endswith(":streamGenerateContent?alt=sse")
    assert CANARY not in str(kept)
    assert CANARY not in caplog.text


async def test_a_client_that_waits_for_100_continue_is_told_to_go_on() -> None:
    async with between() as way:
        reader, writer = await asyncio.open_connection("127.0.0.1", way.proxy.port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
            b"Content-Length: %d\r\n\r\n" % len(CHAT)
        )
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(CHAT)
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        writer.close()
        await writer.wait_closed()
        assert way.provider.asked[-1].header("expect") == []


@pytest.mark.parametrize("path", [CHAT_PATH, "/v1/files"])
async def test_a_body_that_does_not_come_is_408_and_its_connection_ends(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.proxy.request.IDLE_S", 0.3)
    async with between() as way:
        said = await raw(
            way.proxy.port,
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{{".encode(),
            b"never",
        )
    assert said.startswith(b"HTTP/1.1 408 ")
    assert b'"title":"timeout"' in said
    assert not way.runs()


async def test_what_calls_no_model_passes_unrecorded() -> None:
    async with between() as way:
        upload = random.Random(1).randbytes(3 << 20)

        async def pieces() -> AsyncIterator[bytes]:
            for at in range(0, len(upload), 100_000):
                yield upload[at : at + 100_000]

        async with way.http.post(way.url("/v1/files"), data=pieces()) as answer:
            assert answer.status == 404
            assert "x-turnlog-run" not in answer.headers
        assert way.provider.asked[-1].body == upload
        async with way.http.get(way.url("/v1/models")) as answer:
            assert (await answer.json())["object"] == "list"
        async with way.http.head(way.url("/v1/models")) as answer:
            assert (answer.status, await answer.read()) == (200, b"")
            assert int(answer.headers["content-length"]) > 0
        assert way.log.transport.kept == []


async def test_a_request_of_megabytes_is_passed_and_stored() -> None:
    request = CHAT[:-1] + b',"pad":"' + b"x" * (5 << 20) + b'"}'
    async with between() as way:
        async with way.http.post(way.url(), data=io.BytesIO(request)) as answer:
            _, broke = await read(answer)
        assert not broke
        assert way.provider.asked[-1].body == request
        assert (await way.one()).end == "run.completed"


async def test_the_run_exists_before_the_provider_is_asked() -> None:
    async with between() as way:
        way.log.transport.hold = True
        asking = asyncio.create_task(way.http.post(way.url(), data=CHAT))
        await until(lambda: way.log.transport.kept)
        assert [kept.type for kept in way.log.transport.kept] == ["run.created"]
        assert not way.provider.asked
        way.log.transport.hold = False
        way.log.transport.release()
        async with await asking as answer:
            assert (await read(answer))[0]


@pytest.mark.parametrize("how", ["cut", "close"])
async def test_a_cut_reaches_the_client_at_the_same_byte(how: str) -> None:
    chance = random.Random(5)
    whole = Recordings.read().by_id["made-chat-no-usage"].response
    for at in (0, 1, *(chance.randrange(len(whole)) for _ in range(10))):
        async with between() as way:
            async with way.http.post(way.url(scenario=f"{how}={at}"), data=CHAT) as answer:
                body, broke = await read(answer)
            assert (body, broke) == (whole[:at], True)
            kept = await way.one()
        assert kept.end == ("run.interrupted" if at else "run.failed")
        assert kept.said.get("response", b"") == whole[:at]
        assert kept.usage["quality"] == "unknown"


def posted(path: str) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(CHAT)}\r\n\r\n".encode() + CHAT


async def test_a_client_that_leaves_stops_the_provider_and_cancels_the_run() -> None:
    async with between() as way:
        async with way.http.post(way.url(scenario="stall=700"), data=CHAT) as answer:
            got = await answer.content.readexactly(700)
        kept = await way.one()
        await until(lambda: way.provider.asked[-1].ended)
    assert kept.end == "run.cancelled"
    assert kept.said["response"] == got


async def test_a_client_that_leaves_before_the_answer_cancels_the_run() -> None:
    async with between() as way:
        asking = asyncio.create_task(way.http.post(way.url(scenario="delay_ms=60000"), data=CHAT))
        await until(lambda: way.provider.asked)
        asking.cancel()
        assert (await way.one()).end == "run.cancelled"


async def test_with_drain_the_provider_is_read_to_its_end_and_usage_is_known() -> None:
    asks_usage = CHAT[:-1] + b',"stream_options":{"include_usage":true}}'
    async with between(drain_s=30.0) as way:
        async with way.http.post(way.url(scenario="pace_ms=5"), data=asks_usage) as answer:
            await answer.content.readany()
        kept = await way.one()
        assert way.provider.asked[-1].ended == "whole"
    assert kept.end == "run.completed"
    assert kept.usage["quality"] == "measured"
    assert kept.said["response"] == Recordings.read().by_id["smp-chat-stream"].response


async def test_a_drain_that_takes_too_long_ends() -> None:
    async with between(drain_s=0.1) as way:
        async with way.http.post(way.url(scenario="stall=700"), data=CHAT) as answer:
            await answer.content.readexactly(700)
        assert (await way.one()).end == "run.cancelled"
        await until(lambda: way.provider.asked[-1].ended)


@pytest.mark.parametrize("status", [429, 500, 503, 529])
async def test_errors_of_the_provider_pass_and_fail_the_run(status: int) -> None:
    async with between() as way:
        url = way.url(scenario=f"status={status},retry_after=7")
        async with way.http.post(url, data=CHAT) as answer:
            body, _ = await read(answer)
            assert (answer.status, answer.headers["retry-after"]) == (status, "7")
        kept = await way.one()
    assert kept.end == "run.failed"
    assert (kept.ended["error_code"], kept.ended["http_status"]) == (f"http_{status}", status)
    assert kept.said["response"] == body


async def test_a_provider_that_is_not_there_is_a_502_and_a_failed_run() -> None:
    async with between(upstream="http://127.0.0.1:1") as way:
        async with way.http.post(way.url(), data=CHAT) as answer:
            problem = await answer.json()
            assert answer.headers["x-turnlog-run"]
        kept = await way.one()
    assert (answer.status, problem["title"]) == (502, "no_answer")
    assert answer.headers["Server"] == "turnlog"
    assert (kept.end, kept.ended["error_code"]) == ("run.failed", "no_answer")


async def test_what_cannot_be_recorded_passes_and_says_so() -> None:
    async with between() as way:
        way.log.transport.refuse = Unavailable("no broker")
        async with way.http.post(way.url(), data=CHAT) as answer:
            body, broke = await read(answer)
    assert (answer.status, broke, bool(body)) == (200, False, True)
    assert answer.headers["x-turnlog-unrecorded"] == "unavailable"
    assert "x-turnlog-run" not in answer.headers


async def test_or_it_is_refused_before_the_provider_sees_it() -> None:
    async with between(on_unavailable="refuse") as way:
        way.log.transport.refuse = Unavailable("no broker")
        async with way.http.post(way.url(), data=CHAT) as answer:
            problem = await answer.json()
        assert not way.provider.asked
    assert (answer.status, problem["title"]) == (503, "unavailable")
    assert answer.headers["retry-after"]


async def test_a_project_that_is_not_granted_is_the_callers_mistake() -> None:
    async with between() as way:
        headers = {"x-turnlog-project": "no-such"}
        async with way.http.post(way.url(), data=CHAT, headers=headers) as answer:
            problem = await answer.json()
        assert not way.provider.asked
    assert (answer.status, problem["title"]) == (400, "invalid")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
async def test_encoded_answers_pass_encoded_and_are_stored_decoded(encoding: str) -> None:
    plain = Recordings.read().by_id["made-chat-no-usage"].response
    async with between() as way:
        url = way.url(scenario=f"encoding={encoding},piece=100")
        headers = {"accept-encoding": "br, gzip, deflate, zstd"}
        async with way.http.post(url, data=CHAT, headers=headers) as answer:
            body, _ = await read(answer)
        assert answer.headers["content-encoding"] == encoding
        assert way.provider.asked[-1].header("accept-encoding") == ["gzip, deflate, zstd"]
        kept = await way.one()
    assert body != plain
    assert encoding != "gzip" or gzip.decompress(body) == plain
    assert kept.said["response"] == plain


async def test_a_reader_that_is_slow_makes_the_provider_slow() -> None:
    size = 60 << 20
    async with between() as way:
        reader, writer = await asyncio.open_connection("127.0.0.1", way.proxy.port, limit=1024)
        writer.write(posted(f"/~grow={size},piece=2000{CHAT_PATH}"))
        await until(lambda: way.provider.asked and way.provider.asked[-1].sent)
        before = -1
        while (sent := way.provider.asked[-1].sent) != before:
            before = sent
            await asyncio.sleep(0.3)
        # Buffers of three sockets in both kernels' halves, and of nobody else.
        assert sent < size / 2
        writer.transport.abort()
        assert (await way.one()).end == "run.cancelled"
        del reader


async def test_a_hundred_streams_at_once_keep_apart() -> None:
    ids = ["smp-chat-stream", "smp-responses-stream", "smp-anthropic-tool-call", "smp-groq-stream"]
    sources = [Recordings.read().by_id[ids[number % 4]] for number in range(100)]
    async with between() as way:
        await asyncio.gather(*(exchange(way, source) for source in sources))
        await until(lambda: len(way.runs()) == 100)
        stored = [kept.said["response"] for kept in way.runs().values()]
    assert sorted(stored) == sorted(source.response for source in sources)


async def test_websockets_and_targets_without_a_path_are_refused() -> None:
    async with between() as way:
        upgrade = (
            b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        assert (await raw(way.proxy.port, upgrade, b"\r\n")).startswith(b"HTTP/1.1 501")
        for line in (b"OPTIONS *", b"CONNECT evil.example:443"):
            sent = line + b" HTTP/1.1\r\nHost: x\r\n\r\n"
            assert b" 40" in await raw(way.proxy.port, sent, b"\r\n")
        assert not way.provider.asked


async def test_the_proxy_says_how_it_is() -> None:
    async with between() as way:
        async with way.http.get(way.url("/__turnlog/healthz")) as answer:
            health = await answer.json()
        assert (health["ok"], health["open"]) == (True, 0)
        async with way.http.get(way.url("/__turnlog/else")) as answer:
            assert answer.status == 404
        assert not way.provider.asked


async def test_official_clients_see_what_they_see_without_it() -> None:
    async with between() as way:
        base = f"http://127.0.0.1:{way.proxy.port}"
        async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key=CANARY) as client:
            stream = await client.chat.completions.create(
                model="gpt-4o-mini",
                messages=[{"role": "user", "content": "?"}],
                stream=True,
                extra_headers={"x-turnlog-conversation": "support-1"},
            )
            halves = "".join([c.choices[0].delta.content or "" async for c in stream])
        async with (
            anthropic.AsyncAnthropic(base_url=base, api_key=CANARY) as claude,
            claude.messages.stream(
                model="claude-sonnet-4-6",
                max_tokens=99,
                messages=[{"role": "user", "content": "?"}],
            ) as messages,
        ):
            final = await messages.get_final_message()
        await until(lambda: len(way.runs()) == 2)
        kept = {run.created["model"]: run for run in way.runs().values()}
        assert way.provider.asked[-1].header("authorization") == [f"Bearer {CANARY}"]
    chat = kept["gpt-4o-mini"]
    # Its emoji came in two chunks, as halves of a surrogate pair.
    text = halves.encode("utf-16", "surrogatepass").decode("utf-16")
    assert chat.said["output"][0]["text"] == text
    assert chat.created["conversation"] == "support-1"
    assert final.usage.output_tokens == kept["claude-sonnet-4-6"].usage["output_text"]
