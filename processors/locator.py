"""Where every archived event lies: the canonical row of its entry in the locator."""

from collections.abc import Mapping
from typing import Any

from processors.packs import Row, archivable
from turnlog.events import Event
from turnlog.ids import stream_key

# What the locator says of an event whatever object, offset or key it lies under.
FIELDS = (
    "org",
    "conversation",
    "run",
    "turn",
    "user",
    "event_id",
    "content_mac",
    "writer_epoch",
    "seq",
    "occurred_at_us",
)


def canonical(event: Event) -> Row | None:
    """Return `(stream key, event_id, row)` of an archived event; None where it is refused."""
    return canonical_row(event.body, event.type) if archivable(event.body) else None


def canonical_row(entry: Mapping[str, Any], type_: str) -> Row:
    """Return the same of an entry that was read from the locator; both must agree."""
    row: dict[str, Any] = {name: entry[name] for name in FIELDS} | {"type": type_}
    if entry["time_basis"] == "import":
        del row["occurred_at_us"]
    return stream_key(entry["org"], entry["conversation"], entry["run"]), entry["event_id"], row
