"""The finalizer's checkpoint over real Kafka: whatever lies in its topic, nothing is guessed."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import orjson
from confluent_kafka import Producer

from processors import estimates as usage
from processors.estimates import NO_SEQ, RECORDED, Estimates, estimate_id
from processors.finalizer import OpenRun, Partition, Sign
from streams.dead import dead_letters
from streams.finalizer.appends import Appends
from streams.finalizer.checkpoint import TOPIC, Stored, load, mend, store_estimates, store_runs
from streams.finalizer.owned import CHUNKS, RUNS, Owned
from streams.finalizer.rows import Rows
from streams.finalizer.worker import _Worker
from tests.streams.log import run_body
from turnlog.config import Config
from turnlog.errors import DecodeError
from turnlog.events import decode, encode
from turnlog.kafka import producer_settings, read_all

RUN = b"acme/run_1"
BEFORE = {RUNS: 3, CHUNKS: 4}
Row = tuple[bytes, bytes | None]


@contextmanager
def appending(config: Config) -> Iterator[Producer]:
    producer = Producer(producer_settings(config))
    yield producer
    assert producer.flush(30) == 0


def put(config: Config, number: int, rows: Iterable[Row]) -> None:
    with appending(config) as producer:
        for key, value in rows:
            producer.produce(TOPIC, value, key, number)


def grow(config: Config, number: int, records: int = 10) -> None:
    """Let the three topics have something that a checkpoint can lead to."""
    with appending(config) as producer:
        for topic in (RUNS, CHUNKS, usage.TOPIC):
            for _ in range(records):
                producer.produce(topic, b"nothing", b"x", number)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def open_run(opened: int = 2, batches: Iterable[int] = (1, 3), last_ms: int = 0) -> bytes:
    run = OpenRun(opened, 1, last_ms or now_ms())
    for offset in batches:
        run.note_batch(offset)
    return run.row()


def place(**more: object) -> bytes:
    return orjson.dumps({RUNS: 3, CHUNKS: 4, "head_ms": now_ms()} | more)


def estimated(run: str = "run_1", **more: object) -> bytes:
    own = {"writer_epoch": 1, "seq": NO_SEQ, "event_id": estimate_id("acme", run, 1)}
    return encode(RECORDED, run_body("acme", run, quality="estimated") | own | more)


def stamped(value: bytes, append_ms: int = 0) -> bytes:
    return (append_ms or now_ms()).to_bytes(8) + value


def refused(stored: Stored) -> dict[bytes, str]:
    return {dead.message.key() or b"": dead.reason for dead in stored.refused}


def good(number: int) -> list[Row]:
    return [
        (b"%d/" % number + RUN, open_run()),
        (b"%d" % number, place()),
        (b"usage/%d/acme/run_1/1" % number, stamped(estimated())),
        (b"usage/%d" % number, orjson.dumps({usage.TOPIC: 5})),
    ]


def held(stored: Stored) -> tuple[list[bytes], list[str], Mapping[str, int]]:
    runs = [body["run"] for body, _ in stored.estimates]
    return sorted(stored.runs), runs, stored.offsets


WHOLE = ([RUN], ["run_1"], BEFORE | {usage.TOPIC: 5})


def test_what_the_finalizer_writes_it_reads(stores: Config) -> None:
    grow(stores, 0)
    partition, estimates = Partition(20_000, 15_000), Estimates()
    at_ms = now_ms()
    partition.take_run(Sign("run.created", RUN, 1), 2, at_ms)
    partition.take_chunk(Sign("chunk.batch", RUN, 1), 3, at_ms)
    estimates.take(decode(estimated()), 4, at_ms)
    appends = Appends(stores)
    store_runs(appends, 0, partition, BEFORE)
    store_estimates(appends, 0, estimates, usage.TOPIC, 5)
    stored = load(stores, 0)
    assert held(stored) == WHOLE
    assert (stored.head_ms, refused(stored), stored.mended) == (at_ms, {}, [])


FOREIGN: list[Row] = [
    (b"", b"nothing"),
    (b"x", b"nothing"),
    (b"\xff\x00", b"\x00"),
    (b"9", b"{}"),
    (b"01", b"{}"),
    (b"1/", b""),
    (b"1/acme", open_run()),
    (b"1/acme/run/more", open_run()),
    (b"1/ac me/run", open_run()),
    (b"3/acme/run_1", open_run()),
    (b"usage/", b""),
    (b"usage/9", orjson.dumps({usage.TOPIC: 5})),
    (b"usage/1/acme/run_1", stamped(estimated())),
    (b"usage/1/acme/run_1/one", stamped(estimated())),
    (b"usage/1/acme/run_1/1\n", stamped(estimated())),
]


def test_rows_under_keys_that_are_not_ours_are_left_out(stores: Config) -> None:
    grow(stores, 1)
    gone: list[Row] = [(b"not/ours/either", None), (b"1/acme/unknown", None)]
    put(stores, 1, [*FOREIGN, *good(1), *gone])
    stored = load(stores, 1)
    assert held(stored) == WHOLE
    assert refused(stored).keys() == dict(FOREIGN).keys()
    assert {dead.message.value() for dead in stored.refused} == set(dict(FOREIGN).values())
    mend(Appends(stores), 1, stored.mended)
    assert refused(load(stores, 1)) == {}
    assert held(load(stores, 1)) == WHOLE


NO_PLACES = [
    *(b"", b"\xff", b"{", b"[]", b"null", b"7", b'"text"', b"true", b"{}", b"[" * 5000),
    place(**{RUNS: "3"}),
    place(**{RUNS: None}),
    place(**{RUNS: 3.0}),
    place(**{RUNS: True}),
    place(**{RUNS: [3]}),
    place(**{CHUNKS: -1}),
    place(**{CHUNKS: -(2**63)}),
    place(**{CHUNKS: 2**63 - 1}),
    place(**{CHUNKS: 11}),
    place(**{CHUNKS: 1}).replace(b":1,", b":" + b"9" * 400 + b","),
    place(head_ms="0"),
    place(head_ms=-1),
    place(head_ms=now_ms() + 10 * 86_400_000),
    place(more=1),
    orjson.dumps({RUNS: 3}),
    orjson.dumps(BEFORE),
]


def refuses(config: Config, number: int, key: bytes) -> list[bool]:
    """Say of each record under a key whether it is refused."""
    rows = Rows(number, dict.fromkeys((RUNS, CHUNKS, usage.TOPIC), 10))
    found: list[bool] = []
    for message in read_all(config, TOPIC, [number]):
        if message.key() == key and message.value() is not None:
            try:
                rows.read(key, message)
            except DecodeError:
                found.append(True)
            else:
                found.append(False)
    return found


def test_offsets_that_cannot_be_used_are_never_guessed(stores: Config) -> None:
    """Behind usable ones those count; alone, the topics are read from their start."""
    grow(stores, 2)
    put(stores, 2, [(b"2", value) for value in NO_PLACES])
    stored = load(stores, 2)
    assert (stored.offsets, stored.head_ms) == ({}, 0)
    assert list(refused(stored)) == [b"2"]
    assert refuses(stores, 2, b"2") == [True] * len(NO_PLACES)
    put(stores, 2, [(b"2", place(**{RUNS: 2})), (b"2", place()), *((b"2", v) for v in NO_PLACES)])
    stored = load(stores, 2)
    assert stored.offsets == BEFORE
    mend(Appends(stores), 2, stored.mended)
    stored = load(stores, 2)
    assert (stored.offsets, refused(stored)) == (BEFORE, {})


NO_RUNS = [
    *(b"", b"\x01", b"null", open_run()[:-20], b"\x02" + open_run()[1:], b"\x00" * 25),
    open_run(opened=2**40),
    open_run(opened=2**63 - 1),
    open_run(batches=(1, 2**40)),
    open_run(batches=(2**62,)),
    open_run() + b"\x80",
    open_run() + b"\xff" * 900_000,
    open_run(last_ms=now_ms() + 10 * 86_400_000),
]


def test_a_lost_row_of_a_run_is_looked_for_in_the_log(stores: Config) -> None:
    """Its topics are read from their start, unless what it was is still known."""
    grow(stores, 3)
    known = [(b"3/acme/known", open_run()), (b"3/acme/over", None)]
    put(stores, 3, [*good(3), *known, *((name, v) for name, _ in known for v in NO_RUNS)])
    stored = load(stores, 3)
    assert held(stored) == ([b"acme/known", RUN], ["run_1"], WHOLE[2])
    assert refuses(stores, 3, b"3/acme/over") == [True] * len(NO_RUNS)
    mend(Appends(stores), 3, stored.mended)
    again = load(stores, 3)
    assert (held(again), refused(again)) == (held(stored), {})

    put(stores, 3, [(b"3/acme/lost", NO_RUNS[0])])
    stored = load(stores, 3)
    assert held(stored) == ([b"acme/known", RUN], ["run_1"], {usage.TOPIC: 5})
    assert (stored.head_ms, list(refused(stored))) == (0, [b"3/acme/lost"])
    mend(Appends(stores), 3, stored.mended)
    again = load(stores, 3)
    assert (held(again), refused(again)) == (held(stored), {})


NO_ESTIMATES = [
    *(b"", b"nothing at all", stamped(b""), stamped(estimated("run_3"))),
    stamped(estimated("run_2", writer_epoch=2)),
    stamped(encode("run.created", run_body("acme", "run_2"))),
    stamped(estimated("run_2"), 2**63),
]


def test_a_lost_estimate_is_looked_for_in_the_log(stores: Config) -> None:
    grow(stores, 4)
    key = b"usage/4/acme/run_2/1"
    put(stores, 4, [*good(4), *((key, value) for value in NO_ESTIMATES)])
    assert refuses(stores, 4, key) == [True] * len(NO_ESTIMATES)
    stored = load(stores, 4)
    assert held(stored) == ([RUN], ["run_1"], BEFORE)
    mend(Appends(stores), 4, stored.mended)
    again = load(stores, 4)
    assert (held(again), refused(again)) == (held(stored), {})


def test_what_is_refused_is_a_dead_letter_byte_for_byte_and_told_once(stores: Config) -> None:
    grow(stores, 5)
    rows: list[Row] = [(b"x", b"\xff\x00 foreign"), (b"5", b"[]"), (b"5/acme/odd", b"odd")]
    put(stores, 5, [*good(5), *rows])
    worker = _Worker(stores)
    try:
        assert worker._own(5).refused == []
        assert worker._own(5).start(RUNS) is None
    finally:
        worker.close()
    letters = [letter for letter in dead_letters(stores) if letter.topic == TOPIC]
    assert [(letter.view, letter.partition) for letter in letters] == [("finalizer", 5)] * 3
    written = [(m.key(), m.value()) for m in read_all(stores, f"{TOPIC}.dead")]
    assert sorted(written) == sorted(rows)
    assert Owned(stores, 5).refused == []
