"""Keys for who reads: from the rows of `turnlog.keys` and the KMS or local key file.

A reader answers only after it has reached the end of the topic that it saw at its start, and then
follows the topic in a thread of its own. `read_committed`: what an aborted transaction wrote never
counts. The floors of the heads that it believes are kept in its home, for it and for all others
there, so that neither a restart nor a topic that was rolled back brings an older head back.
"""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from streams.keeper.state import Project
from streams.keys.floors import FloorStore, floors_path
from streams.keys.local_copy import CopyDamaged, RowsCopy, copies_folder, open_copy
from streams.keys.rows import KeyRowsReader
from turnlog.config import Config
from turnlog.errors import KeyUnavailable, NoTree, TurnlogError, Unavailable, UsageError
from turnlog.kafka import (
    ANSWER_S,
    client_settings,
    partition_of,
    partitions_of,
    reader_settings,
    unavailable,
)
from turnlog.keeper_client import public_key_path
from turnlog.keys.frames import DataKey
from turnlog.keys.heads import Floor
from turnlog.keys.index import Locator, Subject
from turnlog.keys.keyfile import load_key_file
from turnlog.keys.kms import LocalKms
from turnlog.keys.orgkeys import check_keys
from turnlog.keys.rows import Row
from turnlog.keys.tree import StoredTree
from turnlog.passing import bounds, in_words

logger = logging.getLogger(__name__)

TOPIC = "turnlog.keys"
CATCH_UP_S = 5.0
"""How long a key that cannot be derived is waited for before the caller is told."""

_START_SILENCE_S = 30.0
_TICK_S = 0.1
_UPKEEP_S = 1.0
# Messages that are let go of soon cost less: 100,000 rows took 1.2 s in batches of 10,000, 0.45 s
# in these.
_BATCH = 200
_NO_ENDS: Mapping[int, int] = defaultdict(lambda: 1 << 63)


class KeyReader:
    """A `KeySource` over `turnlog.keys`; complete when the constructor returns.

    Args:
        config: where Kafka is, the local key file, and the home that keeps the floors.
        orgs: only the partitions of these orgs are read; all by default.
        topic: the topic of key rows.
        role: what this process is, such as `usage`, if it lives long: it then keeps a copy of the
            rows under this name in its home and starts from that (`streams.keys.local_copy`).
            A second process of the same role reads the topic.

    Raises:
        UsageError: the key file or the keeper's public key is missing or not that of the rows.
        Unavailable: Kafka does not answer, or the floors cannot be stored.
    """

    def __init__(
        self,
        config: Config,
        orgs: Iterable[str] | None = None,
        *,
        topic: str = TOPIC,
        role: str = "",
    ) -> None:
        kms = LocalKms(load_key_file(config.local_key_file))
        public, where = public_key(config)
        self._config = config
        self._topic = topic
        self._partitions, self._count = _partitions(config, topic, orgs)
        self._store = FloorStore(floors_path(config))
        self._floors = self._store.load(self._is_read)
        self._state = KeyRowsReader(kms, public, self._floors, self._store)
        self._next: dict[int, int] = {}
        self._moved = threading.Condition()
        self._closing = threading.Event()
        self._copy: RowsCopy | None = None
        self._ends_consumer: Consumer | None = None
        # A fetch that waits is not woken by a commit, so the wait is how late a reader is.
        settings = {**reader_settings(config, "read_committed"), "fetch.wait.max.ms": 100}
        self._consumer = Consumer(settings)
        self._thread = threading.Thread(target=self._follow, name="turnlog-keys", daemon=True)
        try:
            early = self._start(role)
            check_keys(self._state.rows, kms, public, where)
        except TurnlogError:
            self.close()
            raise
        self._take(early)
        self._thread.start()

    def _is_read(self, row_key: bytes) -> bool:
        org = row_key.partition(b"/")[0]
        return partition_of(org, self._count) in self._partitions

    # -- the start ---------------------------------------------------------------------------------

    def _start(self, role: str) -> list[Message]:
        """Read up to the ends as they are now; return what came from behind them."""
        bounds = self._bounds(self._consumer)
        self._next = {number: start for number, (start, _) in bounds.items()}
        if role:
            topic = self._topic, topic_id(self._config, self._topic)
            self._copy = open_copy(copies_folder(self._config), role, topic)
        if self._copy is not None:
            self._state.take_all(self._copy.load(bounds).items())
            self._next = dict(self._copy.next)
        self._consumer.assign([TopicPartition(self._topic, *place) for place in self._next.items()])
        early = self._read({number: end for number, (_, end) in bounds.items()})
        self._state.settle()
        self._state.miss(self._floors)
        return early

    def _read(self, ends: Mapping[int, int]) -> list[Message]:
        early: list[Message] = []
        heard = time.monotonic()
        while any(self._next[number] < end for number, end in ends.items()):
            messages = self._consume()
            if messages:
                heard = time.monotonic()
            elif time.monotonic() - heard > _START_SILENCE_S:
                raise Unavailable(
                    f"{self._topic} was not read to its end in {_START_SILENCE_S:.0f} s"
                )
            rows, moved, behind = _rows_below(messages, ends)
            early += behind
            self._take_rows(rows, moved, live=False)
        return early

    def _consume(self) -> list[Message]:
        """Return what is there, waiting a moment for the first message and for no other."""
        messages = self._consumer.consume(_BATCH, timeout=0)
        if messages:
            return messages
        message = self._consumer.poll(_TICK_S)
        return [] if message is None else [message]

    # -- following ---------------------------------------------------------------------------------

    def _follow(self) -> None:
        upkeep_at = 0.0
        while not self._closing.is_set():
            messages = self._consume()
            if messages:
                self._take(messages)
            if time.monotonic() >= upkeep_at:
                self._state.forget()
                self._keep_copy()
                upkeep_at = time.monotonic() + _UPKEEP_S

    def _take(self, messages: Sequence[Message]) -> None:
        rows, moved, _ = _rows_below(messages, _NO_ENDS)
        self._take_rows(rows, moved, live=True)
        try:
            self._state.settle()
        except Unavailable as error:
            logger.error("heads of key trees are not used yet: %s", error)
        with self._moved:
            self._moved.notify_all()

    def _take_rows(self, rows: list[Row], moved: Mapping[int, int], live: bool) -> None:
        stored = self._state.rows
        replaced = [key for key, _ in rows if key in stored and b"/" in key] if self._copy else ()
        self._state.take_all(rows, live)
        self._next.update(moved)
        if self._copy is not None and moved:
            with self._or_without_copy():
                self._copy.write(rows, replaced, len(stored), moved)

    def _keep_copy(self) -> None:
        copy = self._copy
        if copy is not None and copy.is_expired:
            logger.info("the local copy is 7 days old: the next start reads the topic again")
            self._drop_copy()
        elif copy is not None:
            with self._or_without_copy():
                copy.purge_beside()

    @contextmanager
    def _or_without_copy(self) -> Iterator[None]:
        try:
            yield
        except CopyDamaged as error:
            logger.warning("the local copy is thrown away: %s", error)
            self._drop_copy()

    def _drop_copy(self) -> None:
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.destroy()
            copy.close()

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
        if self._ends_consumer is not None:
            self._ends_consumer.close()
        if self._copy is not None:
            self._copy.close()
        self._store.close()

    def data_key(self, locator: Locator, subject: Subject) -> DataKey:
        """Return the key of a subject.

        Where it cannot be derived, the topic's present end is reached first and it is tried again,
        so that a reader which is a head behind a mint does not take a new key for a missing one.

        Raises:
            Erased: it was destroyed.
            KeyUnavailable: it still cannot be derived.
            NoTree: its tree never was.
        """
        if not self._thread.is_alive():
            raise KeyUnavailable("this reader has ended: what it knows may be out of date")
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
        """Return the last value of each row in the log."""
        return self._state.rows

    def floors(self) -> Mapping[bytes, Floor]:
        """Return the newest heads seen."""
        return self._state.heads.floors()

    def catch_up(self) -> None:
        """Read to the end of the topic as it is now; without progress for 5 s, say so and go on."""
        try:
            self._reach({number: end for number, (_, end) in self._bounds(self._log()).items()})
        except Unavailable as error:
            logger.warning("turnlog.keys is not read to its end: %s", error)

    def _log(self) -> Consumer:
        """Return a client that sees the end of the log itself, open transactions included.

        A commit is answered before its marks are in the log, so what is readable may end before
        what was just written.
        """
        with self._moved:
            if self._ends_consumer is None:
                settings = reader_settings(self._config, "read_uncommitted")
                self._ends_consumer = Consumer(settings)
            return self._ends_consumer

    def _bounds(self, asked: Consumer) -> dict[int, tuple[int, int]]:
        return {number: bounds(asked, self._topic, number, ANSWER_S) for number in self._partitions}

    def _reach(self, ends: Mapping[int, int]) -> None:
        """Wait until the offsets are read; 5 s without any progress end it."""
        with self._moved:
            while any(self._next[number] < end for number, end in ends.items()):
                if not self._moved.wait(CATCH_UP_S):
                    raise Unavailable(
                        f"{self._topic} was not read to its end in {CATCH_UP_S:.0f} s"
                    )


def _rows_below(
    messages: Sequence[Any], ends: Mapping[int, int]
) -> tuple[list[Row], dict[int, int], list[Message]]:
    """Return the rows below the given ends, the offsets that come next, and what lies behind."""
    rows: list[Row] = []
    moved: dict[int, int] = {}
    behind: list[Message] = []
    for message in messages:
        number, offset = message.partition(), message.offset()
        if (error := message.error()) is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                # librdkafka goes on trying by itself; who waits sees no progress and says so.
                logger.warning("turnlog.keys cannot be read now: %s", in_words(error))
                continue
            moved[number] = min(offset, ends[number])
            if offset > ends[number]:
                behind.append(message)
        elif offset < ends[number]:
            rows.append((message.key() or b"", message.value()))
            moved[number] = offset + 1
        else:
            behind.append(message)
            moved[number] = ends[number]
    return rows, moved, behind


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


def _partitions(config: Config, topic: str, orgs: Iterable[str] | None) -> tuple[list[int], int]:
    """Return the partitions to read, and how many the topic has."""
    numbers = partitions_of(config, topic)
    if orgs is None:
        return numbers, len(numbers)
    return sorted({partition_of(org.encode(), len(numbers)) for org in orgs}), len(numbers)


def topic_id(config: Config, topic: str) -> str:
    """Return Kafka's id of a topic: a topic made anew under the same name has another.

    Raises:
        Unavailable: Kafka does not answer, or has no such topic.
    """
    # The client must live until it has answered.
    admin = AdminClient(client_settings(config))
    asked = admin.describe_topics(TopicCollection([topic]), request_timeout=ANSWER_S)
    try:
        return str(asked[topic].result(ANSWER_S).topic_id)
    except KafkaException as error:
        raise unavailable(error) from error
