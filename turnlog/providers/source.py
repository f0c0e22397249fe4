"""One line of recorded traffic, checked: what was sent, what came back, and how."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnlog.errors import TurnlogError

# File names and ids are part of an event's identity, which holds at most 65,535 bytes a part.
MAX_NAME_BYTES = 4096
MAX_N = 2**62 - 2


class BadLine(TurnlogError):
    """A line that is no exchange; the message says which field is wrong and how."""


@dataclass(frozen=True, slots=True)
class Source:
    """An exchange as it was recorded; `request` and `response` are the exact bytes of the bodies.

    Attributes:
        id: the line's own id.
        file: lines that share it are one conversation; empty for a line that stands alone.
        n: place in that conversation, from 0.
        framing: sse, ndjson, aws-eventstream or json as recorded; empty where it was not.
        response_bytes: length of the response as recorded, None where it was not.
    """

    id: str
    file: str
    n: int
    provider: str
    method: str
    host: str
    path: str
    status: int
    streaming: bool
    framing: str
    content_type: str
    request_content_type: str
    request: bytes
    response: bytes
    response_bytes: int | None

    @property
    def route(self) -> str:
        """The path without its query, in lower case."""
        return self.path.partition("?")[0].lower().rstrip("/")


def read_source(line: Mapping[str, Any]) -> Source:
    """Check one line of the form that `docs/providers.md` describes.

    Raises:
        BadLine: a field is missing or has the wrong type, or a body does not decode.
    """
    return Source(
        id=_name(line, "id", required=True),
        file=_name(line, "file", required=False),
        n=_whole(line, "n", 0, MAX_N, default=0),
        provider=_text(line, "provider"),
        method=_text(line, "method").upper(),
        host=_text(line, "host"),
        path=_text(line, "path"),
        status=_whole(line, "status", 100, 599, default=None),
        streaming=_flag(line, "streaming"),
        framing=_text(line, "framing").lower(),
        content_type=_header(line, "response_headers"),
        request_content_type=_header(line, "request_headers"),
        request=_body(line, "request_body"),
        response=_body(line, "response_body"),
        response_bytes=_length(line, "response_bytes"),
    )


def _text(line: Mapping[str, Any], field: str) -> str:
    value = line.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadLine(f"{field}: not a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadLine(f"{field}: a lone surrogate, which no UTF-8 has") from None
    return value


def _name(line: Mapping[str, Any], field: str, required: bool) -> str:
    value = _text(line, field)
    if required and not value:
        raise BadLine(f"{field}: missing")
    if len(value.encode()) > MAX_NAME_BYTES:
        raise BadLine(f"{field}: longer than {MAX_NAME_BYTES} bytes")
    return value


def _whole(
    line: Mapping[str, Any], field: str, lowest: int, highest: int, default: int | None
) -> int:
    value = line.get(field, default)
    if value is None:
        raise BadLine(f"{field}: missing")
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadLine(f"{field}: not an integer")
    if not lowest <= value <= highest:
        raise BadLine(f"{field}: not within {lowest} to {highest}")
    return value


def _flag(line: Mapping[str, Any], field: str) -> bool:
    value = line.get(field)
    if value is not None and not isinstance(value, bool):
        raise BadLine(f"{field}: neither true nor false")
    return bool(value)


def _length(line: Mapping[str, Any], field: str) -> int | None:
    value = line.get(field)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _header(line: Mapping[str, Any], field: str) -> str:
    headers = line.get(field)
    if headers is None:
        return ""
    if not isinstance(headers, Mapping):
        raise BadLine(f"{field}: not an object")
    for name, value in headers.items():
        if str(name).lower() == "content-type" and isinstance(value, str):
            return value.lower()
    return ""


def _body(line: Mapping[str, Any], field: str) -> bytes:
    """Return the bytes of `{"text": …}` or `{"b64": …}`; null or absent is no body."""
    value = line.get(field)
    if value is None:
        return b""
    if not isinstance(value, Mapping):
        raise BadLine(f"{field}: not an object with text or b64")
    if isinstance(b64 := value.get("b64"), str):
        return _decoded(b64, field)
    if isinstance(text := value.get("text"), str):
        return _encoded(text, field)
    raise BadLine(f"{field}: neither text nor b64")


def _decoded(b64: str, field: str) -> bytes:
    try:
        return base64.b64decode(b64, validate=True)
    except (binascii.Error, ValueError):
        raise BadLine(f"{field}: b64 does not decode") from None


def _encoded(text: str, field: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadLine(f"{field}: a lone surrogate, which no UTF-8 has") from None
