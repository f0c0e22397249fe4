"""What came before a connection broke is not lost with it."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from aiohttp.base_protocol import BaseProtocol

from serve.proxy.upstream import Incoming


async def test_bytes_that_nobody_had_read_come_before_the_error() -> None:
    loop = asyncio.get_running_loop()
    content = aiohttp.StreamReader(BaseProtocol(loop), 1 << 16, loop=loop)
    incoming = Incoming(cast(Any, SimpleNamespace(content=content)))
    content.feed_data(b"one")
    assert await incoming.next() == b"one"
    content.feed_data(b"two")
    content.set_exception(aiohttp.ClientPayloadError("cut"))
    assert await incoming.next() == b"two"
    for _ in range(2):
        with pytest.raises(aiohttp.ClientPayloadError):
            await incoming.next()


async def test_a_body_that_ends_says_so() -> None:
    loop = asyncio.get_running_loop()
    content = aiohttp.StreamReader(BaseProtocol(loop), 1 << 16, loop=loop)
    content.feed_data(b"all")
    content.feed_eof()
    incoming = Incoming(cast(Any, SimpleNamespace(content=content)))
    assert [await incoming.next(), await incoming.next()] == [b"all", b""]
