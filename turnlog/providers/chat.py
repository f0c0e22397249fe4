"""OpenAI Chat and legacy Completions, and every server that answers in their form."""

from collections.abc import Mapping, Sequence
from typing import Any

from turnlog.providers.exchange import Chunk
from turnlog.providers.framing import DONE, Piece
from turnlog.providers.reading import MAX_CHOICES, Reading, as_dict, as_text, dicts, index_of


def read(pieces: Sequence[Piece], reading: Reading) -> None:
    """Read the chunks of a stream, or the one object of a plain answer."""
    for piece in pieces:
        if piece.text == DONE:
            reading.ended = True
        elif not _is_usual(piece, reading):
            _body(piece, reading)


def _is_usual(piece: Piece, reading: Reading) -> bool:
    """Read a chunk that is some text of one choice and nothing more; say whether it is one.

    All but a few chunks of a stream are, and `_body` says the same of them in four times the time.
    """
    body = piece.value
    if type(body) is not dict or not body.keys() <= _USUAL or piece.event:
        return False
    choices = body.get("choices")
    if type(choices) is not list or len(choices) != 1 or body.get("usage") is not None:
        return False
    if not (reading.response_id and reading.model):
        return False
    choice = choices[0]
    if type(choice) is not dict or not choice.keys() <= _USUAL_CHOICE:
        return False
    index, delta = choice.get("index"), choice.get("delta")
    if type(index) is not int or not 0 <= index < MAX_CHOICES or type(delta) is not dict:
        return False
    text = delta.get("content")
    if len(delta) != 1 or type(text) is not str or choice.get("finish_reason") is not None:
        return False
    reading.tier(body.get("service_tier"))
    reading.say(index, "text", text)
    reading.finish(index, None)
    return True


_USUAL = frozenset(
    ("id", "object", "created", "model", "service_tier", "system_fingerprint", "choices", "usage")
    + ("obfuscation",)
)
_USUAL_CHOICE = frozenset(("index", "delta", "logprobs", "finish_reason"))


def _body(piece: Piece, reading: Reading) -> None:
    body = piece.fields
    reading.name(body.get("id"), body.get("model"))
    reading.tier(body.get("service_tier"))
    reading.fail(body.get("error") or (piece.event == "error" and piece.value))
    for place, choice in enumerate(dicts(body.get("choices"))):
        _choice(place, choice, reading)
    _usage(piece, reading)


def _usage(piece: Piece, reading: Reading) -> None:
    body = piece.fields
    groq = as_dict(body.get("x_groq"))
    reading.fail(groq.get("error"))
    if isinstance(body.get("usage"), dict):
        reading.use(piece, "usage")
        reading.usage_is_final = True
    elif isinstance(groq.get("usage"), dict):
        reading.use(piece, "x_groq", "usage")
        reading.usage_is_final = True


def _choice(place: int, choice: Mapping[str, Any], reading: Reading) -> None:
    index = index_of(choice, place)
    message = choice.get("delta")
    if not isinstance(message, dict):
        message = choice.get("message")
    if isinstance(message, dict):
        _message(index, message, reading)
    else:
        reading.say(index, "text", choice.get("text"))
    reading.fail(choice.get("error"))
    reason = choice.get("finish_reason")
    if reason == "error":
        reading.fail("the choice ended with an error")
    reading.finish(index, reason)


def _message(index: int, message: Mapping[str, Any], reading: Reading) -> None:
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    reading.say(index, "reasoning", reasoning)
    _content(index, message.get("content"), reading)
    reading.say(index, "text", as_dict(message.get("audio")).get("transcript"))
    reading.say(index, "refusal", message.get("refusal"))
    for place, call in enumerate(dicts(message.get("tool_calls"))):
        _call(index, call.get("index"), place, call, reading)
    if isinstance(message.get("function_call"), dict):
        _call(index, 0, 0, {"function": message["function_call"]}, reading)


def _content(index: int, content: Any, reading: Reading) -> None:
    reading.say(index, "text", content)
    for part in dicts(content):
        kind = "reasoning" if part.get("type") in ("thinking", "reasoning") else "text"
        reading.say(index, kind, part.get("text"))
        for inner in dicts(part.get("thinking")):
            reading.say(index, "reasoning", inner.get("text"))


def _call(choice: int, index: Any, place: int, call: Mapping[str, Any], reading: Reading) -> None:
    call_id = as_text(call.get("id"))
    if index is None and not call_id and as_dict(call.get("function")).get("name"):
        index = place
    at = reading.call_index(choice, index, call_id)
    function = as_dict(call.get("function")) or as_dict(call.get("custom"))
    arguments = as_text(function.get("arguments", function.get("input")))
    name = as_text(function.get("name"))
    reading.chunks.append(Chunk(choice, "tool_call", arguments, at, call_id, name))
