"""`import_file`: two passes over a file, windows of lines written at once.

Pass one learns which ids repeat and where each response is booked, so that the order of lines has
no effect; pass two writes. Both stream: memory holds a window of lines and the plan.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from serve.importer.events import (
    Event,
    Ids,
    Scope,
    conversation_created,
    events_of,
    ids_of,
    usage_corrected,
    usage_recorded,
)
from serve.importer.found import Known, Views, patiently
from serve.importer.har import is_har, read_entries
from serve.importer.judge import Judge, Verdict
from serve.importer.lines import NO_LINES, Line, check_file, may_be_lines, read_lines
from serve.importer.plan import Plan
from serve.importer.report import Report
from serve.views import wait_for
from turnlog import Producer
from turnlog.config import Config
from turnlog.errors import UsageError
from turnlog.keeper_client import credential_of
from turnlog.keys import Locator
from turnlog.producer.transport import Position
from turnlog.providers import Exchange, Usage, understand
from turnlog.providers.usage import unknown

logger = logging.getLogger(__name__)

# Lines in flight: with 64 the wait for acknowledgements is a tenth of the work of reading them.
WINDOW = 64
VIEWS_TIMEOUT_S = 10.0
ASKED = ("runs", "usage")

Progress = Callable[[float], None]


def import_file(
    config: Config,
    path: Path,
    org: str = "local",
    project: str = "default",
    on_progress: Progress = lambda share: None,
    again: bool = False,
) -> Report:
    """Write the exchanges of a file into the log; what is there already is not written again.

    Args:
        config: where the parts are.
        path: a file of one exchange a line, of any size; or a HAR.
        org: for whom; its credential must be here.
        project: one of the org's.
        on_progress: called with the share of the work that is done, 0 to 1.
        again: whether usage that an earlier import could not read is booked now.

    Returns:
        What was done with each line. A line that is wrong is rejected and the rest goes on.

    Raises:
        UsageError: there is no such file, org or project.
        Unavailable: a part does not answer. What was written stays; a second import goes on.
    """
    check_file(path)
    if not is_har(path) and not may_be_lines(path):
        report = Report()
        report.rejected.add("line:1", NO_LINES, 1)
        return report
    return asyncio.run(_import(config, path, org, project, on_progress, again))


async def _import(
    config: Config, path: Path, org: str, project: str, on_progress: Progress, again: bool
) -> Report:
    async with Producer.open(config, credential_of(config, org)) as producer:
        grant = producer.grant
        if project not in grant.projects(org):
            raise UsageError(f"org {org} has no project {project[:64]!r}")
        scope = Scope(org, project, grant.id_key(org), time.time_ns() // 1000)
        behind = await asyncio.to_thread(
            patiently, lambda: wait_for(config, ASKED, VIEWS_TIMEOUT_S)
        )
        with Judge(config, lambda: producer.grant, scope) as judge:
            importer = _Import(producer, judge, Views(config, org), scope, on_progress, again)
            importer.warn_of(behind)
            await importer.run(path)
        return importer.report


class _Work(NamedTuple):
    """One line on its way."""

    line: Line
    exchange: Exchange
    ids: Ids
    events: list[Event]


@dataclass(slots=True)
class _Decided:
    """A line that is to be written."""

    work: _Work
    usage: Usage
    verdict: Verdict


class _Import:
    """One import; its report grows as it goes."""

    def __init__(
        self,
        producer: Producer,
        judge: Judge,
        views: Views,
        scope: Scope,
        on_progress: Progress,
        again: bool,
    ) -> None:
        self.report = Report()
        self._producer = producer
        self._judge = judge
        self._views = views
        self._scope = scope
        self._on_progress = on_progress
        self._again = again
        self._plan = Plan()
        self._conversations: set[str] = set()
        self._has_lines = True

    def warn_of(self, behind: dict[str, int]) -> None:
        """Note views that have not caught up: lines that they lack may be written once more."""
        for view, events in behind.items():
            self.report.warnings.add("", f"view_behind: {view} lacks {events} events")

    async def run(self, path: Path) -> None:
        """Go through the file twice."""
        size = max(1, check_file(path))
        self._has_lines = not is_har(path)
        read = read_lines if self._has_lines else read_entries
        for line in read(path):
            self._plan.add(line, self._read(line))
            self._on_progress(line.end / size / 3)
            await asyncio.sleep(0)
        lines = read(path)
        while window := list(islice(lines, WINDOW)):
            await self._window(window)
            self._on_progress((1 + 2 * window[-1].end / size) / 3)
        if not self._plan.lines:
            empty = "the file is empty" if read is read_lines else "no call of a model"
            self.report.rejected.add("line:1", empty)

    def _reject(self, line: Line, reason: str) -> None:
        # An entry of a HAR has a number and is no line.
        self.report.rejected.add(line.id, reason, line.number if self._has_lines else None)

    def _read(self, line: Line) -> Exchange | None:
        at_us = self._scope.at_us if line.told.ended_us is None else line.told.ended_us
        return understand(line.source, at_us=at_us) if line.source else None

    async def _window(self, lines: list[Line]) -> None:
        self.report.exchanges += len(lines)
        works = list(self._works(lines))
        known = await asyncio.to_thread(self._views.runs, [work.ids.run for work in works])
        judged = [(work, await self._judged(work, known)) for work in works]
        new = [(work, verdict) for work, verdict in judged if verdict.kind == "write"]
        decided = await self._booked(new)
        await self._write(decided)
        if self._again:
            await self._read_again([pair for pair in judged if pair[1].kind == "already"])

    def _works(self, lines: list[Line]) -> Iterator[_Work]:
        """Yield the lines that are exchanges of their own; the others are reported."""
        for line in lines:
            exchange = self._read(line)
            if exchange is None:
                self._reject(line, line.reason)
            elif not self._plan.repeats(line):
                ids = ids_of(exchange, self._scope)
                events = list(events_of(exchange, ids, self._scope, line.told))
                yield _Work(line, exchange, ids, events)
            elif self._plan.same(line):
                self.report.already += 1
            else:
                self._reject(line, "conflict")

    async def _judged(self, work: _Work, known: dict[str, Known]) -> Verdict:
        found = known.get(work.ids.run)
        verdict = await asyncio.to_thread(self._judge.judge, work.events, work.ids, found)
        if verdict.kind == "already":
            self.report.already += 1
        elif verdict.kind == "erased":
            self.report.erased += 1
        elif verdict.kind == "rejected":
            self._reject(work.line, verdict.reason)
        return verdict

    async def _booked(self, new: list[tuple[_Work, Verdict]]) -> list[_Decided]:
        """Decide which line counts the usage of a response that several carry."""
        pairs = {
            (work.ids.conversation, work.ids.response_ref)
            for work, _ in new
            if work.ids.conversation and work.ids.response_ref
        }
        counted = await asyncio.to_thread(self._views.booked, pairs) if pairs else {}
        decided = []
        for work, verdict in new:
            usage = work.exchange.usage
            others = counted.get((work.ids.conversation, work.ids.response_ref), set())
            elsewhere = bool(others - {work.ids.run})
            if usage.quality == "measured" and (elsewhere or not self._plan.books(work.exchange)):
                usage = unknown("repeated", usage.provider_usage)
            decided.append(_Decided(work, usage, verdict))
        return decided

    async def _write(self, decided: list[_Decided]) -> None:
        """Write lines: all but the usage, and when all of that is durable, the usage."""
        begun = {d.work.ids.conversation for d in decided} - self._conversations - {""}
        self._conversations |= await asyncio.to_thread(self._views.conversations, begun)
        accepted = [future for each in decided for future in self._append(each)]
        await _all(accepted)
        await _all([self._append_usage(each) for each in decided])
        for each in decided:
            self._count(each)

    def _append(self, decided: _Decided) -> Iterator["asyncio.Future[Position]"]:
        work, verdict = decided.work, decided.verdict
        conversation = work.ids.conversation
        if conversation and conversation not in self._conversations:
            self._conversations.add(conversation)
            yield self._send(conversation_created(work.exchange, work.ids, self._scope), None)
        for event in work.events:
            own_text = event.subject is not None and event.subject.kind == "t"
            yield self._send(event, verdict.turn_locator if own_text else verdict.locator)

    def _append_usage(self, decided: _Decided) -> "asyncio.Future[Position]":
        work = decided.work
        told = work.line.told
        event = usage_recorded(work.exchange, decided.usage, work.ids, self._scope, told)
        return self._send(event, decided.verdict.locator)

    async def _read_again(self, there: list[tuple[_Work, Verdict]]) -> None:
        """Book usage of runs that are there and whose form an earlier import did not know."""
        read = [pair for pair in there if pair[0].exchange.usage.quality == "measured"]
        runs = [work.ids.run for work, _ in read]
        unread = await asyncio.to_thread(self._views.not_understood, runs)
        left = [(work, verdict) for work, verdict in read if work.ids.run in unread]
        decided = [d for d in await self._booked(left) if d.usage.quality == "measured"]
        await _all([self._send(self._corrected(each), None) for each in decided])
        self.report.read_again += len(decided)

    def _corrected(self, decided: _Decided) -> Event:
        work = decided.work
        told = work.line.told
        return usage_corrected(work.exchange, decided.usage, work.ids, self._scope, told)

    def _send(self, event: Event, locator: Locator | None) -> "asyncio.Future[Position]":
        return self._producer.append(event.type, event.body, event.content, event.subject, locator)

    def _count(self, decided: _Decided) -> None:
        exchange, report = decided.work.exchange, self.report
        report.runs += 1
        report.by_status[exchange.status] += 1
        report.usage[decided.usage.quality] += 1
        if decided.usage.quality == "unknown":
            report.no_usage[decided.usage.reason] += 1
        for warning in exchange.warnings:
            report.warnings.add(decided.work.line.id, warning)


async def _all(futures: "list[asyncio.Future[Position]]") -> None:
    """Wait for every acknowledgement before the first failure is raised."""
    results = await asyncio.gather(*futures, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
