"""What is known of the spans of a trace, for 24 hours: parents, usage that was booked, digests.

Spans of one trace come in many requests and in any order. To see that a call lies within another,
the parents of all of them are kept, and of those that were booked the event that did it. All of it
is free of content; a span is told from another under its id by a digest that takes the org's id key
to make. Redis is expendable: without it only what lies in one request is seen.

One hash a trace, `{org}/otlp/{trace}`, the org in braces so that a cluster keeps an org together.
Fields are a letter and the span's id: `p` its parent, `u` what was booked, `n` that it was taken
back, `s` its digest.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis

KEPT_S = 24 * 3600
# Parents of a trace with more spans are not kept any longer: each request reads them all.
MAX_FIELDS = 20_000


@dataclass(slots=True)
class Known:
    """What is known of the spans of one trace, each by its id.

    Attributes:
        parents: id of the parent, empty for a root.
        booked: what was booked, packed as the caller gave it.
        undone: those whose booking was taken back.
        said: digests.
    """

    parents: dict[str, str] = field(default_factory=dict)
    booked: dict[str, bytes] = field(default_factory=dict)
    undone: set[str] = field(default_factory=set)
    said: dict[str, bytes] = field(default_factory=dict)


async def said(redis: Redis, org: str, spans: Mapping[str, Iterable[str]]) -> dict[str, Known]:
    """Return the digests of some spans of some traces, by trace.

    Raises:
        RedisError: Redis does not answer.
    """
    pipeline = redis.pipeline(transaction=False)
    wanted = {trace: list(ids) for trace, ids in spans.items()}
    for trace, ids in wanted.items():
        pipeline.hmget(_key(org, trace), [f"s{span}" for span in ids])
    found = await pipeline.execute()
    return {
        trace: Known(said={span: held for span, held in zip(ids, row, strict=True) if held})
        for (trace, ids), row in zip(wanted.items(), found, strict=True)
    }


async def note(redis: Redis, org: str, traces: Mapping[str, Known]) -> dict[str, Known]:
    """Add to what is known of traces and return all of it; what was there first stays.

    Of two requests that note at once, the later one sees what both have.

    Raises:
        RedisError: Redis does not answer.
    """
    sizes = await _sizes(redis, org, traces)
    pipeline = redis.pipeline(transaction=False)
    ends = []
    for trace, known in traces.items():
        full = sizes[trace] + len(known.parents) > MAX_FIELDS
        ends.append(_put(pipeline, _key(org, trace), known, full))
    answers = await pipeline.execute()
    return {trace: _of(answers[sum(ends[: at + 1]) - 1]) for at, trace in enumerate(traces)}


async def undone(redis: Redis, org: str, trace: str, spans: Iterable[str]) -> None:
    """Take note that bookings were taken back.

    Raises:
        RedisError: Redis does not answer.
    """
    await redis.hset(_key(org, trace), mapping={f"n{span}": b"1" for span in spans})


async def _sizes(redis: Redis, org: str, traces: Iterable[str]) -> dict[str, int]:
    pipeline = redis.pipeline(transaction=False)
    names = list(traces)
    for trace in names:
        pipeline.hlen(_key(org, trace))
    return dict(zip(names, await pipeline.execute(), strict=True))


def _put(pipeline: Any, key: str, known: Known, full: bool) -> int:
    """Queue what adds to a trace and reads it; return of how many commands that is."""
    fields: dict[str, str | bytes] = {f"u{span}": held for span, held in known.booked.items()}
    fields |= {f"s{span}": held for span, held in known.said.items()}
    kept = known.booked if full else known.parents
    fields |= {f"p{span}": known.parents.get(span, "") for span in kept}
    for name, value in fields.items():
        pipeline.hsetnx(key, name, value)
    pipeline.expire(key, KEPT_S)
    pipeline.hgetall(key)
    return len(fields) + 2


def _of(fields: Mapping[bytes, bytes]) -> Known:
    known = Known()
    for raw, value in fields.items():
        name = raw.decode()
        kind, span = name[:1], name[1:]
        if kind == "p":
            known.parents[span] = value.decode()
        elif kind == "u":
            known.booked[span] = value
        elif kind == "n":
            known.undone.add(span)
        else:
            known.said[span] = value
    return known


def _key(org: str, trace: str) -> str:
    return f"{{{org}}}/otlp/{trace}"
