"""Ending overdue runs: look at the log once more, read back what they showed, append their ends."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Message

from processors import estimates as usage
from processors.common import shaped
from processors.estimates import CORRECTED
from processors.runs import TERMINAL
from streams.dead import Dead, DeadLetters
from streams.finalizer.appends import Appends
from streams.finalizer.ending import End, Lost, end_of
from streams.finalizer.owned import CHUNKS, RUNS, Owned
from streams.finalizer.readback import LogReader
from streams.keys_reader import KeyReader
from turnlog.config import Config
from turnlog.errors import DecodeError, KeyUnavailable, TooLarge
from turnlog.events import Event, Record, decode, key_of, record

logger = logging.getLogger(__name__)

# Up to 16 KB each. A single run that has more is read at once all the same.
BATCHES_AT_ONCE = 5_000
RETRY_S = 5.0
# Only another version of this could end it.
RETRY_LARGE_S = 3600.0
# A beginning that may be a repeat stands behind the first one, which is not much younger than it
# says of itself.
BEFORE_MS = 60_000


class _Due(NamedTuple):
    """A run that is overdue, with its beginning read back."""

    key: bytes
    began: Event
    began_ms: int
    began_offset: int

    @property
    def from_ms(self) -> int:
        """Append time from which on the log may say something of it."""
        body = self.began.body
        written_ms = body["occurred_at_us"] // 1000 if body["may_repeat"] else self.began_ms
        return min(self.began_ms, written_ms) - BEFORE_MS


class Finisher:
    """Ends runs.

    Raises:
        Unavailable: Kafka does not answer.
        UsageError: there is no key file.
    """

    def __init__(self, config: Config, appends: Appends) -> None:
        self._config = config
        self._appends = appends
        self._log = LogReader(config)
        self._letters = DeadLetters(config, "finalizer")
        self._keys: KeyReader | None = None
        self._retry: dict[bytes, float] = {}

    def close(self) -> None:
        """Leave Kafka and the key rows."""
        self._log.close()
        if self._keys is not None:
            self._keys.close()

    def bury(self, dead: Sequence[Dead]) -> None:
        """Write dead letters; on return they are acknowledged."""
        self._letters.write(dead)

    def take_back(self, bodies: Sequence[dict[str, Any]]) -> None:
        """Append negations of estimates; on return they are acknowledged."""
        self._appends.events(filter(None, map(_negation, bodies)))

    def has_work(self, owned: Owned) -> bool:
        """Say whether a run is overdue that is not waiting for its keys."""
        return owned.partition.has_due(self._waiting())

    def _waiting(self) -> Mapping[bytes, float]:
        now = time.monotonic()
        self._retry = {key: at for key, at in self._retry.items() if at > now}
        return self._retry

    def finish(self, owned: Owned, limit: int) -> bool:
        """End some overdue runs of a partition; return whether there may be more."""
        keys = owned.partition.due(owned.goal_ms, limit, self._waiting())
        if not keys:
            return False
        due = self._still_open(owned, self._beginnings(owned, keys))
        measured = self._measured(owned, due)
        for group in _groups(owned, due):
            ends = self._ends(owned, group)
            self._append(ends, measured)
            for key in ends:
                owned.partition.runs[key].mark_written()
        return True

    def _append(self, ends: Mapping[bytes, End], measured: set[bytes]) -> None:
        """Append estimates first: an end without one would never get it."""
        if not ends:
            return
        dead = [letter for end in ends.values() for letter in end.dead]
        if dead:
            self._letters.write(dead)
        self._appends.events([end.usage for key, end in ends.items() if key not in measured])
        self._appends.events([end.interrupted for end in ends.values()])
        logger.info("%d runs ended because their writers were lost", len(ends))

    def _beginnings(self, owned: Owned, keys: Sequence[bytes]) -> list[_Due]:
        """Read back what began the runs.

        What retention has removed can never be ended; what no view takes, because an id of it has
        not the form of one, is no run.
        """
        runs = owned.partition.runs
        offsets = {runs[key].opened: key for key in keys}
        found = self._log.fetch(RUNS, owned.number, list(offsets))
        due: list[_Due] = []
        for offset, key in offsets.items():
            message = found.get(offset)
            began = None if message is None else _shaped(message)
            if message is None or began is None:
                logger.error("no run begins at %s/%d/%d (any more)", RUNS, owned.number, offset)
                owned.partition.close(key)
            else:
                due.append(_Due(key, began, message.timestamp()[1], offset))
        return due

    def _still_open(self, owned: Owned, due: list[_Due]) -> list[_Due]:
        """Leave out runs that somebody ended, which only look open here.

        A repeat of `run.created` that was drained behind the end of its run is no new run, and a
        row that a paused finalizer wrote into the checkpoint may be of a run that is over.
        """
        if not due:
            return []
        start = min(self._looked_at_from(owned, run) for run in due)
        runs = owned.partition.runs
        for key, event in self._events(RUNS, owned.number, start, due):
            run = runs.get(key)
            if run and event.type in TERMINAL and event.body["writer_epoch"] >= run.epoch:
                owned.partition.close(key)
        return [run for run in due if run.key in runs]

    def _looked_at_from(self, owned: Owned, run: _Due) -> int:
        if not run.began.body["may_repeat"]:
            return run.began_offset
        return min(run.began_offset, self._log.offset_at(RUNS, owned.number, run.from_ms))

    def _measured(self, owned: Owned, due: list[_Due]) -> set[bytes]:
        """Return the runs of which a measured usage event stands in the log already."""
        if not due:
            return set()
        start = self._log.offset_at(usage.TOPIC, owned.number, min(run.from_ms for run in due))
        return {
            key
            for key, event in self._events(usage.TOPIC, owned.number, start, due)
            if event.body.get("quality") == "measured" and event.body["sign"] == 1
        }

    def _events(
        self, topic: str, number: int, start: int, due: Sequence[_Due]
    ) -> list[tuple[bytes, Event]]:
        """Return the events of some runs in a topic from an offset to its end."""
        streams = {key_of(*run.began) for run in due}
        names = {run.key for run in due}
        found: list[tuple[bytes, Event]] = []
        for message in self._log.scan(topic, number, start):
            event = _event(message) if message.key() in streams else None
            if event is not None:
                key = f"{event.body['org']}/{event.body['run']}".encode()
                found += [(key, event)] if key in names else []
        return found

    def _ends(self, owned: Owned, group: Sequence[_Due]) -> dict[bytes, End]:
        """Return the ends of runs, without those whose keys cannot be read now."""
        runs = owned.partition.runs
        offsets = {due.key: list(runs[due.key].batches()) for due in group}
        wanted = [offset for of_run in offsets.values() for offset in of_run]
        found = self._log.fetch(CHUNKS, owned.number, wanted)
        if len(found) < len(wanted):
            logger.warning("%d chunk batches are gone from the log", len(wanted) - len(found))
        ends: dict[bytes, End] = {}
        for due in group:
            run = runs[due.key]
            batches = [found[offset] for offset in offsets[due.key] if offset in found]
            end = self._end(due.key, Lost(due.began, run.epoch, run.last_ms, batches))
            if end is not None:
                ends[due.key] = end
        return ends

    def _end(self, key: bytes, lost: Lost) -> End | None:
        if self._keys is None:
            self._keys = KeyReader(self._config, role="finalizer")
        try:
            return end_of(lost, self._keys)
        except KeyUnavailable as error:
            self._retry[key] = time.monotonic() + RETRY_S
            logger.error("run %s cannot be ended now: %s", lost.began.body["run"], error)
            return None
        except TooLarge as error:
            self._retry[key] = time.monotonic() + RETRY_LARGE_S
            logger.error("run %s cannot be ended: %s", lost.began.body["run"], error)
            return None


def _groups(owned: Owned, due: Sequence[_Due]) -> Iterator[list[_Due]]:
    """Yield runs in groups whose chunk batches are held in memory together."""
    group: list[_Due] = []
    size = 0
    for run in due:
        count = sum(1 for _ in owned.partition.runs[run.key].batches())
        if group and size + count > BATCHES_AT_ONCE:
            yield group
            group, size = [], 0
        group.append(run)
        size += count
    if group:
        yield group


def _negation(body: dict[str, Any]) -> Record | None:
    """Return what takes an estimate back; None where that is too large, which ours never is."""
    try:
        return record(CORRECTED, body)
    except TooLarge as error:
        logger.error("an estimate of run %s cannot be taken back: %s", body["run"], error)
        return None


def _event(message: Message) -> Event | None:
    try:
        return decode(message.value() or b"")
    except DecodeError:
        return None


def _shaped(message: Message) -> Event | None:
    """Return an event in the shapes that views take, None where they refuse it."""
    event = _event(message)
    body = None if event is None else shaped(event)
    return None if event is None or body is None else Event(event.type, body)
