"""A producer without a broker: a transport that keeps records, and keys made on the spot."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, NamedTuple

from turnlog.errors import TurnlogError
from turnlog.events import Headers, decode
from turnlog.keys import Grant, Locator, Subject, open_content
from turnlog.keys.grant import Cover, DayGrant, OrgGrant, day_of, now_us
from turnlog.keys.tree import CoverNode
from turnlog.producer.client import Producer
from turnlog.producer.transport import Lane, Position, State

ORG = "acme"
TREE = bytes(range(16))
DAY_US = 86_400_000_000


class Kept(NamedTuple):
    """A record that was handed over, decoded."""

    type: str
    body: dict[str, Any]
    topic: str
    partition: int
    key: bytes
    headers: dict[str, bytes]


class KeepingTransport:
    """Keeps records in memory and acknowledges them in the next turn of the loop.

    `hold` keeps acknowledgements back until `release`; `refuse` makes them errors.
    """

    producer_id = "producer_test"
    producer_epoch = 1

    def __init__(self, partitions: int = 6) -> None:
        self.kept: list[Kept] = []
        self.hold = False
        self.refuse: TurnlogError | None = None
        self._partitions = partitions
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._held: list[tuple[asyncio.Future[Position], Position]] = []

    @property
    def state(self) -> State:
        return State("broker", len(self._held), {}, 0, {})

    def takes_large(self) -> bool:
        return False

    def lane(self, topic: str, key: bytes) -> Lane:
        partition = sum(key) % self._partitions
        return self._lanes.setdefault((topic, partition), Lane(topic, partition))

    def send(
        self, lane: Lane, key: bytes, value: bytes, headers: Headers
    ) -> asyncio.Future[Position]:
        event = decode(value)
        place = lane.topic, lane.partition, key
        self.kept.append(Kept(event.type, event.body, *place, dict(headers)))
        future: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        self._held.append((future, Position(lane.topic, lane.partition, lane.next_seq)))
        lane.next_seq += 1
        if not self.hold:
            asyncio.get_running_loop().call_soon(self.release)
        return future

    def release(self) -> None:
        held, self._held = self._held, []
        for future, position in held:
            if future.done():
                continue
            if self.refuse is None:
                future.set_result(position)
            else:
                future.set_exception(self.refuse)

    async def close(self, timeout_s: float) -> int:
        self.release()
        return 0

    def of(self, type: str) -> list[dict[str, Any]]:
        return [kept.body for kept in self.kept if kept.type == type]

    def types(self) -> list[str]:
        return [kept.type for kept in self.kept]


def make_grant(*orgs: str, projects: tuple[str, ...] = ("default",)) -> Grant:
    """A grant of today and tomorrow with random keys."""
    now = now_us()
    days = {day_of(now): (TREE, day_of(now).day)}
    tomorrow = day_of(now) + timedelta(days=1)
    days[tomorrow] = (TREE, tomorrow.day)
    granted = tuple(
        DayGrant(TREE, day, 1, os.urandom(32), Cover([CoverNode(8, bytes([day]), os.urandom(32))]))
        for _, day in days.values()
    )
    return Grant(
        [OrgGrant(org, b"i" * 32, dict.fromkeys(projects, days), granted) for org in orgs],
        now,
        now + DAY_US,
    )


class Opened(NamedTuple):
    producer: Producer
    transport: KeepingTransport
    grant: Grant


@asynccontextmanager
async def producer_in_memory(*orgs: str) -> AsyncIterator[Opened]:
    """A producer whose ticker does not run: tests call `tick`."""
    transport, grant = KeepingTransport(), make_grant(*(orgs or (ORG,)))
    producer = Producer.over(grant, transport)
    yield Opened(producer, transport, grant)
    await producer.close()


def content_of(grant: Grant, type: str, body: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Open an event's frame as a reader does, from nothing but its body."""
    locator = Locator(body["key_tree"], body["key_day"], body["key_gen"])
    subject_id = body["turn"] if kind == "t" else body["run"]
    subject = Subject(body["org"], body["user"], body["conversation"], subject_id, kind)
    return open_content(
        grant.data_key(locator, subject),
        body["frame"],
        org=body["org"],
        tree=body["key_tree"],
        event_id=body["event_id"],
        subject_id=subject_id,
        writer_epoch=body["writer_epoch"],
        seq=body["seq"],
        kind=type,
        content_mac=body["content_mac"],
    )


def later_ns(seconds: float) -> int:
    return time.perf_counter_ns() + int(seconds * 1e9)
