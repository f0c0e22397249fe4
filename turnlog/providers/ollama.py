"""Ollama: `/api/chat`, `/api/generate` and `/api/embed`, as one object or one object a line.

The last object has `done` and the counts. A prompt that Ollama had cached is not counted at all:
its usage is then not known. https://github.com/ollama/ollama/blob/main/docs/api.md
"""

from collections.abc import Mapping, Sequence
from typing import Any

from turnlog.providers.exchange import Chunk
from turnlog.providers.framing import Piece
from turnlog.providers.reading import Reading, as_dict, as_text, dicts

# Its numbers, by name: the rest of the last object holds token ids of the text, which is content.
_NUMBERS = (
    "prompt_eval_count",
    "eval_count",
    "total_duration",
    "load_duration",
    "prompt_eval_duration",
    "eval_duration",
)


def looks_like(value: Mapping[str, Any]) -> bool:
    """Say whether a JSON object of a response is of this form."""
    if isinstance(value.get("done"), bool) and value.keys() & {"message", "response"}:
        return True
    return "embeddings" in value and value.keys() >= {"model", "total_duration"}


def read(pieces: Sequence[Piece], reading: Reading) -> None:
    """Read the lines of a stream, or the one object of a plain answer."""
    for piece in pieces:
        _body(piece.fields, reading)


def _body(body: Mapping[str, Any], reading: Reading) -> None:
    reading.name(None, body.get("model"))
    reading.fail(body.get("error"))
    message = as_dict(body.get("message"))
    reading.say(0, "reasoning", message.get("thinking") or body.get("thinking"))
    reading.say(0, "text", message.get("content"))
    reading.say(0, "text", body.get("response"))
    for call in dicts(message.get("tool_calls")):
        _call(as_dict(call.get("function")), reading)
    embedded = "embeddings" in body
    if body.get("done") is True or embedded:
        _end(body, embedded, reading)


def _end(body: Mapping[str, Any], embedded: bool, reading: Reading) -> None:
    reading.ended = True
    if not embedded:
        reading.finish(0, as_text(body.get("done_reason")) or "stop")
    numbers = {name: body[name] for name in _NUMBERS if body.get(name) is not None}
    if numbers:
        reading.count(numbers | ({"eval_count": 0} if embedded else {}))
        reading.usage_is_final = "prompt_eval_count" in numbers


def _call(function: Mapping[str, Any], reading: Reading) -> None:
    """Take a call, which comes whole and without an id: each is a new one."""
    made = sum(1 for chunk in reading.chunks if chunk.kind == "tool_call")
    arguments, name = as_text(function.get("arguments")), as_text(function.get("name"))
    reading.chunks.append(Chunk(0, "tool_call", arguments, made, "", name))
