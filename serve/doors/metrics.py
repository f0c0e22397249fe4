"""Counts of a server in the text form that Prometheus scrapes (exposition format 0.0.4).

Written here because no client library is among the dependencies, and these are two families of
counters, one histogram and some gauges. No label has a value that a client or an org can choose.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from turnlog.producer.transport import State

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
RUNGS = ("broker", "spool", "shedding", "refusing")

Labels = tuple[tuple[str, str], ...]


class Histogram:
    """Durations in seconds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds


class Metrics:
    """What a server counts.

    Attributes:
        requests: by route, method and status.
        durations: by route.
        outcomes: of events, by door and outcome (`accepted`, `duplicate`, `refused`, ...).
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.durations: dict[str, Histogram] = {}
        self.outcomes: Counter[tuple[str, str]] = Counter()

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request by the template of its route, never by its path."""
        self.requests[route, method, status] += 1
        self.durations.setdefault(route, Histogram()).observe(seconds)

    def event(self, door: str, outcome: str, count: int = 1) -> None:
        """Count what became of events that came through a door."""
        self.outcomes[door, outcome] += count

    def text(self, state: State | None, open_requests: int, draining: bool) -> str:
        """Return the exposition."""
        lines = [*self._counters(), *self._histograms(), *_ladder(state)]
        lines += _family("turnlog_http_open_requests", "gauge", "being answered now")
        lines.append(_sample("turnlog_http_open_requests", (), open_requests))
        lines += _family("turnlog_draining", "gauge", "1 once no new request is taken")
        lines.append(_sample("turnlog_draining", (), int(draining)))
        return "\n".join(lines) + "\n"

    def _counters(self) -> Iterator[str]:
        yield from _family("turnlog_http_requests_total", "counter", "requests answered")
        for (route, method, status), count in sorted(self.requests.items()):
            labels = (("route", route), ("method", method), ("status", str(status)))
            yield _sample("turnlog_http_requests_total", labels, count)
        yield from _family("turnlog_door_events_total", "counter", "events, by what became of them")
        for (door, outcome), count in sorted(self.outcomes.items()):
            became = (("door", door), ("outcome", outcome))
            yield _sample("turnlog_door_events_total", became, count)

    def _histograms(self) -> Iterator[str]:
        name = "turnlog_http_request_duration_seconds"
        yield from _family(name, "histogram", "from the request's head to the answer's end")
        for route, durations in sorted(self.durations.items()):
            label, total = ("route", route), 0
            for bound, count in zip((*BUCKETS_S, "+Inf"), durations.counts, strict=True):
                total += count
                yield _sample(f"{name}_bucket", (label, ("le", str(bound))), total)
            yield _sample(f"{name}_sum", (label,), durations.sum_s)
            yield _sample(f"{name}_count", (label,), total)


def _ladder(state: State | None) -> Iterator[str]:
    yield from _family("turnlog_ladder_rung", "gauge", "1 for the rung where new events go")
    for rung in RUNGS:
        here = state is not None and state.rung == rung
        yield _sample("turnlog_ladder_rung", (("rung", rung),), int(here))
    if state is None:
        return
    yield from _family("turnlog_unacknowledged_records", "gauge", "given to Kafka, not answered")
    yield _sample("turnlog_unacknowledged_records", (), state.unacknowledged)
    yield from _family("turnlog_spool_bytes", "gauge", "of the disk spool")
    yield _sample("turnlog_spool_bytes", (), state.spool_bytes)
    yield from _by_lane("turnlog_spool_events", "gauge", "waiting on the disk", state.spool_events)
    yield from _by_lane("turnlog_shed_events_total", "counter", "found no room", state.shed)


def _by_lane(name: str, kind: str, text: str, counts: Mapping[str, int]) -> Iterator[str]:
    yield from _family(name, kind, text)
    for lane, count in sorted(counts.items()):
        yield _sample(name, (("lane", lane),), count)


def _family(name: str, kind: str, text: str) -> Iterable[str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def _sample(name: str, labels: Labels, value: float) -> str:
    written = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"{name}{{{written}}} {value}" if written else f"{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
