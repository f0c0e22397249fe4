"""What `turnlog bench doors` prints of each door."""

from typing import NamedTuple


class Line(NamedTuple):
    """One door beside the bare thing that it stands in for, measured in the same run.

    Attributes:
        door: its name; begins with `http`, `openai`, `anthropic` or `proxy`.
        events_per_s: events, calls or chunks a second through the door; its part says which.
        p50_ms: median time of one call of the door.
        p99_ms: 99th percentile of it.
        added_first_byte_ms: what the door adds to the time until a reader has the first byte;
            0 where no reader waits for it.
        ratio: the door against the bare thing; `of` says what of what.
        bar: what the ratio is held to: at least where more is better, at most where less is.
        bare_events_per_s: the same a second without the door.
        of: what the ratio is of, such as `events_per_s of the in-process producer`.
    """

    door: str
    events_per_s: float
    p50_ms: float
    p99_ms: float
    added_first_byte_ms: float
    ratio: float
    bar: float
    bare_events_per_s: float
    of: str = ""
