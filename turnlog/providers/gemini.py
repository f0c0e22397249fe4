"""Gemini and Vertex: generateContent and streamGenerateContent."""

from collections.abc import Mapping, Sequence
from typing import Any

from turnlog.providers.exchange import Chunk
from turnlog.providers.framing import Piece
from turnlog.providers.reading import Reading, as_dict, as_text, dicts, index_of


def read(pieces: Sequence[Piece], reading: Reading) -> None:
    """Read the chunks of a stream, or the one object of a plain answer."""
    for piece in pieces:
        bodies = dicts(piece.value) if isinstance(piece.value, list) else [piece.fields]
        for body in bodies:
            _body(piece, body, reading)


def _body(piece: Piece, body: Mapping[str, Any], reading: Reading) -> None:
    reading.name(body.get("responseId"), body.get("modelVersion"))
    reading.fail(body.get("error"))
    for place, candidate in enumerate(dicts(body.get("candidates"))):
        _candidate(place, candidate, reading)
    blocked = as_dict(body.get("promptFeedback")).get("blockReason")
    if blocked is not None:
        reading.finish(0, blocked)
    usage = body.get("usageMetadata")
    if isinstance(usage, dict):
        # Every chunk repeats the whole count so far: the last one holds, a sum would bill tenfold.
        reading.use(piece, "usageMetadata")
        reading.usage_is_final = True
        reading.tier(usage.get("serviceTier"))


def _candidate(place: int, candidate: Mapping[str, Any], reading: Reading) -> None:
    index = index_of(candidate, place)
    for part in dicts(as_dict(candidate.get("content")).get("parts")):
        reading.say(index, "reasoning" if part.get("thought") else "text", part.get("text"))
        if isinstance(part.get("functionCall"), dict):
            _call(index, part["functionCall"], reading)
    reading.finish(index, candidate.get("finishReason"))


def _call(choice: int, call: Mapping[str, Any], reading: Reading) -> None:
    """Take a call, which comes whole: each is a new one."""
    made = sum(1 for chunk in reading.chunks if chunk.kind == "tool_call")
    chunk = Chunk(
        choice,
        "tool_call",
        as_text(call.get("args")),
        made,
        as_text(call.get("id")),
        as_text(call.get("name")),
    )
    reading.chunks.append(chunk)
