"""What libraries say of an error says where, and nothing of what was sent."""

import asyncio
import logging
from collections.abc import AsyncIterator

import aiohttp.log
import pytest

from turnlog.places import QUOTING, PlacesOnly, log_places_only, where

CANARY = "sk-canary-4711"


@pytest.fixture
async def silenced() -> AsyncIterator[None]:
    log_places_only()
    yield
    asyncio.get_running_loop().set_exception_handler(None)
    for name in QUOTING:
        logger = logging.getLogger(name)
        for added in [one for one in logger.filters if isinstance(one, PlacesOnly)]:
            logger.removeFilter(added)


def raised(error: ValueError) -> ValueError:
    try:
        raise error
    except ValueError as caught:
        return caught


def test_an_error_is_told_by_its_type_and_place() -> None:
    told = where(raised(ValueError(CANARY)))
    assert told.startswith("ValueError at ") and "test_places.py" in told
    assert CANARY not in told
    assert (where(ValueError(CANARY)), where(None)) == ("ValueError", "no error")


def test_every_logger_of_aiohttp_is_held() -> None:
    theirs = {one.name for one in vars(aiohttp.log).values() if isinstance(one, logging.Logger)}
    assert theirs <= set(QUOTING)


@pytest.mark.parametrize("name", QUOTING)
async def test_texts_arguments_and_traces_stay_out(
    silenced: None, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    error = raised(ValueError(CANARY))
    logging.getLogger(name).error("%s", CANARY, exc_info=error)
    text = f"of {CANARY}"
    logging.getLogger(name).error(text, stack_info=True)
    assert CANARY not in caplog.text
    assert caplog.text.count("said something at test_places.py:") == 2
    assert "ValueError at " in caplog.text


async def test_so_does_what_fails_in_the_event_loop(
    silenced: None, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(sent: str) -> None:
        raise ValueError(sent)

    async def failing() -> None:
        fail(CANARY)

    asyncio.get_running_loop().call_soon(fail, CANARY)
    task = asyncio.create_task(failing())
    await asyncio.sleep(0.01)
    del task
    assert CANARY not in caplog.text
    assert "in the event loop: Exception in callback" in caplog.text
    assert "in the event loop: Task exception was never retrieved: ValueError at" in caplog.text
