"""Keys for who reads: from the rows of `turnlog.keys` and the KMS or local key file.

A reader answers only after it has reached the end of the topic that it saw at its start, and then
follows the topic in a thread of its own. `read_committed`: what an aborted transaction wrote never
counts.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from streams.keeper.state import Project, month_of
from turnlog.config import Config
from turnlog.errors import KeyUnavailable, NoTree, TurnlogError, Unavailable, UsageError
from turnlog.kafka import partition_of, partitions_of, reader_settings, unavailable
from turnlog.keeper_client import public_key_path
from turnlog.keys.cache import NODE_SECONDS, Deriver, NodeCache
from turnlog.keys.frames import DataKey
from turnlog.keys.heads import Floor, Heads
from turnlog.keys.index import Locator, Subject
from turnlog.keys.keyfile import load_key_file
from turnlog.keys.kms import Kms, LocalKms
from turnlog.keys.orgkeys import OrgKeys, check_keys
from turnlog.keys.rows import (
    head_row_key,
    id_row_key,
    open_head,
    open_id_key,
    read_label,
    read_month,
)
from turnlog.keys.tree import StoredTree

logger = logging.getLogger(__name__)

TOPIC = "turnlog.keys"
CATCH_UP_S = 5.0
"""How long a key that cannot be derived is waited for before the caller is told."""

_START_SILENCE_S = 30.0
_TREES = 4096


class KeyRowsReader:
    """The rows of `turnlog.keys` as they were read so far, with the heads that are believed.

    Pure: rows in, keys out; `KeyReader` feeds it from Kafka. Safe to use from several threads.

    Args:
        kms: unwraps the orgs' keys.
        public: the keeper's public key.
        floors: heads below which none is accepted.
        clock: seconds that only go up.
    """

    def __init__(
        self,
        kms: Kms,
        public: Ed25519PublicKey,
        floors: Mapping[bytes, Floor] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.heads = Heads(public, floors)
        self._public = public
        self._clock = clock
        self._org_keys = OrgKeys(self.rows, kms, public, clock)
        self._cache = NodeCache(clock=clock)
        self._derivers: dict[bytes, tuple[float, Deriver]] = {}
        self._lock = threading.RLock()

    def take(self, row_key: bytes, value: bytes | None, live: bool = False) -> None:
        """Take in one row in the order of the log, `live` as `Heads.take` says."""
        with self._lock:
            if row_key.endswith(b"/head"):
                self._take_head(row_key, value, live)
            elif value is None:
                self.rows.pop(row_key, None)
            else:
                self.rows[row_key] = value

    def _take_head(self, row_key: bytes, value: bytes | None, live: bool) -> None:
        try:
            changed = self.heads.take(row_key, value, live)
        except KeyUnavailable as error:
            logger.error("a key tree is stopped: %s", error)
            changed = True
        if changed:
            _, deriver = self._derivers.pop(row_key, (0.0, None))
            if deriver is not None:
                self._cache.drop(deriver.tree)

    def data_key(self, locator: Locator, subject: Subject) -> DataKey:
        """Return the key of a subject, as `KeySource` says."""
        with self._lock:
            return self._deriver(subject.org, locator.tree).data_key(locator, subject)

    def _deriver(self, org: str, tree: bytes) -> Deriver:
        row_key = head_row_key(org, tree)
        expires, found = self._derivers.get(row_key, (0.0, None))
        if found is not None and expires > self._clock():
            return found
        stored = self.stored_tree(org, tree)
        head = stored.head
        deriver = Deriver(tree, head.gen, head.index_key, stored, self._cache)
        self._derivers.pop(row_key, None)
        self._derivers[row_key] = self._clock() + NODE_SECONDS, deriver
        if len(self._derivers) > _TREES:
            del self._derivers[next(iter(self._derivers))]
        return deriver

    def stored_tree(self, org: str, tree: bytes) -> StoredTree:
        """Return a tree as its present head has it.

        Raises:
            NoTree: there is no head.
            KeyUnavailable: the head is not believed or does not open.
            UsageError: another key than this process was given wrapped the org's key.
        """
        with self._lock:
            row_key = head_row_key(org, tree)
            value = self.heads.value(row_key)
            version = read_label(row_key, value, self._public).wrap_version
            head = open_head(org, tree, value, self._org_keys.get(org, version), self._public)
            return StoredTree(org, tree, head, self.rows)

    def trees(self, org: str) -> Iterator[tuple[Project, str, StoredTree]]:
        """Give each project of an org with its months (YYYY-MM) and their trees.

        Raises:
            KeyUnavailable: a month's row or a head is not believed or does not open.
        """
        with self._lock:
            named = {key: month_of(key) for key in self.rows}
        for key in sorted(named):
            found = named[key]
            if found is not None and found[0].org == org:
                tree = read_month(key, self.rows[key], self._public)
                yield *found, self.stored_tree(org, tree)

    def id_key(self, org: str) -> bytes:
        """Return an org's id key.

        Raises:
            KeyUnavailable: there is none, or it does not open.
        """
        with self._lock:
            row_key = id_row_key(org)
            value = self.rows.get(row_key)
            if value is None:
                raise KeyUnavailable(f"row {row_key.decode()} is missing")
            version = read_label(row_key, value, self._public).wrap_version
            return open_id_key(org, value, self._org_keys.get(org, version), self._public)


class KeyReader:
    """A `KeySource` over `turnlog.keys`; complete when the constructor returns.

    Args:
        config: where Kafka is, and the local key file.
        orgs: only the partitions of these orgs are read; all by default.
        floors: heads below which none is accepted.
        topic: the topic of key rows.

    Raises:
        UsageError: the key file or the keeper's public key is missing or not that of the rows.
        Unavailable: Kafka does not answer.
    """

    def __init__(
        self,
        config: Config,
        orgs: Iterable[str] | None = None,
        *,
        floors: Mapping[bytes, Floor] | None = None,
        topic: str = TOPIC,
    ) -> None:
        kms = LocalKms(load_key_file(config.local_key_file))
        public, where = public_key(config)
        self._state = KeyRowsReader(kms, public, floors)
        self._partitions = _partitions(config, topic, orgs)
        self._topic = topic
        self._next: dict[int, int] = {}
        self._first_ends: dict[int, int] = {}
        self._moved = threading.Condition()
        self._closing = threading.Event()
        # A fetch that waits is not woken by a commit, so the wait is how late a reader is.
        settings = {**reader_settings(config, "read_committed"), "fetch.wait.max.ms": 100}
        self._consumer = Consumer(settings)
        # The end of the log itself, open transactions included: a commit is answered before its
        # marks are in the log, so what is readable may end before what was just written.
        self._bounds = Consumer(reader_settings(config, "read_uncommitted"))
        self._thread = threading.Thread(target=self._follow, name="turnlog-keys", daemon=True)
        try:
            self._start(kms, public, where)
        except TurnlogError:
            self.close()
            raise

    def _start(self, kms: Kms, public: Ed25519PublicKey, where: str) -> None:
        starts = [TopicPartition(self._topic, number, 0) for number in self._partitions]
        self._first_ends = ends = self._ends(self._consumer)
        self._consumer.assign(starts)
        self._thread.start()
        self._reach(ends, _START_SILENCE_S)
        check_keys(self._state.rows, kms, public, where)

    def __enter__(self) -> "KeyReader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop following the topic."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        self._consumer.close()
        self._bounds.close()

    def data_key(self, locator: Locator, subject: Subject) -> DataKey:
        """Return the key of a subject.

        Where it cannot be derived, the topic's present end is reached first and it is tried again,
        so that a reader which is a head behind a mint does not take a new key for a missing one.

        Raises:
            Erased: it was destroyed.
            KeyUnavailable: it still cannot be derived.
            NoTree: its tree never was.
        """
        try:
            return self._state.data_key(locator, subject)
        except (KeyUnavailable, NoTree):
            self.catch_up()
            return self._state.data_key(locator, subject)

    def id_key(self, org: str) -> bytes:
        """Return an org's id key, 32 bytes.

        Raises:
            KeyUnavailable: there is none, or it does not open.
        """
        try:
            return self._state.id_key(org)
        except KeyUnavailable:
            self.catch_up()
            return self._state.id_key(org)

    def stored_tree(self, org: str, tree: bytes) -> StoredTree:
        """Return a tree as its present head has it; for operators' commands.

        Raises:
            NoTree: there is no head.
            KeyUnavailable: the head is not believed or does not open.
        """
        return self._state.stored_tree(org, tree)

    def trees(self, org: str) -> Iterator[tuple[Project, str, StoredTree]]:
        """Give each project of an org with its months (YYYY-MM) and their trees.

        Raises:
            KeyUnavailable: a month's row or a head is not believed or does not open.
        """
        return self._state.trees(org)

    def rows(self) -> Mapping[bytes, bytes]:
        """Return the rows as they are now, heads left out."""
        return self._state.rows

    def floors(self) -> Mapping[bytes, Floor]:
        """Return the newest heads seen."""
        return self._state.heads.floors()

    def catch_up(self) -> None:
        """Read to the end of the topic as it is now; without progress for 5 s, say so and go on."""
        try:
            self._reach(self._ends(self._bounds), CATCH_UP_S)
        except Unavailable as error:
            logger.warning("turnlog.keys is not read to its end: %s", error)

    def _ends(self, asked: Consumer) -> dict[int, int]:
        try:
            return {number: self._end(asked, number) for number in self._partitions}
        except KafkaException as error:
            raise unavailable(error) from error

    def _end(self, asked: Consumer, number: int) -> int:
        bounds = asked.get_watermark_offsets(TopicPartition(self._topic, number), timeout=10.0)
        if bounds is None:
            raise Unavailable("kafka does not answer: no offsets in time")
        return bounds[1]

    def _reach(self, ends: Mapping[int, int], silence_s: float) -> None:
        """Wait until the offsets are read; a wait without any progress ends after `silence_s`."""
        with self._moved:
            while any(self._next.get(number, 0) < end for number, end in ends.items()):
                if not self._moved.wait(silence_s):
                    raise Unavailable(f"{self._topic} was not read to its end in {silence_s:.0f} s")

    def _follow(self) -> None:
        while not self._closing.is_set():
            messages = self._consumer.consume(1000, timeout=0.1)
            for message in messages:
                self._take(message)
            if messages:
                with self._moved:
                    self._moved.notify_all()

    def _take(self, message: Message) -> None:
        number, offset, error = message.partition(), message.offset(), message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            # librdkafka goes on trying by itself; who waits sees no progress and says so.
            logger.warning("turnlog.keys cannot be read now: %s", error.name())
            return
        if number is None or offset is None:
            return
        if error is None:
            live = offset >= self._first_ends[number]
            self._state.take(message.key() or b"", message.value(), live)
        self._next[number] = offset + (error is None)


def public_key(config: Config) -> tuple[Ed25519PublicKey, str]:
    """Return the keeper's public key and where it came from.

    Raises:
        UsageError: there is none, or it is not one.
    """
    if config.keeper_public:
        return _public(config.keeper_public, "config field keeper_public")
    path = public_key_path(config)
    return _public(_read(path), str(path))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise UsageError(
            f"no public key of the keeper: set TURNLOG_KEEPER_PUBLIC, or start the keeper here"
            f" ({path}: {error.strerror})"
        ) from error


def _public(text: str, where: str) -> tuple[Ed25519PublicKey, str]:
    try:
        return Ed25519PublicKey.from_public_bytes(bytes.fromhex(text)), where
    except ValueError:
        raise UsageError(f"{where} is not an Ed25519 public key in hex") from None


def _partitions(config: Config, topic: str, orgs: Iterable[str] | None) -> list[int]:
    numbers = partitions_of(config, topic)
    if orgs is None:
        return numbers
    return sorted({partition_of(org.encode(), len(numbers)) for org in orgs})
