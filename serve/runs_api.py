"""Runs as people and programs ask for them: lists, one run, and the bytes of its content.

What an org may see comes from the credential that lies here (law 8). A run that is missing, of
another org, or erased gets one and the same answer.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

from processors.runs import TOPIC
from processors.usage import CLASSES
from serve.identified import identified
from serve.runs_query import runs_query
from sinks.clickhouse.client import ClickHouse
from streams.content import Content, log_ref, object_ref
from turnlog.config import Config
from turnlog.errors import Erased, KeyUnavailable, NotFound, TurnlogError
from turnlog.ids import is_id
from turnlog.keeper_client import credential_of, credential_path

Which = Literal["request", "response"]
STATUSES = ("running", "completed", "failed", "cancelled", "interrupted")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Place(NamedTuple):
    """Where an event with content stands: its coordinate, and its frame once it is located."""

    partition: int
    offset: int
    has_content: bool
    object: str
    frame_offset: int
    frame_bytes: int

    @property
    def ref(self) -> str | None:
        """Return `s3://…#offset:length`, `kafka://…` while it is not located, None if empty."""
        if not self.has_content:
            return None
        if self.object:
            return object_ref(self.object, self.frame_offset, self.frame_bytes)
        return log_ref(TOPIC, self.partition, self.offset)


class Run(NamedTuple):
    """One run: what a list shows of it, where its content is, and why its usage is unknown."""

    row: dict[str, Any]
    request: Place
    response: Place
    usage_reason: str | None


def list_runs(
    config: Config,
    org: str,
    *,
    project: str | None = None,
    status: str | None = None,
    limit: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the runs of an org, newest first, as they come from one query.

    Raises:
        UsageError: there is no credential for the org here.
        Unavailable: ClickHouse does not answer.
    """
    credential_of(config, org)
    found = _runs(config, org, project=project, status=status, limit=limit)
    return (run.row for run in found)


def run_content(config: Config, org: str, run: str, which: Which = "response") -> bytes:
    """Return the bytes of a run's request or response exactly as they were stored.

    Raises:
        NotFound: missing, another org's, or erased.
        KeyUnavailable: its key cannot be derived now: retry.
        TurnlogError: nothing was stored of what is asked, which is not the same as no bytes; or
            its frame is damaged, which is named.
        Unavailable: a part does not answer.
    """
    found = find_run(config, org, run)
    if which == "response" and found.row["status"] == "running":
        _require_alive(config, org, found)
        raise TurnlogError(f"run {run}: it is still running and has no response yet")
    content = _content(config, org, run, getattr(found, which))
    if which not in content:
        _require_alive(config, org, found)
        raise TurnlogError(f"run {run}: it has no stored {which}")
    stored = content[which]
    return stored if isinstance(stored, bytes) else str(stored).encode()


def run_summary(
    config: Config, org: str, run: str, *, project: str | None = None
) -> dict[str, Any]:
    """Return what a list shows of a run, with its output per choice; raises as `run_content`.

    The output is what the terminal event holds, `[{index, text, …}]`; empty while it is running.
    `usage_reason` says why the usage is unknown, null where it is known. With a project, a run of
    another one is not found.
    """
    found = find_run(config, org, run, project=project)
    row = found.row | {"usage_reason": found.usage_reason}
    if found.row["status"] == "running":
        _require_alive(config, org, found)
        return row | {"output": [], "error": None}
    if not found.response.has_content:
        _require_alive(config, org, found)
    content = _content(config, org, run, found.response)
    shown: dict[str, Any] = printable({name: content.get(name) for name in ("output", "error")})
    return row | shown | {"output": shown["output"] or []}


def printable(value: Any) -> Any:
    """Return content with text that can be encoded: halves of pairs joined, lone ones replaced."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {printable(name): printable(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [printable(inner) for inner in value]
    return value


def find_run(config: Config, org: str, run: str, *, project: str | None = None) -> Run:
    """Return one run, called by its id or by what its client called it; of any project or of one.

    Raises:
        NotFound: missing, or another org's.
        UsageError: there is no stack here.
        Unavailable: a part does not answer.
    """
    config.require_home()
    if not is_id(org) or not credential_path(config, org).exists():
        raise _not_found(run)
    credential_of(config, org)
    for found in _runs(config, org, run=identified(config, org, "run", run), project=project):
        return found
    raise _not_found(run)


def _runs(config: Config, org: str, **narrowed: Any) -> Iterator[Run]:
    sql, parameters = runs_query(config.clickhouse_database, org, **narrowed)
    return map(_run, ClickHouse(config).stream(sql, parameters))


def _run(values: tuple[Any, ...]) -> Run:
    run, source_ref, conversation, provider, model, status, started_us, ended_us = values[:8]
    request, response = Place(*values[8]), Place(*values[9])
    row = {
        "run": run,
        "source_ref": source_ref or None,
        "conversation": conversation or None,
        "provider": provider,
        "model": model,
        "status": status,
        "started_at": time_text(started_us),
        "ended_at": time_text(ended_us),
        "usage": _usage(values[10], values[13:]),
        "cost_nano_usd": values[11],
        "content_ref": response.ref,
        "request_ref": request.ref,
    }
    return Run(row, request, response, values[12] if values[10] == "unknown" else None)


def _usage(quality: str, classes: tuple[int, ...]) -> dict[str, int | str | None]:
    """Return every class and the quality; what is unknown is null and not 0."""
    known = quality != "unknown"
    counted = {name: n if known else None for name, n in zip(CLASSES, classes, strict=True)}
    return counted | {"quality": quality}


def time_text(at_us: int) -> str | None:
    """Return UTC microseconds as ISO 8601 with microseconds and `Z`, None where there are none."""
    if not at_us:
        return None
    try:
        at = _EPOCH + timedelta(microseconds=at_us)
    except OverflowError:
        return None
    return f"{at:%Y-%m-%dT%H:%M:%S.%f}Z"


def _content(config: Config, org: str, run: str, place: Place) -> Mapping[str, Any]:
    if not place.has_content:
        return {}
    try:
        with Content(config, org) as content:
            return content.open(org, TOPIC, place.partition, place.offset)
    except Erased:
        raise _not_found(run) from None
    except KeyUnavailable as error:
        raise KeyUnavailable(
            f"run {run}: its key cannot be read now, try again: {error}"
        ) from error


def _require_alive(config: Config, org: str, found: Run) -> None:
    """Raise NotFound where the run was erased, for events that hold nothing which would tell."""
    _content(config, org, found.row["run"], found.request)


def _not_found(run: str) -> NotFound:
    return NotFound(f"run {run}: not found")
