"""Runs: one row per (run, epoch, seq); the state of a run is read from its rows."""

from processors.common import Row, canonical_row
from turnlog.events import Event

TOPIC = "turnlog.runs"
TYPES = (
    "run.created",
    "run.started",
    "run.taken_over",
    "run.cancel_requested",
    "run.output_retracted",
    "run.completed",
    "run.failed",
    "run.cancelled",
    "run.interrupted",
)
TERMINAL = ("run.completed", "run.failed", "run.cancelled", "run.interrupted")


def canonical(event: Event) -> Row | None:
    """Return `(stream key, event_id, row)`; None where the event is not of this view or refused."""
    return canonical_row(event) if event.type in TYPES else None
