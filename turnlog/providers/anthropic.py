"""Anthropic Messages."""

from collections.abc import Mapping, Sequence
from typing import Any

from turnlog.providers.exchange import Chunk
from turnlog.providers.framing import Piece
from turnlog.providers.reading import Reading, as_dict, as_text, dicts

_TEXT = {"text_delta": ("text", "text"), "thinking_delta": ("reasoning", "thinking")}


def read(pieces: Sequence[Piece], reading: Reading) -> None:
    """Read the events of a stream, or the message of a plain answer."""
    calls = _Calls(reading)
    for piece in pieces:
        body = piece.fields
        kind = body.get("type") or piece.event
        if kind == "error" or piece.event == "exception":
            reading.fail(body.get("error") or body or "the stream ended with an error")
        elif kind == "message":
            _message(piece, body, (), reading)
            for place, block in enumerate(dicts(body.get("content"))):
                calls.begin(place, block)
                calls.stop(place)
        elif isinstance(kind, str):
            _event(kind, piece, reading, calls)


def _event(kind: str, piece: Piece, reading: Reading, calls: "_Calls") -> None:
    body = piece.fields
    if kind == "message_start":
        _message(piece, as_dict(body.get("message")), ("message",), reading)
        reading.usage_is_final = False
    elif kind == "content_block_start":
        calls.begin(body.get("index"), as_dict(body.get("content_block")))
    elif kind == "content_block_delta":
        calls.delta(body.get("index"), as_dict(body.get("delta")))
    elif kind == "content_block_stop":
        calls.stop(body.get("index"))
    elif kind == "message_delta":
        reading.finish(0, as_dict(body.get("delta")).get("stop_reason"))
        if isinstance(body.get("usage"), dict):
            # It counts again, and where it disagrees with message_start it is the one that holds.
            reading.use(piece, "usage", add=True)
            reading.usage_is_final = True
    elif kind == "message_stop":
        reading.ended = True


def _message(
    piece: Piece, message: Mapping[str, Any], path: tuple[str, ...], reading: Reading
) -> None:
    reading.name(message.get("id"), message.get("model"))
    reading.fail(message.get("error"))
    reading.finish(0, message.get("stop_reason"))
    usage = message.get("usage")
    if isinstance(usage, dict):
        reading.use(piece, *path, "usage")
        reading.usage_is_final = True
        if isinstance(usage.get("speed"), str):
            reading.price_context["speed"] = usage["speed"]


class _Calls:
    """Content blocks by their index; a tool's input comes in pieces, or whole with its start."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._whole = reading.inputs

    def begin(self, index: Any, block: Mapping[str, Any]) -> None:
        self._reading.say(0, "text", block.get("text"))
        self._reading.say(0, "reasoning", block.get("thinking"))
        if as_text(block.get("type")).endswith("tool_use"):
            call_id, name = as_text(block.get("id")), as_text(block.get("name"))
            self._add("", index, call_id, name)
            if block.get("input"):
                self._whole[_key(index)] = as_text(block["input"])

    def delta(self, index: Any, delta: Mapping[str, Any]) -> None:
        kind, field = _TEXT.get(as_text(delta.get("type")), ("", ""))
        if kind:
            self._reading.say(0, kind, delta.get(field))
        elif delta.get("type") == "input_json_delta":
            if delta.get("partial_json"):
                self._whole.pop(_key(index), None)
            self._add(as_text(delta.get("partial_json")), index)

    def stop(self, index: Any) -> None:
        if whole := self._whole.pop(_key(index), ""):
            self._add(whole, index)

    def _add(self, text: str, index: Any, call_id: str = "", name: str = "") -> None:
        at = self._reading.call_index(0, _key(index), call_id)
        self._reading.chunks.append(Chunk(0, "tool_call", text, at, call_id, name))


def _key(index: Any) -> int:
    return index if isinstance(index, int) else 0
