"""Usage: one row an event, token classes disjoint, totals are `sum(sign * x)`."""

from processors.common import Row, canonical_row
from turnlog.events import Event

TOPIC = "turnlog.usage"
TYPES = ("usage.recorded", "usage.corrected", "task.outcome")

CLASSES = (
    "input_uncached",
    "cache_read",
    "cache_write_5m",
    "cache_write_1h",
    "output_text",
    "output_reasoning",
    "audio_in",
    "audio_out",
    "image_in",
    "image_out",
    "tool_use",
)
"""The token classes. No token is counted in two of them."""

# What a usage event says: two under one event_id that differ here are a conflict, not a repeat.
NUMBERS = ("sign", *CLASSES, "cost_nano_usd")

# `unknown` rows carry zeros that say nothing: they are counted, never summed.
KNOWN_QUALITIES = ("measured", "estimated")


def canonical(event: Event) -> Row | None:
    """Return `(stream key, event_id, row)`; None where the event is not of this view or refused."""
    return canonical_row(event) if event.type in TYPES else None
