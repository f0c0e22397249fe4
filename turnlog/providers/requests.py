"""What a request says: its model, and its last user or tool message."""

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from turnlog.providers.exchange import Message
from turnlog.providers.json_text import NotJson, dumps, loads, mend
from turnlog.providers.media import model_in_form
from turnlog.providers.reading import as_dict, as_text, dicts
from turnlog.providers.source import Source

_MODEL_IN_PATH = re.compile(r"/(?:models?|deployments)/([^/:?]+(?:%3A[^/:?]+|:\d+)?)", re.I)
_TEXT_TYPES = frozenset(("text", "input_text", "output_text", ""))
_TOOL_ROLES = frozenset(("tool", "function"))


def parse(source: Source) -> dict[str, Any]:
    """Return the request body if it is a JSON object, else an empty one."""
    try:
        return as_dict(loads(source.request)) if source.request else {}
    except NotJson:
        return {}


def model_of(source: Source, request: Mapping[str, Any]) -> str:
    """Return the model that was asked for: in the body, in the path, or in a form's field."""
    if isinstance(request.get("model"), str):
        return mend(request["model"])
    if found := _MODEL_IN_PATH.search(source.path):
        return unquote(found[1])
    return mend(model_in_form(source.request, source.request_content_type))


def last_message(request: Mapping[str, Any]) -> Message | None:
    """Return the last message of a user or a tool, or None where a request has none."""
    for field in ("messages", "input", "contents", "prompt", "message", "inputText"):
        said = request.get(field)
        if isinstance(said, str):
            return Message("user", mend(said))
        if isinstance(said, dict):
            said = [said]
        if isinstance(said, list) and said:
            return _last(said, plain=field in ("prompt", "input"))
    return None


def _last(said: list[Any], plain: bool) -> Message | None:
    if plain and not any(isinstance(item, dict) for item in said):
        # Legacy prompts: one or several strings, or token numbers, which are no text.
        text = "\n".join(item for item in said if isinstance(item, str))
        return Message("user", mend(text), b"" if text else _raw(said))
    for item in reversed(said):
        if isinstance(item, str):
            return Message("user", mend(item))
        if isinstance(item, dict) and (role := _role(item)):
            return _message(role, item)
    return None


def _role(item: Mapping[str, Any]) -> str:
    """Return user or tool, or nothing for what neither said."""
    kind = as_text(item.get("type"))
    if kind.endswith("_call_output"):
        return "tool"
    role = item.get("role")
    if isinstance(role, str) and role in _TOOL_ROLES:
        return "tool"
    in_gemini = role is None and "parts" in item
    if role != "user" and not in_gemini:
        return ""
    parts = _parts(item)
    return "tool" if parts and all(_is_result(part) for part in parts) else "user"


def _parts(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    return dicts(item.get("content")) or dicts(item.get("parts"))


def _is_result(part: Mapping[str, Any]) -> bool:
    kind = as_text(part.get("type"))
    return kind.endswith("tool_result") or "toolResult" in part or "functionResponse" in part


def _message(role: str, item: Mapping[str, Any]) -> Message:
    content = next(
        (item[key] for key in ("content", "parts", "output") if item.get(key) is not None), None
    )
    text = "\n".join(_texts(content))
    name = as_text(item.get("name"))
    return Message(role, mend(text), b"" if _is_plain(content) else _raw(item), mend(name))


def _texts(content: Any) -> Iterator[str]:
    """Yield the texts of a message's content; what a tool answered as an object, as JSON."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, dict):
        yield as_text(content)
    for part in content if isinstance(content, list) else ():
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict):
            yield from _part_texts(part)


def _part_texts(part: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(part.get("text"), str):
        yield part["text"]
    elif isinstance(part.get("functionResponse"), dict):
        yield as_text(part["functionResponse"].get("response"))
    elif isinstance(part.get("toolResult"), dict):
        yield from _texts(part["toolResult"].get("content"))
    elif "json" in part:
        yield as_text(part["json"])
    elif as_text(part.get("type")).endswith("tool_result"):
        yield from _texts(part.get("content"))


def _is_plain(content: Any) -> bool:
    """Say whether a message is nothing but its text."""
    if content is None or isinstance(content, str):
        return True
    return isinstance(content, list) and all(
        isinstance(part, str)
        or (
            isinstance(part, dict)
            and isinstance(part.get("text"), str)
            and as_text(part.get("type")) in _TEXT_TYPES
        )
        for part in content
    )


def _raw(value: Any) -> bytes:
    return dumps(value).encode("utf-8", "surrogatepass")
