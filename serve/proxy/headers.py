"""Which headers pass a proxy: all but those of one connection (RFC 9110, section 7.6.1).

Order, repeats and the letters of names stay as they came.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from multidict import CIMultiDict

from serve.doors.problem import Problem

OURS = "x-turnlog-"
RUN = "x-turnlog-run"
# `Expect` is answered here; trailers are not taken over, so nobody is told to send any.
_CONNECTION = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "expect",
    )
)
_MAX_MARK_CHARS = 1024
DECODABLE = frozenset(("identity", "gzip", "x-gzip", "deflate", "zstd"))

Headers = Iterable[tuple[str, str]]


class Marks(NamedTuple):
    """What a client says about its call in `x-turnlog-…` headers, which no provider sees."""

    user: str = ""
    conversation: str = ""
    run_group: str = ""
    idempotency_key: str = ""
    project: str = ""


def marks_of(headers: Mapping[str, str]) -> Marks:
    """Return the marks of a request.

    Raises:
        Problem: 400, one of them is too long.
    """
    values = {}
    for name in Marks._fields:
        header = OURS + name.replace("_", "-")
        values[name] = headers.get(header, "")
        if len(values[name]) > _MAX_MARK_CHARS:
            raise Problem(400, "invalid", f"longer than {_MAX_MARK_CHARS} characters", header)
    return Marks(**values)


def for_upstream(headers: Headers, authority: str) -> CIMultiDict[str]:
    """Return a request's headers as the provider gets them."""
    kept = CIMultiDict(
        (name, value)
        for name, value in _end_to_end(headers)
        if not name.lower().startswith(OURS) and name.lower() != "host"
    )
    kept["Host"] = authority
    return kept


def for_client(headers: Headers) -> CIMultiDict[str]:
    """Return an answer's headers as the client gets them."""
    return CIMultiDict((name, value) for name, value in _end_to_end(headers) if name.lower() != RUN)


def _end_to_end(headers: Headers) -> Iterator[tuple[str, str]]:
    listed = list(headers)
    named = {
        token.strip().lower()
        for name, value in listed
        if name.lower() == "connection"
        for token in value.split(",")
    }
    dropped = _CONNECTION | (named - {"content-length", "host", "authorization", "content-type"})
    return ((name, value) for name, value in listed if name.lower() not in dropped)


def narrow_codings(headers: CIMultiDict[str]) -> None:
    """Offer the provider only content codings that can be undone for the record.

    Nothing changes where all can. Brotli is the one that clients offer and that has no decoder
    here.
    """
    offered = ", ".join(headers.getall("Accept-Encoding", []))
    items = [item.strip() for item in offered.split(",") if item.strip()]
    kept = [item for item in items if item.partition(";")[0].strip().lower() in DECODABLE]
    if len(kept) < len(items):
        headers["Accept-Encoding"] = ", ".join(kept) or "identity"
