"""Kill gateways under load, or stop Kafka under one, and look for what they were answered for.

A gateway (`bench.chaos.gateway`) notes every acknowledgement in a file at once. It is killed with
SIGKILL at a random moment, often while Kafka is stopped and the spool is filling; the next one
adopts the spool. At the end each acknowledged event must be once in each of its views, each run
must have ended, and of a run that a kill left open at most a second of output may be missing.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.chaos.witness import Compared, Notes, Stores, compare, lost_ms, silence_ms
from bench.producer_chunk import kafka_pid
from local.stack import external_addresses
from local.workers import environment
from serve.views import wait_for
from turnlog.config import Config
from turnlog.errors import TurnlogError, Unavailable
from turnlog.ids import new_id
from turnlog.keeper_client import create
from turnlog.spool.look import look

START_S = 120.0
END_S = 180.0
VIEWS_S = 300.0
# 20 s of log time after the last sign of life, 30 s for the finalizer, and a loaded machine.
FINALIZED_S = 120.0
LOST_MS = 1000.0
WARM_ACKS = 200

Notify = Callable[[int], None]


class Result(NamedTuple):
    """What was found; the first eight are what the check reads.

    Attributes:
        kills: how often a gateway was killed that had been asked and had not answered.
        acknowledged: events that producers answered for.
        missing: of those, how many are not in one of their views.
        duplicated: how many are in a view more than once.
        unfinished: runs in the log without an end.
        finalized: runs that the finalizer ended.
        worst_lost_output_ms: the longest stretch of output that a run left open lacks.
        ok: nothing is missing or doubled, every run ended, at most a second of output is lost.
        seed: of the choices.
        unacknowledged: the fewest events that were asked and not answered for at a kill.
        by_spool: acknowledgements that the disk gave.
        stalls: kills for which Kafka was stopped.
        worst_silence_ms: the longest time before a kill in which the machine let no gateway run;
            lost output that is not much more says nothing of the producer.
        shortened: finalized runs whose end has less output than the log.
        wrong: the first of what is missing or doubled.
    """

    kills: int
    acknowledged: int
    missing: int
    duplicated: int
    unfinished: int
    finalized: int
    worst_lost_output_ms: float
    ok: bool
    seed: int
    unacknowledged: int
    by_spool: int
    stalls: int
    worst_silence_ms: float
    shortened: int
    wrong: list[str]


class Outage(NamedTuple):
    """What stopping Kafka under load did.

    Attributes:
        outage_s: how long it was stopped.
        acknowledged: events that the producer answered for.
        missing: of those, how many are not in one of their views.
        duplicated: how many are in a view more than once.
        unfinished: runs without an end.
        by_spool: acknowledgements that the disk gave.
        spool_peak_mb: the most that the spool held.
        spool_left: events in it at the end.
        rss_before_mb: the gateway's memory when Kafka was stopped.
        rss_peak_mb: and the most that it was afterwards.
        ok: nothing is missing or doubled, every run ended, the spool is empty.
        wrong: the first of what is missing or doubled.
    """

    outage_s: float
    acknowledged: int
    missing: int
    duplicated: int
    unfinished: int
    by_spool: int
    spool_peak_mb: float
    spool_left: int
    rss_before_mb: float
    rss_peak_mb: float
    ok: bool
    wrong: list[str]


class Killed(NamedTuple):
    """A gateway that was killed: what it wrote down, when it died, what was then unanswered."""

    notes: Notes
    at_ns: int
    unanswered: int


class Gateway:
    """A gateway as a process of its own."""

    def __init__(self, config: Config, org: str, folder: Path, number: int, seed: int) -> None:
        self.log = folder / f"gateway-{number}.log"
        command = [sys.executable, "-m", "bench.chaos.gateway", str(self.log), org]
        errors = (folder / "gateways.err").open("ab")
        with errors:
            self.child = subprocess.Popen(
                [*command, str(seed * 100 + number)],
                env={**os.environ, **environment(config, external_addresses(config))},
                stderr=errors,
                cwd=Path(__file__).parents[2],
            )

    def await_load(self) -> None:
        """Wait until it has been answered some times.

        Raises:
            Unavailable: it ended, or nothing was answered in two minutes.
        """
        deadline = time.monotonic() + START_S
        while len(Notes(self.log).acked) < WARM_ACKS:
            if self.child.poll() is not None or time.monotonic() > deadline:
                raise Unavailable(f"a gateway does not start: see {self.log.parent}/gateways.err")
            time.sleep(0.1)

    def kill(self) -> Killed:
        """End it with SIGKILL, at once."""
        at_ns = time.monotonic_ns()
        self.child.kill()
        self.child.wait()
        notes = Notes(self.log)
        return Killed(notes, at_ns, len(notes.asked - notes.acked))

    def finish(self) -> Notes:
        """Have it end its runs and close.

        Raises:
            TurnlogError: it failed.
        """
        self.log.with_suffix(".stop").touch()
        try:
            code = self.child.wait(END_S)
        except subprocess.TimeoutExpired:
            self.child.kill()
            raise TurnlogError(f"a gateway did not end in {END_S:.0f} s: {self.log}") from None
        if code:
            raise TurnlogError(f"a gateway failed: see {self.log.parent}/gateways.err")
        return Notes(self.log)


@contextmanager
def gateway(config: Config, org: str, folder: Path, number: int, seed: int) -> Iterator[Gateway]:
    """Give a gateway under load, which does not outlive the block."""
    made = Gateway(config, org, folder, number, seed)
    try:
        made.await_load()
        yield made
    finally:
        made.child.kill()
        made.child.wait()


@contextmanager
def stopped(config: Config) -> Iterator[None]:
    """Stop Kafka, without a word to anyone, for the time of the block.

    Raises:
        UsageError: Kafka is not one of this home's own.
    """
    process = psutil.Process(kafka_pid(config))
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def kill_producers(
    config: Config,
    folder: Path,
    kills: int,
    seed: int,
    notify: Notify = lambda killed: None,
    finalized_s: float = FINALIZED_S,
) -> Result:
    """Kill gateways under load.

    Args:
        config: of a running stack of this home.
        folder: empty, for what gateways write down.
        kills: how many.
        seed: of the choices.
        notify: called with the number of kills so far.
        finalized_s: how long to wait for the finalizer to end what they left open.

    Raises:
        UsageError: Kafka is not one of this home's own.
        Unavailable: a part does not answer, or a gateway does not start.
        TurnlogError: the last gateway does not end, or nothing was unanswered at most kills.
    """
    kafka_pid(config)
    org = _new_org(config)
    chance = random.Random(seed)
    killed: list[Killed] = []
    stalls = 0
    counted = 0
    while counted < kills:
        if len(killed) > 3 * kills:
            raise TurnlogError("everything was answered at most kills: they prove nothing")
        with gateway(config, org, folder, len(killed), seed) as running:
            time.sleep(chance.uniform(0.5, 4.0))
            stalled = chance.random() < 0.5
            stalls += stalled
            with stopped(config) if stalled else nullcontext():
                # Up to when the spool has begun to fill.
                time.sleep(chance.uniform(0.1, 1.5) if stalled else 0)
                killed.append(running.kill())
        # A kill of a gateway that had been answered everything proves nothing: one more.
        counted += killed[-1].unanswered > 0
        notify(counted)
    with gateway(config, org, folder, len(killed), seed) as running:
        last = running.finish()
    _await_views(config)
    left = _await_ends(config, org, finalized_s)
    return _result(config, org, seed, killed, last, left, stalls)


def stop_kafka(
    config: Config, folder: Path, outage_s: float, seed: int, finalized_s: float = FINALIZED_S
) -> Outage:
    """Stop Kafka under the load of a gateway, and let it go on.

    Args:
        config: of a running stack of this home.
        folder: empty, for what the gateway writes down.
        outage_s: how long.
        seed: of the choices.
        finalized_s: how long to wait for runs to end.

    Raises:
        UsageError: Kafka is not one of this home's own.
        Unavailable: a part does not answer, or the gateway does not start.
        TurnlogError: the gateway does not end.
    """
    org = _new_org(config)
    with gateway(config, org, folder, 0, seed) as running:
        before = Notes(running.log).rss_mb[-1]
        with stopped(config):
            time.sleep(outage_s)
        time.sleep(2.0)
        notes = running.finish()
    _await_views(config)
    left = _await_ends(config, org, finalized_s)
    found = compare(notes.acked, Stores(config, org))
    waiting = sum(held.events for held in look(config.spool_folder) if not held.alive)
    return Outage(
        outage_s=outage_s,
        acknowledged=found.acknowledged,
        missing=len(found.missing),
        duplicated=len(found.duplicated),
        unfinished=left,
        by_spool=notes.via["spool"],
        spool_peak_mb=round(notes.spool_bytes / 1e6, 1),
        spool_left=waiting,
        rss_before_mb=before,
        rss_peak_mb=max(notes.rss_mb),
        ok=not (found.missing or found.duplicated or left or waiting),
        wrong=_first(found),
    )


def _new_org(config: Config) -> str:
    org = new_id("chaos")
    create(config, org)
    return org


def _await_views(config: Config) -> None:
    behind = wait_for(config, timeout_s=VIEWS_S)
    if behind:
        raise Unavailable(f"views did not catch up in {VIEWS_S:.0f} s: {behind}")


def _await_ends(config: Config, org: str, timeout_s: float) -> int:
    """Wait until every run has an end; return how many have none when the time is up."""
    deadline = time.monotonic() + timeout_s
    while left := len(Stores.open_runs(config, org)):
        if time.monotonic() > deadline:
            return left
        time.sleep(1.0)
    _await_views(config)
    return 0


def _result(
    config: Config,
    org: str,
    seed: int,
    killed: list[Killed],
    last: Notes,
    left: int,
    stalls: int,
) -> Result:
    notes = [*(each.notes for each in killed), last]
    acked = set().union(*(each.acked for each in notes))
    stores = Stores(config, org)
    found = compare(acked, stores)
    ended = stores.finalized()
    orphans = {*ended, *Stores.open_runs(config, org)}
    lost = max((lost_ms(k.notes, k.at_ns, stores, orphans) for k in killed), default=0.0)
    short = sum(chars < stores.chars[run] for run, chars in ended.items())
    wrong = bool(found.missing or found.duplicated or left or short or lost > LOST_MS)
    return Result(
        kills=sum(each.unanswered > 0 for each in killed),
        acknowledged=found.acknowledged,
        missing=len(found.missing),
        duplicated=len(found.duplicated),
        unfinished=left,
        finalized=len(ended),
        worst_lost_output_ms=lost,
        ok=not wrong,
        seed=seed,
        unacknowledged=min(filter(None, (each.unanswered for each in killed)), default=0),
        by_spool=sum(each.via["spool"] for each in notes),
        stalls=stalls,
        worst_silence_ms=max((silence_ms(k.notes, k.at_ns) for k in killed), default=0.0),
        shortened=short,
        wrong=_first(found),
    )


def _first(found: Compared) -> list[str]:
    return [f"missing: {what}" for what in found.missing[:10]] + [
        f"twice: {what}" for what in found.duplicated[:10]
    ]
