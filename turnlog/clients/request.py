"""What a client is about to send, as far as it can be seen without taking it away."""

import io
from dataclasses import dataclass
from typing import Any

# A body that is made while it goes out, such as an upload, is looked at only up to this size.
MAX_UPLOAD_BYTES = 1 << 20
_RETRY = "x-stainless-retry-count"


@dataclass(frozen=True, slots=True)
class Sent:
    """A request.

    Attributes:
        method: HTTP method.
        host: HTTP host, with its port where the address names one.
        path: path and query, as they go out.
        content_type: of the body.
        body: the body; empty where it is too large an upload or can be read only once.
        idempotency_key: the header of this name.
        is_retry: whether the client says that it sends it again.
    """

    method: str
    host: str
    path: str
    content_type: str
    body: bytes
    idempotency_key: str
    is_retry: bool

    @property
    def mark(self) -> tuple[str, int]:
        """What a request and its retry have in common; for telling one from another call."""
        return self.path, hash(self.body)


def sent(request: Any) -> Sent:
    """Return what an httpx request says; no header of it but these three is looked at."""
    headers = request.headers
    url = request.url
    return Sent(
        request.method,
        url.netloc.decode("ascii", "replace").rpartition("@")[2],
        url.raw_path.decode("ascii", "replace"),
        headers.get("content-type", ""),
        _body(request),
        headers.get("idempotency-key", ""),
        headers.get(_RETRY, "0") not in ("", "0"),
    )


def _body(request: Any) -> bytes:
    """Return the body: of what is made while it goes out, only if that can be made twice."""
    held = getattr(request, "_content", None)
    if isinstance(held, bytes):
        return held
    length = request.headers.get("content-length", "")
    small = length.isdecimal() and int(length) <= MAX_UPLOAD_BYTES
    return b"".join(request.stream) if small and _can_be_read_twice(request.stream) else b""


def _can_be_read_twice(stream: Any) -> bool:
    """Say whether a multipart body has only parts that are texts or files to seek in."""
    fields = getattr(stream, "fields", None)
    return isinstance(fields, list) and all(_is_held(field) for field in fields)


def _is_held(field: Any) -> bool:
    file = getattr(field, "file", b"")
    return isinstance(file, str | bytes) or (isinstance(file, io.IOBase) and file.seekable())
