"""`python -m bench.chaos.gateway LOG ORG SEED`: a gateway under load that is killed at any moment.

Each line of LOG is written at once, so that it holds after a kill what had happened before:

- `ask TOPIC EVENT_ID` before an event is handed over,
- `ack TOPIC EVENT_ID VIA` when the producer has acknowledged it,
- `begun RUN` when a run was accepted, `ended RUN` when its end was,
- `shown RUN CHARS AT_NS` after a chunk: characters so far, and the time of the monotonic clock,
- `state RSS_MB SPOOL_BYTES RUNG` about ten times a second.

It ends when LOG.stop exists, whole runs first.
"""

import asyncio
import os
import random
import sys
import time
from functools import partial
from pathlib import Path
from typing import TextIO

import psutil

from turnlog import Producer
from turnlog.config import Config, load
from turnlog.events import Headers, event_id_of
from turnlog.ids import new_id
from turnlog.kafka import producer_settings
from turnlog.keeper_client import credential_of
from turnlog.producer import RunFields
from turnlog.producer.ladder import Ladder
from turnlog.producer.transport import Lane, Position
from turnlog.spool import Spool

STREAMS = 80
CHUNKS_A_SECOND = 30
STATE_S = 0.1
CLOSE_S = 60.0
RESPONSE = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"answered"}}]}'
USAGE = {"input_uncached": 11, "output_text": 7}


class Witness(Ladder):
    """The ladder as it is, with a line for each event that it is given and answers for."""

    out: TextIO

    def send(
        self, lane: Lane, key: bytes, value: bytes, headers: Headers
    ) -> "asyncio.Future[Position]":
        """Take a record and note that, and later that it was acknowledged."""
        name = f"{lane.topic} {event_id_of(value).hex()}"
        self.out.write(f"ask {name}\n")
        future = super().send(lane, key, value, headers)
        future.add_done_callback(partial(self._answered, name))
        return future

    def _answered(self, name: str, future: "asyncio.Future[Position]") -> None:
        if not future.cancelled() and future.exception() is None:
            self.out.write(f"ack {name} {future.result().via}\n")


async def witness(config: Config, out: TextIO) -> Witness:
    """Open the ladder."""
    spool = await Spool.open(config.spool_folder, new_id("producer"), config.spool_max_bytes)
    made = Witness(producer_settings(config), spool, spool_after_s=config.spool_after_ms / 1000)
    made.out = out
    await made.open()
    return made


class Gateway:
    """Streams runs, in conversations and outside, and turns of users."""

    def __init__(self, producer: Producer, org: str, out: TextIO, stop: Path) -> None:
        self._producer = producer
        self._org = org
        self._out = out
        self._stop = stop

    async def serve(self, seed: int) -> None:
        """Run until the stop file exists."""
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch())
            streams = [
                group.create_task(self._stream(random.Random(seed * 1000 + number)))
                for number in range(STREAMS)
            ]
            await asyncio.wait(streams)
            watching.cancel()

    async def _stream(self, chance: random.Random) -> None:
        conversation = ""
        while not self._stop.exists():
            if not conversation or chance.random() < 0.3:
                conversation = new_id("talk") if chance.random() < 0.7 else ""
            if conversation and chance.random() < 0.3:
                await self._producer.turn(org=self._org, conversation=conversation, text="and?")
            await self._run(conversation, chance)

    async def _run(self, conversation: str, chance: random.Random) -> None:
        name = new_id("run")
        fields: RunFields = {
            "org": self._org,
            "run": name,
            "provider": "openai",
            "model": "gpt",
            "request": b"{}",
        }
        if conversation:
            fields |= {"conversation": conversation, "input": "why?"}
        async with self._producer.run(**fields) as run:
            self._out.write(f"begun {name}\n")
            chars = 0
            for _ in range(chance.randint(5, 6 * CHUNKS_A_SECOND)):
                chars += 40
                run.chunk("x" * 40)
                self._out.write(f"shown {name} {chars} {time.monotonic_ns()}\n")
                await asyncio.sleep(1 / CHUNKS_A_SECOND)
                if self._stop.exists():
                    break
            await run.complete(RESPONSE, USAGE, finish_reason="stop")
        self._out.write(f"ended {name}\n")

    async def _watch(self) -> None:
        process = psutil.Process()
        while True:
            state, rss = self._producer.state, process.memory_info().rss
            self._out.write(f"state {rss / 1e6:.1f} {state.spool_bytes} {state.rung}\n")
            await asyncio.sleep(STATE_S)


async def main(path: Path, org: str, seed: int) -> None:
    """Open a producer and serve."""
    config = load()
    with path.open("w", buffering=1) as out:
        transport = await witness(config, out)
        credential = credential_of(config, org)
        async with Producer.open(
            config, credential, transport=transport, close_timeout_s=CLOSE_S
        ) as producer:
            out.write(f"open {os.getpid()}\n")
            await Gateway(producer, org, out, path.with_suffix(".stop")).serve(seed)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
