"""Amazon Bedrock: Converse and ConverseStream, and the models that InvokeModel answers as they do.

Models under InvokeModel whose bodies are another provider's (Anthropic's, OpenAI's) are read as
that provider's. What is left here: Converse itself and Nova, Titan, Llama, and Mistral's `outputs`.

The events of a stream come as binary frames, each named by a header; Nova under InvokeModel says
the same events as the single key of an object.
https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ConverseStream.html
"""

from collections.abc import Mapping, Sequence
from typing import Any

from turnlog.providers.exchange import Chunk
from turnlog.providers.framing import Piece
from turnlog.providers.reading import Reading, as_dict, as_text, dicts

_EVENTS = frozenset(
    (
        "messageStart",
        "contentBlockStart",
        "contentBlockDelta",
        "contentBlockStop",
        "messageStop",
        "metadata",
    )
)
_METRICS = "amazon-bedrock-invocationMetrics"
_COUNTS = (
    "inputTextTokenCount",
    "totalOutputTextTokenCount",
    "prompt_token_count",
    "generation_token_count",
)
_REASONS = ("completionReason", "stop_reason", "stopReason")


def looks_like(value: Mapping[str, Any]) -> bool:
    """Say whether a JSON object of a response is of this form."""
    # `metadata` alone is a field of others, too.
    if value.keys() & (_EVENTS - {"metadata"} | {"contentBlockIndex", "stopReason"}):
        return True
    if "outputText" in value or "inputTextTokenCount" in value:
        return True
    llama = "generation" in value and ("stop_reason" in value or "prompt_token_count" in value)
    return llama or any("stop_reason" in one for one in dicts(value.get("outputs")))


def read(pieces: Sequence[Piece], reading: Reading) -> None:
    """Read the events of a stream, or the one object of a plain answer."""
    for piece in pieces:
        if piece.event in ("exception", "error"):
            reading.fail(piece.fields or "the stream ended with an exception")
        elif piece.event in _EVENTS:
            _event(piece.event, piece.fields, (), piece, reading)
        elif within := piece.fields.keys() & _EVENTS:
            for kind in within:
                _event(kind, as_dict(piece.fields[kind]), (kind,), piece, reading)
        else:
            _plain(piece, reading)


def _event(
    kind: str, body: Mapping[str, Any], path: tuple[str, ...], piece: Piece, reading: Reading
) -> None:
    if kind == "contentBlockStart":
        _call(as_dict(as_dict(body.get("start")).get("toolUse")), body, reading)
    elif kind == "contentBlockDelta":
        _block(as_dict(body.get("delta")), body, reading)
    elif kind == "messageStop":
        reading.finish(0, body.get("stopReason"))
        reading.ended = True
    elif kind == "metadata" and isinstance(body.get("usage"), dict):
        reading.use(piece, *path, "usage")
        reading.usage_is_final = True


def _block(block: Mapping[str, Any], body: Mapping[str, Any], reading: Reading) -> None:
    """Take a block of content, or a piece of one."""
    reading.say(0, "text", block.get("text"))
    reasoning = as_dict(block.get("reasoningContent"))
    reading.say(0, "reasoning", reasoning.get("text"))
    reading.say(0, "reasoning", as_dict(reasoning.get("reasoningText")).get("text"))
    _call(as_dict(block.get("toolUse")), body, reading)


def _call(use: Mapping[str, Any], body: Mapping[str, Any], reading: Reading) -> None:
    if not use:
        return
    call_id, index = as_text(use.get("toolUseId")), body.get("contentBlockIndex")
    at = reading.call_index(0, index, call_id)
    chunk = Chunk(0, "tool_call", as_text(use.get("input")), at, call_id, as_text(use.get("name")))
    reading.chunks.append(chunk)


def _plain(piece: Piece, reading: Reading) -> None:
    body = piece.fields
    reading.fail(body.get("error"))
    message = as_dict(as_dict(body.get("output")).get("message"))
    for place, block in enumerate(dicts(message.get("content"))):
        _block(block, {"contentBlockIndex": place}, reading)
    reading.say(0, "text", body.get("outputText"))
    reading.say(0, "text", body.get("generation"))
    _ended(body, 0, reading)
    for place, result in enumerate(dicts(body.get("results")) or dicts(body.get("outputs"))):
        reading.say(place, "text", result.get("outputText") or result.get("text"))
        _ended(result, place, reading)
    _usage(piece, reading)


def _ended(body: Mapping[str, Any], choice: int, reading: Reading) -> None:
    for name in _REASONS:
        if name in body:
            reading.finish(choice, body[name])


def _usage(piece: Piece, reading: Reading) -> None:
    """Take the usage of a plain answer, or the counts that Titan and Llama give beside the text."""
    body = piece.fields
    if isinstance(body.get("usage"), dict):
        reading.use(piece, "usage")
        reading.usage_is_final = True
    elif isinstance(body.get(_METRICS), dict):
        reading.use(piece, _METRICS)
        reading.usage_is_final = True
    elif found := {name: body[name] for name in _COUNTS if body.get(name) is not None}:
        results = dicts(body.get("results"))
        written = [one.get("tokenCount") for one in results if "tokenCount" in one]
        if "embedding" in body:
            written = [0]
        reading.count(found | ({"results": written} if written else {}))
        reading.usage_is_final = bool(written) or "generation_token_count" in found
