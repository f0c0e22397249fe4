"""Which form an exchange has: the path proposes, the shape of the body decides.

Names of providers decide only where a provider has a form of its own under a path that others
share (Mistral), and for Bedrock, whose bodies are wrapped copies of other providers' and whose
usage does not lie where theirs does.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from turnlog.providers import anthropic, chat, gemini, other, responses
from turnlog.providers.framing import Framed, Piece
from turnlog.providers.reading import Reading
from turnlog.providers.source import Source

READERS: dict[str, Callable[[Sequence[Piece], Reading], None]] = {
    "chat": chat.read,
    "responses": responses.read,
    "anthropic": anthropic.read,
    "gemini": gemini.read,
    "other": other.read,
}

_ROUTES = (
    (re.compile(r":(stream)?generatecontent$"), "gemini"),
    (re.compile(r"/(chat/)?completions$"), "chat"),
    (re.compile(r"/responses(/[^/]+)?$"), "responses"),
    (re.compile(r"(^|/v\d[^/]*)/messages$"), "anthropic"),
)
_BEDROCK = re.compile(r"/model/[^/]+/(converse|invoke|count-tokens)")
_MISTRAL = re.compile(r"(^|\.)mistral\.ai(:\d+)?$")
# An Azure stream begins with a chunk of neither id nor object; a long look costs nothing.
_LOOK = 20


def form_of(source: Source, framed: Framed) -> str:
    """Return the name of the form, a key of `READERS`."""
    if _own_form(source):
        return "other"
    proposed = next((form for route, form in _ROUTES if route.search(source.route)), "")
    shapes = [shape for piece in framed.pieces[:_LOOK] if (shape := shape_of(piece.value))]
    if shapes:
        return proposed if proposed in shapes else shapes[0]
    failed = source.status >= 400 or any(_is_error(piece) for piece in framed.pieces[:_LOOK])
    nothing = not framed.pieces
    return proposed if proposed and (failed or nothing) else "other"


def _own_form(source: Source) -> bool:
    mistral = _MISTRAL.search(source.host) or source.provider == "mistral"
    bedrock = source.host.startswith("bedrock-runtime.") or _BEDROCK.search(source.route)
    return bool(mistral or bedrock)


def _is_error(piece: Piece) -> bool:
    return bool(piece.fields.get("error")) or piece.event == "error"


def shape_of(value: Any) -> str:
    """Return the form that a JSON value of a response has by its looks, or nothing."""
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        return ""
    kind = value.get("type")
    if isinstance(value.get("choices"), list):
        return "chat"
    if value.get("object") == "response" or (
        isinstance(kind, str) and kind.startswith("response.")
    ):
        return "responses"
    if kind == "message_start" or (kind == "message" and "content" in value and "role" in value):
        return "anthropic"
    if isinstance(value.get("candidates"), list) or "usageMetadata" in value:
        return "gemini"
    return "gemini" if "promptFeedback" in value else ""
