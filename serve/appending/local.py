"""Appending the events of a file through the credential that lies here."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import chain, count, islice
from typing import Any, BinaryIO

from redis.asyncio import Redis

from serve.appending.answers import Answer, invalid
from serve.appending.batch import Appender, Given
from serve.appending.given import Scope
from serve.doors.halves import parse_events
from serve.doors.problem import Problem
from sinks.redis import connect_async
from turnlog.config import Config
from turnlog.errors import TurnlogError, Unavailable, UsageError
from turnlog.keeper_client import credential_of
from turnlog.producer import Producer

BATCH = 100
MAX_LINE_BYTES = 20 << 20
"""As much as one request of the HTTP door has."""

MAX_DOCUMENT_BYTES = 64 << 20
"""A document over many lines is read whole; lines may go on for as long as they like."""

Event = Given | Answer


async def append_lines(
    config: Config, org: str, project: str, lines: Iterable[bytes]
) -> AsyncIterator[Answer]:
    """Append the events of a file and yield the answer to each, numbered through the file.

    Args:
        config: where the parts are.
        org: for whom; its credential must be here.
        project: one of the org's, for events that name none; empty: `default`.
        lines: of the file: an event or a batch a line, or one JSON document over all of them.

    Raises:
        UsageError: no such org or project, or the file is no JSON at all.
        Unavailable: Kafka or the key keeper does not answer.
    """
    async with Producer.open(config, credential_of(config, org)) as producer:
        if project and project not in producer.grant.projects(org):
            raise UsageError(f"org {org} has no project {project[:64]!r}")
        async with _appender(config) as appender:
            async for answer in _answers(appender, producer, org, project, _batches(lines)):
                yield answer


async def _answers(
    appender: Appender,
    producer: Producer,
    org: str,
    project: str,
    batches: AsyncIterator[list[Event]],
) -> AsyncIterator[Answer]:
    n = 0
    async for batch in batches:
        grant, at_us = producer.grant, time.time_ns() // 1000
        scope = Scope(org, project, grant.projects(org), grant.id_key(org), at_us)
        for answer in await appender.append(producer, scope, batch):
            yield answer._replace(n=n + answer.n)
        n += len(batch)


@asynccontextmanager
async def _appender(config: Config) -> AsyncIterator[Appender]:
    redis: Redis = connect_async(config)
    try:
        yield Appender.over(config, redis)
    finally:
        await redis.aclose()


def bounded_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file.

    Raises:
        UsageError: one is over 20 MiB.
    """
    for n in count(1):
        line = file.readline(MAX_LINE_BYTES + 1)
        if not line:
            return
        if len(line) > MAX_LINE_BYTES:
            raise UsageError(f"line {n} has over {MAX_LINE_BYTES >> 20} MiB: write an event a line")
        yield line


async def _batches(lines: Iterable[bytes]) -> AsyncIterator[list[Event]]:
    # Lines may come slowly, from a pipe: the producer's loop must not wait for them.
    batches = read_batches(lines)
    while batch := await _read_beside(batches):
        yield batch


async def _read_beside(batches: Iterator[list[Event]]) -> list[Event] | None:
    """Return the next batch, None at the end.

    In a daemon thread: one of the loop's own is joined at the end, so that Ctrl-C would wait for a
    pipe that says nothing.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[Event] | None] = loop.create_future()

    def give(batch: list[Event] | None, error: Exception | None = None) -> None:
        if found.done():
            return
        if error is None:
            found.set_result(batch)
        else:
            found.set_exception(error)

    def read() -> None:
        batch, error = None, None
        try:
            batch = next(batches, None)
        except TurnlogError as mistake:
            error = mistake
        except OSError as broken:
            error = Unavailable(f"the file cannot be read: {broken.strerror}")
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(give, batch, error)

    threading.Thread(target=read, name="turnlog-lines", daemon=True).start()
    return await found


def read_batches(lines: Iterable[bytes]) -> Iterator[list[Event]]:
    """Yield the events of a file, at most a hundred at a time.

    Raises:
        UsageError: the file is no JSON at all.
    """
    events = _events(lines)
    while batch := list(islice(events, BATCH)):
        yield batch


def _events(lines: Iterable[bytes]) -> Iterator[Event]:
    filled = (line for line in lines if line.strip())
    first = next(filled, None)
    if first is None:
        return
    try:
        parse_events(first)
    except Problem:
        yield from _of_document(_whole(chain([first], filled)))
        return
    for line in chain([first], filled):
        yield from _of_line(line)


def _whole(lines: Iterable[bytes]) -> bytes:
    held = bytearray()
    for line in lines:
        held += line
        if len(held) > MAX_DOCUMENT_BYTES:
            raise UsageError(
                f"the first line is no event, and a document has at most"
                f" {MAX_DOCUMENT_BYTES >> 20} MiB: write an event a line"
            )
    return bytes(held)


def _of_document(data: bytes) -> Iterator[Event]:
    """Yield the events of a document over many lines, or of lines of which the first is bad."""
    try:
        value = parse_events(data)
    except Problem as problem:
        if b"\n" not in data.strip():
            raise UsageError(f"the file holds no events: {problem.detail}") from None
        for line in data.splitlines():
            if line.strip():
                yield from _of_line(line)
        return
    yield from _of_value(value)


def _of_line(line: bytes) -> Iterator[Event]:
    try:
        yield from _of_value(parse_events(line))
    except Problem as problem:
        yield invalid(0, "", problem.field, problem.detail)


def _of_value(value: Any) -> Iterator[Event]:
    """Yield the events of an event, a list or a batch; a file has no bound on their number."""
    if isinstance(value, dict) and value.keys() == {"events"}:
        value = value["events"]
    return map(Given, value if isinstance(value, list) else [value])
