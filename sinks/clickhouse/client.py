"""The one door to ClickHouse: the stock HTTP client, its errors as ours.

An error's text may quote a row, so only its code and name are ever shown.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import clickhouse_connect
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import Error

from turnlog.config import Config
from turnlog.errors import TurnlogError, Unavailable

# It logs a stack trace for each refused connection, and the errors' text may quote rows.
logging.getLogger("clickhouse_connect").setLevel(logging.CRITICAL)

# Below max.poll.interval.ms (300 s), or the partitions move in the middle of an insert.
TIMEOUT_S = 240
# One part an insert, whole or not at all, there when it is answered: rows are read in small blocks,
# which stay in the processor's cache (4.8 instead of 6.3 µs a row), and written as one.
INSERT_SETTINGS = {
    "async_insert": 0,
    "max_insert_threads": 1,
    "max_insert_block_size": 16_384,
    "min_insert_block_size_rows": 1 << 30,
    "min_insert_block_size_bytes": 1 << 30,
}
PIECE_BYTES = 1 << 20
MISSING_CODES = frozenset({60, 81})  # UNKNOWN_TABLE, UNKNOWN_DATABASE
# The store's own troubles; every other error of an insert may come from what was inserted.
STORE_CODES = frozenset(
    {
        60,  # UNKNOWN_TABLE
        81,  # UNKNOWN_DATABASE
        159,  # TIMEOUT_EXCEEDED
        164,  # READONLY
        202,  # TOO_MANY_SIMULTANEOUS_QUERIES
        209,  # SOCKET_TIMEOUT
        210,  # NETWORK_ERROR
        216,  # QUERY_WITH_SAME_ID_IS_ALREADY_RUNNING
        242,  # TABLE_IS_READ_ONLY
        243,  # NOT_ENOUGH_SPACE
        252,  # TOO_MANY_PARTS
        394,  # QUERY_WAS_CANCELLED
        497,  # ACCESS_DENIED
        516,  # AUTHENTICATION_FAILED
    }
)


class InsertRefused(TurnlogError):
    """The engine refused what was inserted; nothing of that insert was stored."""


class ClickHouse:
    """A connection; threads may share it.

    Args:
        config: where ClickHouse is and which database is ours.

    Raises:
        Unavailable: it does not answer.
        UsageError: it has no address.
    """

    def __init__(self, config: Config) -> None:
        self.database = config.clickhouse_database
        self._client = connect(config)

    def command(self, sql: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Run a statement that answers with nothing.

        Raises:
            Unavailable: it failed; the message holds the error's code and name.
        """
        with answering():
            self._client.command(sql, parameters=dict(parameters or {}))

    def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of a query.

        Raises:
            Unavailable: it failed.
        """
        return list(self.stream(sql, parameters))

    def stream(
        self, sql: str, parameters: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query block by block.

        Raises:
            Unavailable: it failed.
        """
        bound = dict(parameters or {})
        with answering(), self._client.query_rows_stream(sql, bound) as rows:
            yield from rows

    def insert_avro(
        self, table: str, columns: Sequence[str], container: Sequence[bytes], query_id: str
    ) -> None:
        """Insert one Avro container; on return its rows are stored, on an error none of them is.

        Args:
            table: in our database.
            columns: what the container holds of the table.
            container: the container's bytes in pieces.
            query_id: what a later owner of the partitions finds this insert by.

        Raises:
            InsertRefused: the engine does not take these bytes.
            Unavailable: it does not answer, or cannot store anything now.
        """
        # A generator, because the client sends bytes again by itself when the connection breaks
        # after the insert was done: every row twice. With its length, or it is sent in chunks.
        body = (piece for piece in _pieces(container))
        headers = {"Content-Length": str(sum(map(len, container)))}
        try:
            self._client.raw_insert(
                f"{self.database}.{table}",
                columns,
                body,
                settings={**INSERT_SETTINGS, "query_id": query_id},
                fmt="Avro",
                transport_settings=headers,
            )
        except Error as error:
            if error.code is None or error.code in STORE_CODES:
                raise _unavailable(error) from None
            raise InsertRefused(f"clickhouse refuses an insert: {_name(error)}") from None


def connect(config: Config) -> Client:
    """Return the stock client, one a process and address. Use it within `answering()`.

    Threads may share it. To make one takes three queries and 25 ms; commands need two or three.

    Raises:
        Unavailable: ClickHouse does not answer.
        UsageError: it has no address.
    """
    with answering():
        return _client(
            config.need("clickhouse"),
            config.clickhouse_user,
            config.clickhouse_password.get_secret_value(),
        )


@lru_cache(maxsize=8)
def _client(url: str, user: str, password: str) -> Client:
    address = urlsplit(url)
    secure = address.scheme == "https"
    return clickhouse_connect.get_client(
        host=address.hostname,
        port=address.port or (8443 if secure else 8123),
        username=user,
        password=password,
        secure=secure,
        compress=secure,
        send_receive_timeout=TIMEOUT_S,
        autogenerate_session_id=False,
        show_clickhouse_errors=False,
    )


@contextmanager
def answering() -> Iterator[None]:
    """Turn the client's errors into Unavailable, with their code and name only."""
    try:
        yield
    except Error as error:
        raise _unavailable(error) from None


def _pieces(container: Sequence[bytes]) -> Iterator[bytes]:
    for part in container:
        for start in range(0, len(part), PIECE_BYTES):
            yield part[start : start + PIECE_BYTES]


def _unavailable(error: Error) -> Unavailable:
    if error.code is None:
        return Unavailable("clickhouse does not answer")
    if error.code in MISSING_CODES:
        return Unavailable("clickhouse has no such table yet: `turnlog up` starts what makes it")
    return Unavailable(f"clickhouse failed: {_name(error)}")


def _name(error: Error) -> str:
    return f"code {error.code} {error.name or ''}".rstrip()
