"""`turnlog.keys` read once from its beginning to its end, for `turnlog keys check`."""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import NamedTuple

from streams.keys.rows import HEAD
from turnlog.config import Config
from turnlog.kafka import read_all


class LogRow(NamedTuple):
    """A record of a row.

    Attributes:
        partition: where it is.
        offset: where it is.
        value: None where the row was removed.
    """

    partition: int
    offset: int
    value: bytes | None

    @property
    def gen(self) -> int:
        """The generation that a head states."""
        return int.from_bytes((self.value or b"")[5:13], "big")

    @property
    def digest(self) -> bytes:
        """SHA-256 of its value."""
        return sha256(self.value or b"").digest()


class Log:
    """What a topic of key rows holds.

    Attributes:
        last: the last record by row key; only rows, no heartbeats.
        heads: all heads by row key, oldest first.
    """

    def __init__(self) -> None:
        self.last: dict[bytes, LogRow] = {}
        self.heads: dict[bytes, list[LogRow]] = {}

    def take(self, key: bytes, row: LogRow) -> None:
        """Take in one record, in the order of the log."""
        if b"/" not in key:
            return
        self.last[key] = row
        if key.endswith(HEAD):
            self.heads.setdefault(key, []).append(row)

    def with_open(self, seen: "Log", stable: Mapping[int, int]) -> "Log":
        """Return this log with the heads that lie behind the last stable offsets as the last ones.

        Args:
            seen: the same topic, read uncommitted.
            stable: last stable offset by partition.
        """
        found = Log()
        found.last = dict(self.last)
        for key, heads in seen.heads.items():
            if heads[-1].offset >= stable[heads[-1].partition]:
                found.last[key] = heads[-1]
        return found

    def rows(self) -> dict[bytes, bytes]:
        """Return the rows that are there, but for strangers."""
        return {
            key: row.value
            for key, row in self.last.items()
            if row.value is not None and key.isascii()
        }

    def strangers(self) -> list[bytes]:
        """Return the row keys that are there and can be none of ours: those are ASCII."""
        return [
            key for key, row in self.last.items() if row.value is not None and not key.isascii()
        ]


def read_log(
    config: Config,
    topic: str,
    partitions: Iterable[int] | None = None,
    isolation: str = "read_committed",
) -> Log:
    """Read a topic to its end as it is now.

    Raises:
        Unavailable: Kafka does not answer.
    """
    log = Log()
    for message in read_all(config, topic, partitions, isolation=isolation):
        partition, offset = message.partition(), message.offset()
        assert partition is not None and offset is not None
        log.take(message.key() or b"", LogRow(partition, offset, message.value()))
    return log


def org_of(row_key: bytes) -> str:
    """Return the org of a row."""
    return row_key.partition(b"/")[0].decode(errors="replace")


def tree_of(head_key: bytes) -> str:
    """Return the tree id, in hex, of the row key of a head or page."""
    parts = head_key.decode(errors="replace").split("/")
    return parts[1] if len(parts) > 2 else ""
