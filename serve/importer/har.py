"""Reading a HAR 1.2 file: what a browser or a proxy saw, of which the calls of models are taken.

http://www.softwareishard.com/blog/har-12-spec/. A HAR is one JSON document, so it is held in memory
whole. Headers are left where they are, the content type aside, and of a query only what selects
the form of an answer: keys stand in both.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from serve.importer.events import NOTHING_TOLD, Told
from serve.importer.lines import BOM, Line
from turnlog.errors import UsageError
from turnlog.providers import BadLine, Source, read_source
from turnlog.providers.forms import form_of
from turnlog.providers.framing import frame
from turnlog.providers.json_text import NotJson, loads
from turnlog.providers.usage import provider_id

MAX_FILE_BYTES = 1 << 30
_BEGINS = re.compile(rb"\s*\{\s*\"log\"\s*:\s*\{")
_LOOK_BYTES = 4096
_QUERY = ("alt", "api-version", "beta")
_DAY_MS = 86_400_000


def is_har(path: Path) -> bool:
    """Say whether a file is a HAR, by how it begins and not by its name."""
    try:
        with path.open("rb") as file:
            return _BEGINS.match(file.read(_LOOK_BYTES).removeprefix(BOM)) is not None
    except OSError:
        return False


def read_entries(path: Path) -> Iterator[Line]:
    """Yield the entries that are calls of models, and those that cannot be read.

    Raises:
        UsageError: the file cannot be read, is over 1 GiB, or is no HAR after all.
    """
    entries, size = _entries(path)
    for index, entry in enumerate(entries):
        line = _line(index, entry, size * (index + 1) // len(entries))
        if line.source is None or _is_call(line.source):
            yield line


def _entries(path: Path) -> tuple[list[Any], int]:
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise UsageError(f"{path} is a HAR of over {MAX_FILE_BYTES} bytes, which is read whole")
        document = loads(path.read_bytes().removeprefix(BOM))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or 'cannot be read'}") from None
    except NotJson:
        raise UsageError(f"{path} begins like a HAR and is no JSON") from None
    log = document.get("log") if isinstance(document, dict) else None
    entries = log.get("entries") if isinstance(log, dict) else None
    if not isinstance(entries, list):
        raise UsageError(f"{path} begins like a HAR and has no entries")
    return entries, size


def _is_call(source: Source) -> bool:
    """Say whether an exchange is one with a model: by its form, else by who was asked."""
    if source.method in ("OPTIONS", "HEAD"):
        return False
    if form_of(source, frame(source)) != "other":
        return True
    return source.method == "POST" and bool(provider_id(source))


def _line(index: int, entry: Any, end: int) -> Line:
    number, unnamed = index + 1, f"entry:{index}"
    if not isinstance(entry, Mapping):
        return Line(number, unnamed, None, "not a JSON object", end)
    request, response = entry.get("request"), entry.get("response")
    if not isinstance(request, Mapping) or not isinstance(response, Mapping):
        return Line(number, unnamed, None, "request or response: missing", end)
    name = entry_id(index, entry)
    try:
        source = read_source(_as_line(name, request, response))
    except BadLine as error:
        return Line(number, name, None, str(error), end)
    return Line(number, name, source, "", end, _told(entry, source.streaming))


def entry_id(index: int, entry: Mapping[str, Any]) -> str:
    """Return the id of an entry: the hash of its index, start time, method and URL."""
    request = entry.get("request")
    request = request if isinstance(request, Mapping) else {}
    said = (str(index), entry.get("startedDateTime"), request.get("method"), request.get("url"))
    parts = [str(part if part is not None else "").encode("utf-8", "replace") for part in said]
    hashed = sha256(b"".join(len(part).to_bytes(8) + part for part in parts))
    return f"har/{hashed.hexdigest()[:32]}"


def _as_line(name: str, request: Mapping[str, Any], response: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry in the form of a line."""
    host, path = _address(request.get("url"))
    content = response.get("content")
    content = content if isinstance(content, Mapping) else {}
    asked = _request_body(request)
    return {
        "id": name,
        "method": request.get("method"),
        "host": host,
        "path": path,
        "status": response.get("status"),
        "streaming": _streams(content, asked),
        "request_headers": _type_of(request.get("headers")),
        "response_headers": {"content-type": content.get("mimeType")},
        "request_body": asked,
        "response_body": _body(content),
    }


def _address(url: Any) -> tuple[str, str]:
    """Return host and path; nothing of a URL that may be secret."""
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        kept = [(key, value) for key, value in parse_qsl(parts.query) if key in _QUERY]
    except ValueError:
        return "", ""
    query = f"?{urlencode(kept)}" if kept else ""
    return parts.netloc.rpartition("@")[2], parts.path + query


def _type_of(headers: Any) -> dict[str, str]:
    for header in headers if isinstance(headers, list) else ():
        if isinstance(header, Mapping) and str(header.get("name")).lower() == "content-type":
            return {"content-type": str(header.get("value"))}
    return {}


def _request_body(request: Mapping[str, Any]) -> dict[str, Any] | None:
    data = request.get("postData")
    return _body(data) if isinstance(data, Mapping) else None


def _body(held: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a body; None where the browser kept none."""
    text = held.get("text")
    if text is None:
        return None
    return {"b64": text} if held.get("encoding") == "base64" else {"text": text}


def _streams(content: Mapping[str, Any], asked: Mapping[str, Any] | None) -> bool:
    kind = str(content.get("mimeType")).lower()
    if "event-stream" in kind or "eventstream" in kind:
        return True
    try:
        body = loads(asked["text"]) if asked and "text" in asked else {}
    except (NotJson, TypeError):
        return False
    return isinstance(body, dict) and body.get("stream") is True


def _told(entry: Mapping[str, Any], streaming: bool) -> Told:
    """Return the times of an entry: when it began, how long it took, when its first byte came."""
    began_us = _time_of(entry.get("startedDateTime"))
    total_us = _micros(entry.get("time"))
    if began_us is None:
        return NOTHING_TOLD
    timings = entry.get("timings")
    timings = timings if isinstance(timings, Mapping) else {}
    waited = [_micros(timings.get(name)) for name in ("send", "wait")]
    first_us = sum(n for n in waited if n is not None) if waited[1] is not None else None
    return Told(
        began_us=began_us,
        ended_us=began_us + (total_us or 0),
        ttft_us=first_us if streaming else None,
        total_us=total_us,
    )


def _micros(value: Any) -> int | None:
    """Return milliseconds as microseconds; -1 is HAR's word for not known."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return round(value * 1000) if 0 <= value <= _DAY_MS else None


def _time_of(value: Any) -> int | None:
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    if at is None or at.tzinfo is None or at.year < 1971:
        return None
    return int(at.astimezone(UTC).timestamp() * 1_000_000)
