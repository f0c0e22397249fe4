"""What a run has shown so far: chunks not yet sealed, and the output they add up to.

Pure: no clock, no client. Times are microseconds since the run began.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from turnlog.errors import UsageError

# A chunk batch is sealed at this size (DESIGN.md law 2).
BATCH_BYTES = 16 * 1024
# A single chunk above this is cut into several: four bytes a character still leave its frame
# far below the limit of 786,432 bytes.
PIECE_CHARS = 128 * 1024
KINDS = ("text", "reasoning", "refusal", "tool_call")
MAX_INDEX = (1 << 31) - 1
"""Of choices and of tool calls."""


class Chunk(NamedTuple):
    """A piece of output as it was shown.

    `kind` is one of `KINDS`. A `tool_call` chunk is a delta of arguments; `call` says of which one,
    and `id` and `name` stand in the delta that begins it.
    """

    offset_us: int
    choice: int
    kind: str
    text: str
    call: int = 0
    id: str = ""
    name: str = ""


def check_chunk(text: str, choice: int, kind: str, call: int, id: str, name: str) -> None:
    """Make sure that a chunk is one: of the types and kinds of `Chunk`, indices not below 0.

    Raises:
        UsageError: it is not; the message names types, because what was given may be content.
    """
    if type(text) is not str or kind not in KINDS or not _is_index(choice):
        got = ", ".join(type(value).__name__ for value in (text, choice, kind))
        what = f"choice is a whole number from 0 to {MAX_INDEX}, kind one of {', '.join(KINDS)}"
        raise UsageError(f"a chunk is str, {what}; got {got}")
    if kind == "tool_call" and not _is_index(call):
        raise UsageError(f"call is a whole number from 0 to {MAX_INDEX}")
    if kind == "tool_call" and not type(id) is type(name) is str:
        raise UsageError("id and name of a tool call are str")


def _is_index(value: int) -> bool:
    return type(value) is int and 0 <= value <= MAX_INDEX


class Batch(NamedTuple):
    """One `chunk.batch` event before it is sealed."""

    body: dict[str, Any]
    content: dict[str, Any]


class Output:
    """Counts what was batched and adds chunks up, each choice and each tool call on its own."""

    def __init__(self) -> None:
        self.chars = 0
        self.chunks = 0
        self._choices: dict[int, dict[str, list[str]]] = {}
        self._calls: dict[tuple[int, int], dict[str, Any]] = {}
        # Three numbers a chunk: as a list of lists it took 180 bytes instead of 24, and Python's
        # collector ran 33 times in 8 s at 6,000 chunks a second instead of 15 times.
        self._timeline = array("q")

    @property
    def pieces(self) -> int:
        """How many pieces were shown: what `batches` cut into several is one."""
        cut = sum(
            a[:2] == b[:2] and b[2] - a[2] == PIECE_CHARS for a, b in pairwise(self._entries())
        )
        return self.chunks - cut

    def batches(self, chunks: Sequence[Chunk]) -> Iterator[Batch]:
        """Take chunks in and yield them as batches of at most about `PIECE_CHARS` characters.

        Character offsets count code points over all choices and kinds, in order of arrival, and
        are continuous over batches.
        """
        group: list[Chunk] = []
        size = 0
        for chunk in _pieces(chunks):
            if group and size + len(chunk.text) > PIECE_CHARS:
                yield self._batch(group, size)
                group, size = [], 0
            group.append(chunk)
            size += len(chunk.text)
        if group:
            yield self._batch(group, size)

    def _batch(self, group: list[Chunk], chars: int) -> Batch:
        body = {
            "char_offset": self.chars,
            "chars": chars,
            "chunks": len(group),
            "first_seq": self.chunks,
            "last_seq": self.chunks + len(group) - 1,
        }
        for chunk in group:
            self._add(chunk)
        self.chunks += len(group)
        return Batch(body, {"chunks": [_packed(chunk) for chunk in group]})

    def _add(self, chunk: Chunk) -> None:
        self._timeline.extend((chunk.offset_us, chunk.choice, self.chars))
        self.chars += len(chunk.text)
        if chunk.kind == "tool_call":
            call = self._calls.setdefault(
                (chunk.choice, chunk.call), {"id": "", "name": "", "arguments": []}
            )
            call["id"] = call["id"] or chunk.id
            call["name"] = call["name"] or chunk.name
            call["arguments"].append(chunk.text)
        parts = self._choices.setdefault(chunk.choice, {})
        if chunk.kind != "tool_call":
            parts.setdefault(chunk.kind, []).append(chunk.text)

    def drop_texts(self) -> None:
        """Forget the texts, where they are too much for one frame; the counts stay."""
        self._choices.clear()
        self._calls.clear()
        del self._timeline[:]

    def content(self) -> dict[str, Any]:
        """Return `output` and `timeline` of the terminal event's frame; nothing where empty."""
        if not self._timeline:
            return {}
        output = [self._choice(index, parts) for index, parts in sorted(self._choices.items())]
        return {"output": output, "timeline": [list(entry) for entry in self._entries()]}

    def _entries(self) -> Iterator[tuple[int, ...]]:
        numbers = iter(self._timeline)
        return zip(numbers, numbers, numbers, strict=True)

    def _choice(self, index: int, parts: Mapping[str, list[str]]) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index}
        for kind, texts in parts.items():
            choice[kind] = "".join(texts)
        calls = [call for key, call in sorted(self._calls.items()) if key[0] == index]
        if calls:
            choice["tool_calls"] = [c | {"arguments": "".join(c["arguments"])} for c in calls]
        return choice


def ranges(seqs: Iterable[int]) -> list[dict[str, int]]:
    """Return numbers as ranges `{first, last}`, both ends included, in order."""
    found: list[dict[str, int]] = []
    for seq in sorted(seqs):
        if found and seq <= found[-1]["last"] + 1:
            found[-1]["last"] = seq
        else:
            found.append({"first": seq, "last": seq})
    return found


def _pieces(chunks: Sequence[Chunk]) -> Iterator[Chunk]:
    for chunk in chunks:
        if len(chunk.text) <= PIECE_CHARS:
            yield chunk
            continue
        for start in range(0, len(chunk.text), PIECE_CHARS):
            yield chunk._replace(text=chunk.text[start : start + PIECE_CHARS])


def _packed(chunk: Chunk) -> list[Any]:
    packed: list[Any] = [chunk.offset_us, chunk.choice, chunk.kind, chunk.text]
    if chunk.kind == "tool_call":
        packed += [chunk.call, chunk.id, chunk.name]
    return packed
