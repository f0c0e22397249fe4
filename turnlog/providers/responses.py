"""OpenAI Responses: created, polled, resumed and streamed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from turnlog.providers.exchange import Chunk
from turnlog.providers.framing import Piece
from turnlog.providers.reading import Reading, as_dict, as_text, dicts

_TEXT = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.audio.transcript.delta": "text",
}
_ARGUMENTS = frozenset(
    (
        "response.function_call_arguments.delta",
        "response.mcp_call_arguments.delta",
        "response.custom_tool_call_input.delta",
        "response.code_interpreter_call_code.delta",
    )
)
_CALLS = frozenset(
    ("function_call", "custom_tool_call", "mcp_call", "code_interpreter_call", "local_shell_call")
)
_LAST = frozenset(
    ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
)


def read(pieces: Sequence[Piece], reading: Reading) -> None:
    """Read the events of a stream, or the response object of a plain answer."""
    for piece in pieces:
        body = piece.fields
        kind = body.get("type")
        if isinstance(kind, str) and (kind.startswith("response.") or kind == "error"):
            _event(kind, piece, reading)
        else:
            reading.fail(piece.event == "error" and piece.value)
            _response(piece, body, (), reading)


def _event(kind: str, piece: Piece, reading: Reading) -> None:
    body = piece.fields
    if kind in _TEXT:
        reading.say(0, _TEXT[kind], body.get("delta"))
    elif kind in _ARGUMENTS:
        at = _place(body, reading)
        reading.chunks.append(Chunk(0, "tool_call", as_text(body.get("delta")), at))
    elif kind == "response.output_item.added":
        _begin(body, reading)
    elif kind == "error":
        reading.fail(body.get("error") or body)
    elif isinstance(body.get("response"), dict):
        _response(piece, body["response"], ("response",), reading)
        if kind in _LAST:
            reading.ended = True
            reading.cancelled = kind == "response.cancelled"
            if kind == "response.failed":
                reading.fail(as_dict(body["response"].get("error")) or "the response failed")


def _place(body: Mapping[str, Any], reading: Reading) -> int:
    return reading.call_index(0, body.get("output_index"), "")


def _begin(body: Mapping[str, Any], reading: Reading) -> None:
    item = as_dict(body.get("item"))
    if as_text(item.get("type")) in _CALLS:
        call = _call(item)
        reading.chunks.append(call._replace(text="", call=_place(body, reading)))


def _response(
    piece: Piece, response: Mapping[str, Any], path: tuple[str, ...], reading: Reading
) -> None:
    """Read a response object, at `path` of its piece."""
    reading.name(response.get("id"), response.get("model"))
    reading.tier(response.get("service_tier"))
    reading.fail(response.get("error"))
    reason = as_dict(response.get("incomplete_details")).get("reason")
    if reason is not None:
        reading.finish(0, reason)
    if isinstance(response.get("usage"), dict):
        reading.use(piece, *path, "usage")
        reading.usage_is_final = True
    output = dicts(response.get("output"))
    if output:
        reading.snapshot = list(_output(output))


def _output(items: Sequence[Mapping[str, Any]]) -> Iterator[Chunk]:
    for place, item in enumerate(items):
        kind = as_text(item.get("type"))
        if kind == "message":
            for part in dicts(item.get("content")):
                yield Chunk(0, "text", as_text(part.get("text")))
                yield Chunk(0, "refusal", as_text(part.get("refusal")))
        elif kind == "reasoning":
            for part in dicts(item.get("summary")) + dicts(item.get("content")):
                yield Chunk(0, "reasoning", as_text(part.get("text")))
        elif kind in _CALLS:
            yield _call(item)._replace(call=place)


def _call(item: Mapping[str, Any]) -> Chunk:
    given = next((item[k] for k in ("arguments", "input", "code", "action") if k in item), None)
    name = as_text(item.get("name")) or as_text(item.get("type"))
    call_id = as_text(item.get("call_id")) or as_text(item.get("id"))
    return Chunk(0, "tool_call", as_text(given), 0, call_id, name)
