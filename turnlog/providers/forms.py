"""Which form an exchange has: the path proposes, the shape of the body decides.

Bedrock's InvokeModel answers in the form of the model's own provider, which the body then tells.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turnlog.providers import (
    anthropic,
    bedrock,
    chat,
    cohere,
    gemini,
    media,
    ollama,
    other,
    responses,
)
from turnlog.providers.framing import Framed, Piece
from turnlog.providers.reading import Reading
from turnlog.providers.source import Source

READERS: dict[str, Callable[[Sequence[Piece], Reading], None]] = {
    "chat": chat.read,
    "responses": responses.read,
    "anthropic": anthropic.read,
    "gemini": gemini.read,
    "bedrock": bedrock.read,
    "cohere": cohere.read,
    "ollama": ollama.read,
    "embeddings": media.read_embeddings,
    "images": media.read_images,
    "audio": media.read_audio,
    "other": other.read,
}

_ROUTES = (
    (re.compile(r":(stream)?generatecontent$"), "gemini"),
    (re.compile(r"/(chat/)?completions$"), "chat"),
    (re.compile(r"/responses(/[^/]+)?$"), "responses"),
    (re.compile(r"(^|/v\d[^/]*)/messages$"), "anthropic"),
    (re.compile(r"/model/[^/]+/(converse|invoke)[^/]*$"), "bedrock"),
    (re.compile(r"/api/(chat|generate|embed)$"), "ollama"),
    (re.compile(r"/embeddings$"), "embeddings"),
    (re.compile(r"/images/(generations|edits|variations)$"), "images"),
)
_OWN: tuple[tuple[str, Callable[[Mapping[str, Any]], bool]], ...] = (
    ("bedrock", bedrock.looks_like),
    ("cohere", cohere.looks_like),
    ("ollama", ollama.looks_like),
    ("embeddings", media.is_embeddings),
    ("images", media.is_images),
    ("audio", media.is_audio),
)
# An Azure stream begins with a chunk of neither id nor object; a long look costs nothing.
_LOOK = 20


def form_of(source: Source, framed: Framed) -> str:
    """Return the name of the form, a key of `READERS`."""
    proposed = _proposed(source)
    shape = _shape(framed.pieces, proposed)
    if shape:
        return shape
    failed = source.status >= 400 or any(_is_error(piece) for piece in framed.pieces[:_LOOK])
    nothing = not framed.pieces
    return proposed if proposed and (failed or nothing) else "other"


def is_settled(source: Source, pieces: Sequence[Piece]) -> bool:
    """Say whether the form is clear from the first pieces of a stream, whatever may follow."""
    if len(pieces) >= _LOOK:
        return True
    proposed = _proposed(source)
    shape = _shape(pieces, proposed)
    return shape == proposed if proposed else bool(shape)


def _proposed(source: Source) -> str:
    return next((form for route, form in _ROUTES if route.search(source.route)), "")


def _shape(pieces: Sequence[Piece], proposed: str) -> str:
    """Return the form that was proposed if a piece has it, else that of the first that has one."""
    first = ""
    for piece in pieces[:_LOOK]:
        shape = shape_of(piece.value)
        if shape and shape == proposed:
            return shape
        first = first or shape
    return first


def _is_error(piece: Piece) -> bool:
    return bool(piece.fields.get("error")) or piece.event == "error"


def shape_of(value: Any) -> str:
    """Return the form that a JSON value of a response has by its looks, or nothing."""
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        return ""
    if own := next((form for form, looks in _OWN if looks(value)), ""):
        return own
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
