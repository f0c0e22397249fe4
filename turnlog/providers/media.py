"""OpenAI's forms beside text: embeddings, images, and what was heard or spoken.

https://platform.openai.com/docs/api-reference (embeddings, images, images-streaming, audio). Other
servers answer in them too. Vectors, images and sounds stay in the stored response; what is read is
text that was transcribed, and what was used.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from turnlog.providers.exchange import Chunk
from turnlog.providers.framing import DONE, Piece
from turnlog.providers.json_text import mend
from turnlog.providers.reading import Reading, as_dict, as_text

_IMAGE_EVENT = re.compile(r"image_(generation|edit)\.(partial_image|completed)$")
_AUDIO_EVENT = re.compile(r"(transcript\.text|speech\.audio)\.(delta|segment|done)$")
_IMAGES = ("b64_json", "url", "revised_prompt")
_COUNTED = frozenset(("tokens", "duration"))
_MODEL_PART = re.compile(
    rb"""\bname="?model"?\r\n(?:[^\r\n]+\r\n){0,8}\r\n([^\r\n]{1,256})\r\n--""", re.IGNORECASE
)
# The fields stand before the file or after it; what lies between is megabytes.
_LOOK_BYTES = 64 << 10


def is_embeddings(value: Mapping[str, Any]) -> bool:
    """Say whether a JSON object is an answer of vectors."""
    return value.get("object") == "list" and "embedding" in _first(value)


def is_images(value: Mapping[str, Any]) -> bool:
    """Say whether a JSON object is an answer of images, or an event of one."""
    if _IMAGE_EVENT.match(as_text(value.get("type"))):
        return True
    return "created" in value and any(name in _first(value) for name in _IMAGES)


def is_audio(value: Mapping[str, Any]) -> bool:
    """Say whether a JSON object is a transcript, or an event of one or of speech."""
    if _AUDIO_EVENT.match(as_text(value.get("type"))):
        return True
    if not isinstance(value.get("text"), str):
        return False
    counted = as_text(as_dict(value.get("usage")).get("type")) in _COUNTED
    return counted or value.get("task") in ("transcribe", "translate")


def _first(value: Mapping[str, Any]) -> dict[str, Any]:
    data = value.get("data")
    return as_dict(data[0]) if isinstance(data, list) and data else {}


def read_embeddings(pieces: Sequence[Piece], reading: Reading) -> None:
    """Read an answer of vectors."""
    for piece in pieces:
        _common(piece, reading)


def read_images(pieces: Sequence[Piece], reading: Reading) -> None:
    """Read an answer of images, or its events."""
    for piece in pieces:
        _common(piece, reading)
        if as_text(piece.fields.get("type")).endswith(".completed"):
            reading.ended = True


def read_audio(pieces: Sequence[Piece], reading: Reading) -> None:
    """Read a transcript, its events, or those of speech, whose sound is left out."""
    for piece in pieces:
        _common(piece, reading)
        body = piece.fields
        kind = as_text(body.get("type"))
        if kind == "transcript.text.delta":
            reading.say(0, "text", body.get("delta"))
        elif kind.endswith(".done"):
            # It repeats the whole text.
            reading.snapshot = [Chunk(0, "text", mend(as_text(body.get("text"))))]
            reading.ended = True
        elif not kind:
            reading.say(0, "text", body.get("text"))


def _common(piece: Piece, reading: Reading) -> None:
    body = piece.fields
    reading.ended |= piece.text == DONE
    reading.name(body.get("id"), body.get("model"))
    reading.fail(body.get("error") or (as_text(body.get("type")) == "error" and body))
    if isinstance(body.get("usage"), dict):
        reading.use(piece, "usage")
        reading.usage_is_final = True


def model_in_form(request: bytes, content_type: str) -> str:
    """Return the model that a form names (`multipart/form-data`, RFC 7578), nothing where none is.

    A picture to edit and a recording to transcribe are sent so.
    """
    if not content_type.lower().startswith("multipart/form-data"):
        return ""
    for part in (request[:_LOOK_BYTES], request[-_LOOK_BYTES:]):
        if found := _MODEL_PART.search(part):
            return found[1].decode("utf-8", "replace").strip()
    return ""
