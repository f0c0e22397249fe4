"""Floors on disk: the newest head of each tree that any process of this home has ever believed.

One SQLite file, `{home}/keys/floors.db`, shared by the commands and workers of a home. A floor is
durable before its head is used, and a statement can only raise it. Nothing in it is secret; who can
write it can make a reader believe a topic that was rolled back.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.keys.heads import Floor

FORMAT = 1
BUSY_S = 30.0
"""How long another process's transaction is waited for; one takes milliseconds."""

_TABLE = """
CREATE TABLE IF NOT EXISTS floor (
    row_key BLOB PRIMARY KEY, gen INTEGER NOT NULL, digest BLOB NOT NULL
) WITHOUT ROWID
"""
_RAISE = """
INSERT INTO floor VALUES (?, ?, ?) ON CONFLICT DO UPDATE
SET gen = excluded.gen, digest = excluded.digest WHERE excluded.gen > floor.gen
"""
_READ = "SELECT gen, digest FROM floor WHERE row_key = ?"


def floors_path(config: Config) -> Path:
    """Return where the floors of a home are kept."""
    return config.home / "keys" / "floors.db"


class FloorStore:
    """Floors by row key of the head. Safe to use from several threads and processes.

    Args:
        path: the file, made when it is missing.

    Raises:
        Unavailable: it cannot be read or written, or is of another format.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        with self._told():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, BUSY_S, isolation_level=None, check_same_thread=False)
            self._prepare()

    def _prepare(self) -> None:
        # The rollback journal, not a write-ahead log: what a commit answered is in the file, with
        # EXTRA also after a power cut between the commit and the journal's removal.
        self._db.execute("PRAGMA synchronous = EXTRA")
        [(version,)] = self._db.execute("PRAGMA user_version")
        if version not in (0, FORMAT):
            self._db.close()
            raise Unavailable(f"{self._path} has format {version}, this is for {FORMAT}")
        if version == 0:
            with self._transaction():
                self._db.execute(_TABLE)
                self._db.execute(f"PRAGMA user_version = {FORMAT}")

    def load(self, wanted: Callable[[bytes], bool] = lambda _: True) -> dict[bytes, Floor]:
        """Return the floors whose row key is wanted.

        Raises:
            Unavailable: they cannot be read.
        """
        with self._lock, self._told():
            found = self._db.execute("SELECT row_key, gen, digest FROM floor")
            return {key: Floor(gen, digest) for key, gen, digest in found if wanted(key)}

    def raise_to(self, floors: Mapping[bytes, Floor]) -> dict[bytes, Floor]:
        """Make floors durable, as `Floors` says."""
        with self._lock, self._told(), self._transaction():
            self._db.executemany(_RAISE, [(key, *floor) for key, floor in floors.items()])
            return {key: Floor(*self._db.execute(_READ, (key,)).fetchone()) for key in floors}

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        with self._db:
            yield

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise Unavailable(
                f"the floors of key heads in {self._path} cannot be read or written: {error}"
            ) from error
