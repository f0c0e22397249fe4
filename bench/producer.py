"""The producer's paths: one content event at a time, and whole runs."""

import asyncio
import gc
import itertools
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol

from bench.measure import Result, Sample, Stopwatch, blocks, result
from bench.raw import RawProducer, Sent
from bench.topics import bench_topics
from bench.traces import CHARS_PER_TOKEN, Lengths, Text
from turnlog.config import Config
from turnlog.events import Headers
from turnlog.kafka import producer_settings
from turnlog.keeper_client import credential_of
from turnlog.producer import Position, Producer, RunFields
from turnlog.producer.fields import began
from turnlog.producer.run_events import RunEvents
from turnlog.producer.transport import KafkaTransport, Lane, chunk_settings
from turnlog.producer.writer import Writer

ORG = "local"
EVENT_CHARS = 600
EVENT_CHUNKS = 8
EVENTS_A_RUN = 8
RUNS_A_CONVERSATION = 5
USERS = 500
OPEN_RUNS = 200
CONCURRENT_RUNS = 64
CHUNK_CHARS = 80
QUESTION_CHARS = 200
# What one turn of the event loop hands over before acknowledgements get their turn.
EVENTS_A_TURN = 128
STREAM_TOPICS = ("turnlog.runs", "turnlog.run-chunks", "turnlog.turns", "turnlog.usage")


class RecordingTransport(KafkaTransport):
    """The real transport; also keeps what was sent, which costs our side 0.2 µs a record."""

    # Flat, four entries a record: a tuple for each would be one more thing to collect.
    sent: list[Any]

    def take_sent(self) -> list[Sent]:
        """Return what was sent since the last call."""
        sent, self.sent = self.sent, []
        columns = (sent[at::4] for at in range(4))
        return [
            Sent(lane.wire_topic, lane.partition, key, value, headers)
            for lane, key, value, headers in zip(*columns, strict=True)
        ]

    def send(
        self, lane: Lane, key: bytes, value: bytes, headers: Headers
    ) -> "asyncio.Future[Position]":
        """Send and keep a record."""
        self.sent += (lane, key, value, headers)
        return super().send(lane, key, value, headers)


class Side(Protocol):
    """What is measured beside the raw client."""

    async def block(self, records: int) -> Sample:
        """Move about this many records."""


class Events:
    """Single content events: a chunk batch of 600 characters in a run whose key is at hand."""

    def __init__(self, producer: Producer, writer: Writer) -> None:
        text = Text()
        size = EVENT_CHARS // EVENT_CHUNKS
        self._contents = [
            {"chunks": [[n * 40_000, 0, "text", text.of(size)] for n in range(EVENT_CHUNKS)]}
            for _ in range(1000)
        ]
        self._runs = [self._run(producer, writer, n) for n in range(OPEN_RUNS)]

    @staticmethod
    def _run(producer: Producer, writer: Writer, number: int) -> RunEvents:
        fields: RunFields = {
            "org": ORG,
            "user": f"bench_user_{number % USERS}",
            "conversation": f"bench_{producer.producer_id}_{number}",
            "provider": "openai",
            "model": "gpt-4o-mini",
        }
        return RunEvents(writer, began(fields, writer.grant))

    async def block(self, records: int) -> Sample:
        """Hand events over and wait until each is acknowledged."""
        each = zip(itertools.cycle(self._runs), itertools.cycle(self._contents), strict=False)
        watch = Stopwatch()
        waiting: deque[asyncio.Future[Position]] = deque()
        for n, (run, content) in enumerate(itertools.islice(each, records)):
            body = {"char_offset": n, "chars": EVENT_CHARS, "chunks": EVENT_CHUNKS, "last_seq": n}
            waiting.append(run.put("chunk.batch", body, content))
            if n % EVENTS_A_TURN == 0:
                await asyncio.sleep(0)
                while waiting and waiting[0].done():
                    waiting.popleft().result()
        for future in waiting:
            await future
        return watch.sample(records)


class Exchange(NamedTuple):
    """What a run of the bench asks and is answered."""

    request: bytes
    question: str
    pieces: list[str]
    response: bytes
    usage: dict[str, int]


class Runs:
    """Whole runs of eight events: created, two turns, started, two chunk batches, end, usage."""

    def __init__(self, producer: Producer, trace: Iterator[Lengths]) -> None:
        self._producer = producer
        self._trace = trace
        self._text = Text()
        self._number = itertools.count()

    async def block(self, records: int) -> Sample:
        """Run them, some at a time, and wait until each event is acknowledged."""
        count = -(-records // EVENTS_A_RUN)
        exchanges = [self._exchange(given) for given in itertools.islice(self._trace, count)]
        queue = iter(exchanges)
        watch = Stopwatch()
        async with asyncio.TaskGroup() as group:
            for _ in range(CONCURRENT_RUNS):
                group.create_task(self._work(queue))
        return watch.sample(count * EVENTS_A_RUN)

    async def _work(self, queue: Iterator[Exchange]) -> None:
        for exchange in queue:
            await self._one(next(self._number), exchange)

    async def _one(self, number: int, exchange: Exchange) -> None:
        conversation = number // RUNS_A_CONVERSATION
        fields: RunFields = {
            "org": ORG,
            "user": f"bench_user_{conversation % USERS}",
            "conversation": f"bench_{self._producer.producer_id}_{conversation}",
            "provider": "openai",
            "model": "gpt-4o-mini",
            "request": exchange.request,
            "input": exchange.question,
        }
        async with self._producer.run(**fields) as run:
            half = len(exchange.pieces) // 2
            for piece in exchange.pieces[:half]:
                run.chunk(piece)
            run.seal()  # what the ticker does every half second: here it is not waited for
            for piece in exchange.pieces[half:]:
                run.chunk(piece)
            await run.complete(exchange.response, exchange.usage, finish_reason="stop")

    def _exchange(self, given: Lengths) -> Exchange:
        answer = self._text.of(max(given.answer * CHARS_PER_TOKEN, 2))
        size = min(CHUNK_CHARS, -(-len(answer) // 2))
        return Exchange(
            request=self._text.of(given.prompt * CHARS_PER_TOKEN).encode(),
            question=self._text.of(QUESTION_CHARS),
            pieces=[answer[at : at + size] for at in range(0, len(answer), size)],
            response=answer.encode(),
            usage={"input_uncached": given.prompt, "output_text": given.answer},
        )


@asynccontextmanager
async def producers(
    config: Config, raw_settings: Mapping[str, Any]
) -> AsyncIterator[tuple[Producer, RecordingTransport, RawProducer]]:
    """Open the producer under test and a raw client on topics of the bench's own."""
    with bench_topics(config, STREAM_TOPICS) as names:
        transport = RecordingTransport(producer_settings(config), rename=names)
        transport.sent = []
        await transport.open()
        credential = credential_of(config, ORG)
        async with Producer.open(config, credential, transport=transport) as producer:
            # As docs/producer.md advises: of 100 µs an event 25 went into looking through modules
            # and schemas for garbage again and again.
            gc.collect()
            gc.freeze()
            yield producer, transport, RawProducer(raw_settings)


async def compare(
    path: str,
    side: Side,
    transport: RecordingTransport,
    raw: RawProducer,
    records: int,
    block: int,
) -> Result:
    """Move records in turns: a block by our side, then the same bytes by the raw client.

    A first block of each warms up broker, connections and caches and is not counted.
    """
    ours: list[Sample] = []
    again: list[Sample] = []
    for size in itertools.chain((min(block, records),), blocks(records, block)):
        ours.append(await side.block(size))
        again.append(raw.send(transport.take_sent()))
    return result(path, ours[1:], again[1:])


async def measure_events(config: Config, records: int, block: int) -> Result:
    """Measure `producer-event`: chunk batches, so the raw client is set up as theirs is."""
    async with producers(config, chunk_settings(producer_settings(config))) as (
        producer,
        transport,
        raw,
    ):
        writer = Writer(transport, producer.grant)
        side = Events(producer, writer)
        return await compare("producer-event", side, transport, raw, records, block)


async def measure_runs(
    config: Config, records: int, block: int, trace: Iterator[Lengths]
) -> Result:
    """Measure `producer-run`."""
    async with producers(config, producer_settings(config)) as (producer, transport, raw):
        side = Runs(producer, trace)
        return await compare("producer-run", side, transport, raw, records, block)
