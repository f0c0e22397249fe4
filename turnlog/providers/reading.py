"""What the reader of a form gathers while it goes through a response."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from turnlog.providers.exchange import Choice, Chunk, ToolCall
from turnlog.providers.framing import Piece
from turnlog.providers.json_text import dumps, mend

MAX_ERROR_CHARS = 4000
MAX_CHOICES = 10_000


@dataclass(slots=True)
class Reading:
    """Gathered so far, in one go over all pieces or in several.

    `snapshot` is the whole output where a provider repeats it at the end, `inputs` the input of
    tool calls that came whole with their beginning, by the index of their block, until they end.
    """

    chunks: list[Chunk] = field(default_factory=list)
    snapshot: list[Chunk] = field(default_factory=list)
    response_id: str = ""
    model: str = ""
    ended: bool = False
    cancelled: bool = False
    error: str | None = None
    guarded: bool = False
    usage_blocks: list[tuple[str | bytes, tuple[str, ...]]] = field(default_factory=list)
    usage_is_final: bool = False
    price_context: dict[str, str] = field(default_factory=dict)
    finishes: dict[int, str | None] = field(default_factory=dict)
    inputs: dict[int, str] = field(default_factory=dict)
    _always_empty: set[int] = field(default_factory=set)
    _calls: dict[int, list[tuple[Any, str]]] = field(default_factory=dict)

    def name(self, response_id: Any, model: Any) -> None:
        """Keep the first id and model that are not empty (Azure's first chunk has neither)."""
        if not self.response_id and isinstance(response_id, str):
            self.response_id = mend(response_id)
        if not self.model and isinstance(model, str):
            self.model = mend(model)

    def say(self, choice: int, kind: str, text: Any) -> None:
        """Take a piece of text, reasoning or refusal; null, empty and odd values say nothing."""
        if isinstance(text, str) and text:
            self.chunks.append(Chunk(choice, kind, text))

    def finish(self, choice: int, reason: Any) -> None:
        """Take a finish reason, which may be null, a number or empty.

        An empty one is an end only if the choice had null before: some servers send an empty one
        with every chunk.
        """
        if reason is None:
            self.finishes.setdefault(choice, None)
            self._always_empty.discard(choice)
        elif reason != "":
            self.finishes[choice] = mend(as_text(reason))
        elif choice not in self.finishes:
            self.finishes[choice] = None
            self._always_empty.add(choice)
        elif self.finishes[choice] is None and choice not in self._always_empty:
            self.finishes[choice] = ""

    def fail(self, error: Any) -> None:
        """Take an error if there is one; the first is kept."""
        if error and self.error is None:
            self.error = error_text(error)
            self.guarded = _is_guardrail(error)

    def use(self, piece: Piece, *path: str, add: bool = False) -> None:
        """Take the usage block at `path` of a piece: in place of what came before, or over it."""
        if not add:
            self.usage_blocks.clear()
        self.usage_blocks.append((piece.text, path))

    def count(self, numbers: Mapping[str, Any]) -> None:
        """Take numbers in place of a usage block, where they stand among other fields."""
        self.usage_blocks[:] = [(dumps(numbers), ())]

    def tier(self, value: Any) -> None:
        """Keep the service tier that the provider says it used: its price depends on it."""
        if isinstance(value, str):
            self.price_context["service_tier"] = value

    def call_index(self, choice: int, index: Any, call_id: str) -> int:
        """Return the place of a tool call.

        Only the first delta of a call has its id; later ones say the index, or nothing. An index
        that comes again with another id is another call.
        """
        known = self._calls.setdefault(choice, [])
        for place in range(len(known) - 1, -1, -1):
            if _same_call(known[place], index, call_id):
                return place
        known.append((index, call_id))
        return len(known) - 1

    def finished(self) -> bool:
        """Say whether the response has an end marker, or every choice seen its finish."""
        return self.ended or (
            bool(self.finishes) and all(reason is not None for reason in self.finishes.values())
        )

    def finish_reason(self) -> str:
        """Return the first choice's reason that is not empty."""
        reasons = (self.finishes[choice] for choice in sorted(self.finishes))
        return next((reason for reason in reasons if reason), "")


def _same_call(known: tuple[Any, str], index: Any, call_id: str) -> bool:
    known_index, known_id = known
    if call_id and known_id and call_id != known_id:
        return False
    if index is None or known_index is None:
        return not call_id or call_id == known_id
    return bool(known_index == index)


def error_text(error: Any) -> str:
    """Return the message of an error, however it is wrapped."""
    for _ in range(4):
        if not isinstance(error, dict):
            break
        error = error.get("message") or error.get("error") or error.get("code") or dumps(error)
    text = error if isinstance(error, str) else dumps(error)
    return mend(text)[:MAX_ERROR_CHARS]


def _is_guardrail(error: Any) -> bool:
    """Say whether an error is a content filter's: a refusal by rule, which is a normal end."""
    return isinstance(error, dict) and error.get("code") in ("content_filter", "content_policy")


def assemble(chunks: Iterable[Chunk]) -> list[Choice]:
    """Add pieces up to whole answers, each choice and each tool call on its own."""
    texts: dict[int, dict[str, list[str]]] = {}
    calls: dict[int, dict[int, ToolCall]] = {}
    for chunk in chunks:
        parts = texts.setdefault(chunk.choice, {})
        if chunk.kind != "tool_call":
            parts.setdefault(chunk.kind, []).append(chunk.text)
            continue
        call = calls.setdefault(chunk.choice, {}).setdefault(chunk.call, ToolCall())
        call.id = call.id or chunk.id
        call.name = call.name or chunk.name
        parts.setdefault(f"call {chunk.call}", []).append(chunk.text)
    return [_choice(index, texts[index], calls.get(index, {})) for index in sorted(texts)]


def _choice(index: int, parts: dict[str, list[str]], calls: dict[int, ToolCall]) -> Choice:
    joined = {kind: mend("".join(texts)) for kind, texts in parts.items()}
    for place, call in calls.items():
        call.arguments = joined[f"call {place}"]
        call.id, call.name = mend(call.id), mend(call.name)
    return Choice(
        index,
        joined.get("text", ""),
        joined.get("reasoning", ""),
        joined.get("refusal", ""),
        [calls[place] for place in sorted(calls)],
    )


class Mending:
    """Puts characters that were split over two pieces into the later one."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, str, int], str] = {}

    def take(self, chunks: Iterable[Chunk]) -> list[Chunk]:
        """Take pieces in and return what can be shown of them."""
        mended = []
        for chunk in chunks:
            if not self._held and _is_plain(chunk):
                mended.append(chunk)
                continue
            where = (chunk.choice, chunk.kind, chunk.call)
            text = self._held.pop(where, "") + chunk.text
            if text and "\ud800" <= text[-1] <= "\udbff":
                self._held[where], text = text[-1], text[:-1]
            if text or chunk.kind == "tool_call":
                id_, name = mend(chunk.id), mend(chunk.name)
                whole = Chunk(chunk.choice, chunk.kind, mend(text), chunk.call, id_, name)
                mended.append(whole)
        return mended

    def end(self) -> list[Chunk]:
        """Return the halves that stayed alone, each as U+FFFD."""
        return [Chunk(choice, kind, "\ufffd", at) for (choice, kind, at) in self._held]


def _is_plain(chunk: Chunk) -> bool:
    """Say whether a piece is shown as it is: ASCII, and no empty text, which says nothing."""
    text = chunk.text
    return bool(text) and text.isascii() and chunk.id.isascii() and chunk.name.isascii()


def whole_characters(chunks: Iterable[Chunk]) -> list[Chunk]:
    """Return the pieces with characters that were split over two of them put in the later one."""
    mending = Mending()
    return [*mending.take(chunks), *mending.end()]


def dicts(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list; anything else has none."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def as_dict(value: Any) -> dict[str, Any]:
    """Return an object as it is, anything else as an empty one."""
    return value if isinstance(value, dict) else {}


def index_of(item: Mapping[str, Any], place: int) -> int:
    """Return the index that a choice gives itself, its place where that is none."""
    given = item.get("index")
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < MAX_CHOICES:
        return given
    return place


def as_text(value: Any) -> str:
    """Return a string as it is, null as nothing, anything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else dumps(value)
