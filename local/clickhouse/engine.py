"""The engine: sessions on one chDB path, the queries that run, and how they are killed."""

import asyncio
import logging
import os
import re
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple
from urllib.parse import urlencode

from local.clickhouse.statement import Insert, Kill, quote, quote_name

logger = logging.getLogger(__name__)

WORKERS = 4
# What a ClickHouse server's default profile would hold: a mutation is done when it is answered, an
# insert is a part on disk when it is answered.
PROFILE = {"mutations_sync": "1", "async_insert": "0"}
_CODE = re.compile(r"Code: (\d+)\.")
_KILL_POLL_S = 0.05

NOT_IMPLEMENTED = 48
SYNTAX_ERROR = 62
SAME_ID_RUNS = 216
SESSION_NOT_FOUND = 372
SESSION_IS_LOCKED = 373
QUERY_WAS_CANCELLED = 394


class EngineError(Exception):
    """An error of ClickHouse's with its code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def engine_error(code: int, name: str, text: str) -> EngineError:
    """Return an error in the words of the engine's own."""
    return EngineError(code, f"Code: {code}. DB::Exception: {text}. ({name})")


class Answer(NamedTuple):
    """What a statement gave: body, and the counts of the X-ClickHouse-Summary header."""

    body: bytes
    summary: dict[str, int]


NOTHING = Answer(b"", {})


@dataclass(frozen=True)
class Work:
    """One statement to run.

    Attributes:
        sql: the statement, without an INSERT's data.
        format: of the answer where the statement asks for none.
        insert: where `data` go, for an INSERT with data.
    """

    sql: bytes
    format: str
    database: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    insert: Insert | None = None
    data: bytes = b""


@dataclass
class Query:
    """A query from the arrival of its first byte to its answer."""

    query_id: str
    user: str = "default"
    sql: str = ""
    began: float = field(default_factory=time.monotonic)
    cancelled: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Session:
    """A client's session: a handle that keeps settings and temporary tables."""

    handle: Any
    applied: dict[str, str] = field(default_factory=dict)  # settings of the last request
    busy: bool = False
    expires: float = 0.0


class Engine:
    """All access to one chDB path. Its methods are called on the event loop."""

    def __init__(self, path: str) -> None:
        from chdb import _chdb

        # Its own module says nothing of its types.
        self._connect: Callable[[str], Any] = vars(_chdb)["connect"]
        self._path = f"{path}?{urlencode(PROFILE)}"
        # Keeps the engine open while sessions come and go.
        self._keeper = self._connect(self._path)
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="query")
        # Kills must not wait behind the queries that they are to end.
        self._killers = ThreadPoolExecutor(1, thread_name_prefix="kill")
        self._queries: dict[str, Query] = {}
        self._sessions: dict[str, Session] = {}
        self.version = self._ask("SELECT version()")
        self.timezone = self._ask("SELECT timezone()")

    def _ask(self, sql: str) -> str:
        answer: bytes = self._keeper.query(sql, "TabSeparatedRaw").bytes()
        return answer.decode().strip()

    @contextmanager
    def registered(self, query: Query) -> Iterator[Query]:
        """Make a query known to KILL QUERY for as long as it lasts.

        Raises:
            EngineError: another query with its id still runs.
        """
        if query.query_id in self._queries:
            text = f"Query with id = {query.query_id} is already running"
            raise engine_error(SAME_ID_RUNS, "QUERY_WITH_SAME_ID_IS_ALREADY_RUNNING", text)
        self._queries[query.query_id] = query
        try:
            yield query
        finally:
            del self._queries[query.query_id]
            query.ended.set()

    async def run(self, query: Query, work: Work, session: Session | None) -> Answer:
        """Run a statement on a worker thread; it goes on when the client goes away.

        Raises:
            EngineError: the engine refused it, or it was killed.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._workers, self._run, query, work, session)

    def _run(self, query: Query, work: Work, session: Session | None) -> Answer:
        one_off = Session(self._connect(self._path)) if session is None else None
        used = session or one_off
        assert used is not None
        try:
            _stop_if_cancelled(query)
            _begin(used, query, work)
            _stop_if_cancelled(query)
            return _execute(used.handle, work)
        except RuntimeError as error:  # all that the engine's binding raises
            raise _as_engine_error(str(error)) from None
        finally:
            if one_off is not None:
                one_off.handle.close()

    async def kill(self, kill: Kill, parameters: Mapping[str, str], by: Query) -> Answer:
        """Kill the queries that a KILL QUERY selects, received ones that have not begun included.

        With SYNC it is answered when they have ended, so that what they wrote is there to be read
        and nothing is written any more.
        """
        chosen = await self._chosen(kill.where, parameters, by)
        if kill.mode == "TEST":
            return await self._report("", chosen, kill.format)
        for query in chosen:
            query.cancelled = True
        endings = [self._end(query) for query in chosen]
        if kill.mode == "SYNC":
            await asyncio.gather(*endings)
            return await self._report("finished", chosen, kill.format)
        for ending in endings:
            _background(ending)
        return await self._report("waiting", chosen, kill.format)

    async def _chosen(self, where: str, parameters: Mapping[str, str], by: Query) -> list[Query]:
        known = {name: query for name, query in self._queries.items() if query is not by}
        if not known:
            return []
        sql = f"SELECT query_id FROM {_rows(known.values())} WHERE {where}"
        answer = await self._control(sql, "TabSeparatedRaw", parameters)
        return [known[name] for name in answer.body.decode().splitlines() if name in known]

    async def _end(self, query: Query) -> None:
        # Again and again: it may not have reached the engine when it is first looked for.
        tag = quote(query.query_id)
        sql = f"KILL QUERY WHERE Settings['log_comment'] = {tag} ASYNC"
        while not query.ended.is_set():
            await self._control(sql, "Null", {})
            try:
                await asyncio.wait_for(query.ended.wait(), _KILL_POLL_S)
            except TimeoutError:
                continue

    async def _report(self, status: str, queries: list[Query], form: str) -> Answer:
        if not queries:
            return NOTHING
        columns = "query_id, user, query"
        kept = columns if not status else f"{quote(status)} AS kill_status, {columns}"
        return await self._control(f"SELECT {kept} FROM {_rows(queries)}", form, {})

    async def _control(self, sql: str, form: str, parameters: Mapping[str, str]) -> Answer:
        loop = asyncio.get_running_loop()
        work = Work(sql.encode(), form, parameters=parameters)
        query = Query(query_id="")
        return await loop.run_in_executor(self._killers, self._run, query, work, None)

    @contextmanager
    def session(self, name: str, timeout_s: float, must_exist: bool) -> Iterator[Session | None]:
        """Hold the session of a name, made if need be; None without a name.

        Raises:
            EngineError: another query of the session runs, or it must exist and does not.
        """
        self._expire()
        if not name:
            yield None
            return
        session = self._sessions.get(name)
        if session is None and must_exist:
            raise engine_error(SESSION_NOT_FOUND, "SESSION_NOT_FOUND", f"Session {name} not found")
        if session is None:
            session = self._sessions[name] = Session(self._connect(self._path))
        if session.busy:
            text = f"Session {name} is locked by a concurrent client"
            raise engine_error(SESSION_IS_LOCKED, "SESSION_IS_LOCKED", text)
        session.busy = True
        try:
            yield session
        finally:
            session.busy = False
            session.expires = time.monotonic() + timeout_s

    def _expire(self) -> None:
        now = time.monotonic()
        for name, session in list(self._sessions.items()):
            if not session.busy and session.expires < now:
                del self._sessions[name]
                session.handle.close()

    def close(self) -> None:
        """Wait for what runs and close the engine."""
        self._workers.shutdown(wait=True)
        self._killers.shutdown(wait=True)
        for session in self._sessions.values():
            session.handle.close()
        self._keeper.close()


def _begin(session: Session, query: Query, work: Work) -> None:
    """Give the session this request's database and settings, and take back the last one's."""
    # The engine names its queries itself; its log_comment carries our name for them.
    wanted = {**work.settings, "log_comment": query.query_id}
    changed = [
        f"{quote_name(name)} = {quote(value)}"
        for name, value in wanted.items()
        if session.applied.get(name) != value
    ]
    changed += [
        f"{quote_name(name)} = {PROFILE.get(name, 'DEFAULT')}"
        for name in session.applied
        if name not in wanted
    ]
    use = f"USE {quote_name(work.database)}; " if work.database else ""
    session.applied = {}
    session.handle.query(f"{use}SET {', '.join(changed)}" if changed else f"{use}SELECT 1", "Null")
    session.applied = wanted


def _stop_if_cancelled(query: Query) -> None:
    if query.cancelled:
        raise engine_error(QUERY_WAS_CANCELLED, "QUERY_WAS_CANCELLED", "Query was cancelled")


def _execute(handle: Any, work: Work) -> Answer:
    if work.insert is None:
        return _answer(handle, work.sql, work)
    with _unnamed_file() as file:
        file.write(work.data)
        file.flush()
        source = f" FROM INFILE '/dev/fd/{file.fileno()}' COMPRESSION 'none' ".encode()
        sql = work.insert.before_source + source + work.insert.after_source
        return _answer(handle, sql, work)


def _unnamed_file() -> IO[bytes]:
    """Return a file for an INSERT's data that the engine reads by its descriptor.

    By a name it could not be read everywhere: the engine takes the whole path for a pattern.
    """
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("insert"), "wb")
    return tempfile.TemporaryFile()


def _answer(handle: Any, sql: bytes, work: Work) -> Answer:
    result = handle.query(sql, work.format, params=dict(work.parameters))
    summary = {
        "read_rows": result.storage_rows_read(),
        "read_bytes": result.storage_bytes_read(),
        "written_rows": result.rows_written(),
        "written_bytes": result.bytes_written(),
        "result_rows": result.rows_read(),
        "elapsed_ns": int(result.elapsed() * 1e9),
    }
    return Answer(result.bytes(), summary)


def _as_engine_error(message: str) -> EngineError:
    match = _CODE.search(message)
    return EngineError(int(match[1]) if match else 0, message)


def _rows(queries: Iterable[Query]) -> str:
    """Return a table expression with the columns of system.processes that KILL QUERY is used on."""
    now = time.monotonic()
    rows = ", ".join(
        f"({quote(q.query_id)}, {quote(q.user)}, {quote(q.sql)}, {now - q.began:.3f})"
        for q in queries
    )
    structure = "query_id String, user String, query String, elapsed Float64"
    return f"values('{structure}', {rows})"


_tasks: set[asyncio.Task[None]] = set()


def _background(work: Awaitable[None]) -> None:
    task = asyncio.ensure_future(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
