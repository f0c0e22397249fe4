"""Forms that are stored and not read yet: all that is taken from them is whether they ended."""

from collections.abc import Mapping, Sequence
from typing import Any

from turnlog.providers.framing import DONE, Piece
from turnlog.providers.reading import Reading, as_text

# Names of events after which nothing comes, of Bedrock, Cohere, Assistants and Interactions.
_LAST = frozenset(
    (
        "messageStop",
        "message-end",
        "message_stop",
        "stream-end",
        "done",
        "interaction.completed",
        "interaction.complete",
        "thread.run.completed",
        "thread.run.cancelled",
        "thread.run.expired",
        "thread.run.incomplete",
        "thread.run.requires_action",
    )
)
_ERRORS = frozenset(("error", "exception", "thread.run.failed"))
_REASONS = (
    "finish_reason",
    "finishReason",
    "stop_reason",
    "stopReason",
    "completionReason",
    "done_reason",
)
_FLAGS = ("done", "is_finished")
_DEPTH = 4


def read(pieces: Sequence[Piece], reading: Reading) -> None:
    """Look for an end, an error and a model."""
    for piece in pieces:
        body = piece.fields
        names = {piece.event, *(as_text(body.get(key)) for key in ("type", "event_type"))}
        reading.ended |= piece.text == DONE or bool(names & _LAST) or _ended(body, _DEPTH, reading)
        reading.fail(body.get("error") or (bool(names & _ERRORS) and (body or "an error")))
        reading.name(None, body.get("model"))


def _ended(body: Mapping[str, Any], depth: int, reading: Reading) -> bool:
    for key in _REASONS:
        if isinstance(body.get(key), str) and body[key]:
            reading.finish(0, body[key])
            return True
    if any(body.get(key) is True for key in _FLAGS):
        return True
    below = [*body.values(), *(item for v in body.values() if isinstance(v, list) for item in v)]
    return depth > 0 and any(
        _ended(value, depth - 1, reading) for value in below if isinstance(value, dict)
    )
