"""What the views already hold of the lines of an import."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sinks.clickhouse.client import ClickHouse
from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.keys import Locator

logger = logging.getLogger(__name__)

# A part that was killed is back within seconds (local-stack.md); an import of an hour must not
# end because of one of them.
PATIENCE_S = 120.0
RETRY_S = 0.5

_RUNS = """
SELECT run, type, project, hex(content_mac), hex(key_tree), key_day, key_gen, partition, offset
FROM {table} WHERE org = {{org:String}} AND run IN {{runs:Array(String)}}
  AND type IN ('run.created', 'run.completed', 'run.failed', 'run.cancelled', 'run.interrupted')
ORDER BY append_us, offset
"""
_COMPLETE = """
SELECT DISTINCT run FROM {table}
WHERE org = {{org:String}} AND type = 'usage.recorded' AND run IN {{runs:Array(String)}}
"""
_CONVERSATIONS = """
SELECT DISTINCT conversation FROM {table}
WHERE org = {{org:String}} AND conversation IN {{conversations:Array(String)}}
"""
_BOOKED = """
SELECT conversation, response_ref, run FROM {table}
WHERE org = {{org:String}} AND conversation IN {{conversations:Array(String)}}
  AND response_ref IN {{refs:Array(String)}} AND quality = 'measured'
"""

_NOT_UNDERSTOOD = """
SELECT run FROM {table} WHERE org = {{org:String}} AND run IN {{runs:Array(String)}}
GROUP BY run
HAVING countIf(reason = 'not_understood') > 0 AND countIf(quality = 'measured') = 0
"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stored:
    """One event of a run as the view has it.

    Attributes:
        mac: content_mac, 32 bytes.
        partition: where the event is in `turnlog.runs`.
        offset: see partition.
    """

    mac: bytes
    partition: int
    offset: int


@dataclass(slots=True)
class Known:
    """A run that the views have.

    Attributes:
        project: the project that it belongs to.
        locator: where its keys sit.
        created: its `run.created`, None where only the end is there.
        terminal: its terminal event, None where there is none yet.
        complete: whether its usage is booked, which is written after all the rest.
    """

    project: str
    locator: Locator
    created: Stored | None = None
    terminal: Stored | None = None
    complete: bool = False


class Views:
    """Asks `runs` and `usage` about the runs of one org.

    Args:
        config: where ClickHouse is.
        org: the org's id.
        patience_s: for how long it is asked again while it does not answer.
    """

    def __init__(self, config: Config, org: str, patience_s: float = PATIENCE_S) -> None:
        self._config = config
        self._org = org
        self._patience_s = patience_s
        self._clickhouse: ClickHouse | None = None

    def runs(self, runs: Sequence[str]) -> dict[str, Known]:
        """Return what is known of each of these runs; those not begun are left out.

        Raises:
            Unavailable: ClickHouse did not answer for that long.
        """
        known: dict[str, Known] = {}
        for run, type_, *row in self._ask("runs", _RUNS, runs=list(runs)):
            _note(known, run, type_, *row)
        if known:
            for (run,) in self._ask("usage", _COMPLETE, runs=list(known)):
                known[run].complete = True
        return known

    def conversations(self, conversations: Iterable[str]) -> set[str]:
        """Return those conversations of which a line is complete, so that they were created.

        Raises:
            Unavailable: see `runs`.
        """
        rows = self._ask("usage", _CONVERSATIONS, conversations=list(conversations))
        return {conversation for (conversation,) in rows}

    def booked(self, pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], set[str]]:
        """Return, for pairs of conversation and response, the runs under which it was counted.

        Raises:
            Unavailable: see `runs`.
        """
        conversations, refs = zip(*pairs, strict=True)
        rows = self._ask("usage", _BOOKED, conversations=list(conversations), refs=list(refs))
        found: dict[tuple[str, str], set[str]] = {}
        for conversation, ref, run in rows:
            found.setdefault((conversation, ref), set()).add(run)
        return found

    def not_understood(self, runs: Sequence[str]) -> set[str]:
        """Return those runs whose usage nobody could read so far.

        Raises:
            Unavailable: see `runs`.
        """
        return {run for (run,) in self._ask("usage", _NOT_UNDERSTOOD, runs=list(runs))}

    def _ask(self, table: str, sql: str, **parameters: list[str]) -> list[tuple[Any, ...]]:
        if not all(parameters.values()):
            return []
        return patiently(lambda: self._query(table, sql, parameters), self._patience_s)

    def _query(self, table: str, sql: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        if self._clickhouse is None:
            self._clickhouse = ClickHouse(self._config)
        name = f"{self._clickhouse.database}.{table}"
        return self._clickhouse.rows(sql.format(table=name), {"org": self._org, **parameters})


def patiently(ask: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """Ask until there is an answer, for two minutes at most.

    Raises:
        Unavailable: there was none.
    """
    deadline = time.monotonic() + patience_s
    silent = True
    while True:
        try:
            return ask()
        except Unavailable as error:
            if time.monotonic() >= deadline:
                raise
            if silent:
                logger.warning("%s; trying again for %d s", error, patience_s)
        silent = False
        time.sleep(RETRY_S)


def _note(
    known: dict[str, Known],
    run: str,
    type_: str,
    project: str,
    mac: str,
    tree: str,
    day: int,
    gen: int,
    partition: int,
    offset: int,
) -> None:
    """Take a row in, the first of each kind: a second beginning under another key is a repeat."""
    found = known.setdefault(run, Known(project, Locator(bytes.fromhex(tree), day, gen)))
    stored = Stored(bytes.fromhex(mac), partition, offset)
    if type_ == "run.created":
        found.created = found.created or stored
    else:
        found.terminal = found.terminal or stored
