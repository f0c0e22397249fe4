"""The local provider: what it answers is what was recorded, and it breaks where it was told to."""

import asyncio
import gzip
from dataclasses import replace

import aiohttp
import anthropic
import openai
import pytest

from tests.provider import Provider, Recordings
from turnlog.providers import Source, understand

CHAT = b'{"model":"gpt-4o-mini","stream":true,"messages":[{"role":"user","content":"?"}]}'
ROUTES = (
    "/v1/completions",
    "/v1/embeddings",
    "/v1/images/generations",
    "/v1/responses",
    "/v1/messages",
    "/v1beta/models/gemini-2.5-flash:generateContent",
    "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse",
    "/mistral/v1/chat/completions",
    "/v2/chat",
    "/api/chat",
    "/model/amazon.nova-micro-v1%3A0/converse",
    "/model/amazon.nova-micro-v1%3A0/converse-stream",
    "/model/amazon.nova-micro-v1%3A0/invoke-with-response-stream",
)


async def read(answer: aiohttp.ClientResponse) -> tuple[bytes, str]:
    """Return what came of a body, and the name of the error that ended it."""
    got = bytearray()
    try:
        async for piece in answer.content.iter_any():
            got += piece
    except (aiohttp.ClientError, ConnectionResetError) as error:
        return bytes(got), type(error).__name__
    return bytes(got), ""


@pytest.mark.parametrize("path", ROUTES)
async def test_every_api_answers(path: str) -> None:
    async with (
        Provider.serving() as provider,
        aiohttp.ClientSession() as http,
        http.post(provider.url() + path, data=b'{"model":"m"}') as answer,
    ):
        assert answer.status == 200
        body, broke = await read(answer)
    assert body
    assert not broke
    assert provider.asked[-1].ended == "whole"


@pytest.mark.parametrize(
    "exchange",
    [source for source in Recordings.read().by_id.values() if source.status == 200],
    ids=lambda source: source.id,
)
async def test_a_recording_comes_as_it_was_recorded(exchange: Source) -> None:
    async with Provider.serving() as provider, aiohttp.ClientSession() as http:
        url = provider.url(f"exchange={exchange.id}") + exchange.path
        async with http.request(exchange.method, url, data=exchange.request) as answer:
            body, broke = await read(answer)
    assert (body, broke) == (exchange.response, "")


async def test_it_breaks_at_the_byte_it_was_told() -> None:
    async with Provider.serving() as provider, aiohttp.ClientSession() as http:
        for how in ("cut", "close"):
            for at in (0, 1, 100, 1001):
                url = provider.url(f"{how}={at}") + "/v1/chat/completions"
                async with http.post(url, data=CHAT) as answer:
                    body, broke = await read(answer)
                assert (len(body), bool(broke)) == (at, True)
                assert provider.asked[-1].ended == how


async def test_it_notices_that_a_client_left_a_stalled_answer() -> None:
    async with Provider.serving() as provider, aiohttp.ClientSession() as http:
        url = provider.url("stall=50") + "/v1/chat/completions"
        async with http.post(url, data=CHAT) as answer:
            assert len(await answer.content.readexactly(50)) == 50
        while not provider.asked[-1].ended:
            await asyncio.sleep(0.01)
    assert provider.asked[-1].ended == "stall"


async def test_encoded_bodies_decode_to_what_was_recorded() -> None:
    chat = Recordings.read().by_id["made-chat-no-usage"]
    async with (
        Provider.serving() as provider,
        aiohttp.ClientSession(auto_decompress=False) as http,
        http.post(
            provider.url("encoding=gzip,piece=7") + "/v1/chat/completions", data=CHAT
        ) as answer,
    ):
        body, _ = await read(answer)
    assert gzip.decompress(body) == chat.response


async def test_a_stream_grows_without_losing_its_form() -> None:
    async with Provider.serving() as provider, aiohttp.ClientSession() as http:
        url = provider.url("grow=300000") + "/v1/chat/completions"
        async with http.post(url, data=CHAT) as answer:
            body, _ = await read(answer)
    assert len(body) >= 300_000
    source = Recordings.read().by_id["made-chat-no-usage"]
    assert understand(_with(source, body), at_us=0).status == "completed"


def _with(source: Source, body: bytes) -> Source:
    return replace(source, response=body, response_bytes=len(body))


async def test_official_clients_read_it_and_retry_what_it_refuses() -> None:
    async with Provider.serving() as provider:
        chat = openai.AsyncOpenAI(
            base_url=provider.url("status=429,retry_after=0,times=1") + "/v1", api_key="k"
        )
        async with (
            chat,
            await chat.chat.completions.create(
                model="gpt-4o-mini", messages=[{"role": "user", "content": "?"}], stream=True
            ) as stream,
        ):
            assert [chunk async for chunk in stream]
        assert [asked.header("x-stainless-retry-count") for asked in provider.asked] == [
            ["0"],
            ["1"],
        ]
        messages = anthropic.AsyncAnthropic(
            base_url=provider.url("status=529"), api_key="k", max_retries=0
        )
        async with messages:
            with pytest.raises(anthropic.APIStatusError, match="529"):
                await messages.messages.create(
                    model="claude-sonnet-4-6",
                    max_tokens=5,
                    messages=[{"role": "user", "content": "?"}],
                )


async def test_an_error_comes_after_good_pieces() -> None:
    async with Provider.serving() as provider:
        chat = openai.AsyncOpenAI(
            base_url=provider.url("error_after=3") + "/v1", api_key="k", max_retries=0
        )
        async with (
            chat,
            await chat.chat.completions.create(
                model="gpt-4o-mini", messages=[{"role": "user", "content": "?"}], stream=True
            ) as stream,
        ):
            with pytest.raises(openai.APIError, match="mid-stream"):
                async for _ in stream:
                    pass
