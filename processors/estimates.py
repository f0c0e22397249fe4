"""Usage of runs that nobody measured: the estimate, and its negation once somebody did.

A fold of `turnlog.usage` alone. The finalizer books an estimate for a run whose writer was lost;
when a measured event of that run stands in the topic too, before or after, the estimate is taken
back, so that `sum(sign * x)` is what was measured.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from turnlog.events import Event
from turnlog.events.shapes import MAX_TOKENS
from turnlog.ids import event_id

TOPIC = "turnlog.usage"
RECORDED, CORRECTED = "usage.recorded", "usage.corrected"
NO_SEQ = (1 << 63) - 1
"""The seq of what the finalizer writes: behind everything of the run's own writer."""

CHARS_PER_TOKEN = 4
"""What providers themselves give as the rule of thumb for English text (OpenAI, "What are tokens
and how to count them"); other languages and code have fewer characters a token."""

# The beginning of a value that is no text: 512 characters of base64, perhaps as a data URI.
_OPAQUE = re.compile(r"(?:data:[^,]{0,128},)?[A-Za-z0-9+/_=-]{512}")

# Measured numbers that came before the estimate: a producer that was cut off for a moment.
WINDOW_MS = 600_000
# An estimate is final after 7 days (DESIGN.md section 4); one more for spools that drain then.
KEPT_MS = 8 * 86_400_000


class Shown(NamedTuple):
    """What is known of a run's content, in characters.

    Attributes:
        request: characters of the stored request; None where there is none or it cannot be read.
        text: characters of output, without reasoning.
        reasoning: characters of reasoning.
    """

    request: int | None
    text: int
    reasoning: int


def estimate(shown: Shown) -> tuple[str, str, dict[str, int]]:
    """Return quality, reason and token classes for a run whose usage nobody measured.

    A quarter of the characters, rounded up. Nothing known at all is `unknown`, never 0; without a
    request the reason says that the input is missing from the numbers.
    """
    if shown.request is None and not (shown.text or shown.reasoning):
        return "unknown", "writer_lost", {}
    classes = {
        "input_uncached": _tokens(shown.request or 0),
        "output_text": _tokens(shown.text),
        "output_reasoning": _tokens(shown.reasoning),
    }
    return "estimated", "writer_lost" if shown.request is not None else "no_request", classes


def request_chars(request: bytes) -> int:
    """Return how many characters of a stored request a model is likely to have read as text.

    Of JSON all strings that are values; without what is no text, such as images in base64, which
    providers count by their size in pixels. Of anything else all of it.
    """
    whole = len(request.decode(errors="replace"))
    try:
        body = orjson.loads(request)
    except orjson.JSONDecodeError:
        return whole
    return sum(len(text) for text in _strings(body) if not _OPAQUE.match(text)) or whole


def _strings(body: Any) -> Iterator[str]:
    left = [body]  # not by recursion: JSON nests deeper than Python calls
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value


def _tokens(chars: int) -> int:
    return min(-(-chars // CHARS_PER_TOKEN), MAX_TOKENS)


def estimate_id(org: str, run: str, epoch: int) -> bytes:
    """Return the event id of a run's estimate."""
    return event_id(org, run, RECORDED, f"{epoch}/estimate")


def undo_id(org: str, run: str, epoch: int) -> bytes:
    """Return the event id of the negation of a run's estimate."""
    return event_id(org, run, CORRECTED, f"{epoch}/estimate-undo")


def undo(estimated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of the event that takes an estimate back."""
    org, run, epoch = estimated["org"], estimated["run"], estimated["writer_epoch"]
    return {
        **estimated,
        "event_id": undo_id(org, run, epoch),
        "sign": -1,
        "reason": "measured",
        "corrects": estimated["event_id"],
    }


class _Waiting(NamedTuple):
    body: dict[str, Any]
    append_ms: int


class Estimates:
    """The estimates of one partition of `turnlog.usage` that no measured event has met yet."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, dict[int, _Waiting]] = {}
        # By hash, because there is one for each run that ends: 100 bytes each.
        self._measured: dict[int, tuple[int, int]] = {}
        self._changed: set[tuple[bytes, int]] = set()

    def restore(self, body: dict[str, Any], append_ms: int) -> None:
        """Take an estimate from the checkpoint."""
        key = _key(body)
        self._waiting.setdefault(key, {})[body["writer_epoch"]] = _Waiting(body, append_ms)

    def take(self, event: Event, offset: int, append_ms: int) -> list[dict[str, Any]]:
        """Take a record; return bodies of `usage.corrected` that are to be written now.

        The same ones come again when the same records are read again.
        """
        body = event.body
        key = _key(body)
        if is_estimate(event):
            return self._estimated(key, body, append_ms)
        if _is_undo(event):
            self._drop(key, body["writer_epoch"])
        elif body.get("quality") == "measured" and body["sign"] == 1:
            self._measured.pop(hash(key), None)
            self._measured[hash(key)] = append_ms, offset
            self._forget(append_ms)
            return [undo(waiting.body) for waiting in self._waiting.get(key, {}).values()]
        return []

    def _estimated(self, key: bytes, body: dict[str, Any], append_ms: int) -> list[dict[str, Any]]:
        epochs = self._waiting.setdefault(key, {})
        if body["writer_epoch"] in epochs:
            return []
        epochs[body["writer_epoch"]] = _Waiting(body, append_ms)
        self._changed.add((key, body["writer_epoch"]))
        return [undo(body)] if hash(key) in self._measured else []

    def _drop(self, key: bytes, epoch: int) -> None:
        epochs = self._waiting.get(key, {})
        if epochs.pop(epoch, None) is not None:
            self._changed.add((key, epoch))
        if not epochs:
            self._waiting.pop(key, None)

    def _forget(self, now_ms: int) -> None:
        while self._measured:
            oldest = next(iter(self._measured))
            if self._measured[oldest][0] >= now_ms - WINDOW_MS:
                return
            del self._measured[oldest]

    def expire(self, now_ms: int) -> None:
        """Forget estimates that became final."""
        old = [
            (key, epoch)
            for key, epochs in self._waiting.items()
            for epoch, waiting in epochs.items()
            if waiting.append_ms < now_ms - KEPT_MS
        ]
        for key, epoch in old:
            self._drop(key, epoch)

    def rewind(self, next_offset: int) -> int:
        """Return where a restart must begin to read: the measured ones of the window again."""
        return next(iter(self._measured.values()))[1] if self._measured else next_offset

    def changes(self) -> list[tuple[bytes, int, _Waiting | None]]:
        """Return what a checkpoint must write: key, epoch, and the estimate or None; each once."""
        changed, self._changed = self._changed, set()
        return [
            (key, epoch, self._waiting.get(key, {}).get(epoch)) for key, epoch in sorted(changed)
        ]


def _key(body: Mapping[str, Any]) -> bytes:
    return f"{body['org']}/{body['run']}".encode()


def is_estimate(event: Event) -> bool:
    """Say whether an event is the finalizer's estimate of its run and epoch."""
    body = event.body
    if event.type != RECORDED or body["quality"] != "estimated":
        return False
    return bool(body["event_id"] == estimate_id(body["org"], body["run"], body["writer_epoch"]))


def _is_undo(event: Event) -> bool:
    body = event.body
    if event.type != CORRECTED or body["sign"] != -1:
        return False
    return bool(body["event_id"] == undo_id(body["org"], body["run"], body["writer_epoch"]))
