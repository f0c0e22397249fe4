"""The recorded exchanges that the local provider answers with."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import orjson

from tests.provider.kinds import kind_of
from tests.provider.made import made
from turnlog.providers import Source, read_source

CHECKOUT_SAMPLES = Path(__file__).parents[2] / "samples" / "exchanges.jsonl"
SHARED = Path(__file__).parents[3] / "shared" / "data"
"""Recordings beside the checkout; tests that want them skip, with a reason, where it is absent."""

_USUAL = {
    ("chat", True): "smp-chat-stream",
    ("chat", False): "smp-chat-plain",
    ("responses", True): "smp-responses-stream",
    ("responses", False): "smp-responses-done",
    ("messages", True): "smp-anthropic-tool-call",
    ("messages", False): "smp-anthropic-tool-answer",
    ("gemini-stream", True): "smp-gemini-stream",
    ("gemini", False): "smp-vertex-plain",
}
_WITHOUT_USAGE = "made-chat-no-usage"


class Recordings:
    """Recorded answers, found by id or by what a request looks like.

    Args:
        sources: exchanges; an id that comes again replaces the earlier one.
    """

    def __init__(self, sources: Iterable[Source]) -> None:
        self.by_id: dict[str, Source] = {}
        self._usual: dict[tuple[str, bool], str] = dict(_USUAL)
        for kind, stream, source in made():
            self._usual[kind, stream] = source.id
            self.by_id[source.id] = source
        self.by_id |= {source.id: source for source in sources}
        if (chat := self.by_id.get("smp-chat-stream")) is not None:
            self.by_id[_WITHOUT_USAGE] = _without_usage(chat)
        self._by_request = {(s.path, s.request): s for s in self.by_id.values() if s.request}

    @classmethod
    def read(cls, *paths: Path) -> "Recordings":
        """Read files of exchanges, one a line; those of the project's own samples are always there.

        Raises:
            OSError: a file cannot be read.
            BadLine: a line is no exchange.
        """
        return cls(source for path in (CHECKOUT_SAMPLES, *paths) for source in exchanges(path))

    def find(self, path: str, request: bytes) -> Source | None:
        """Return the exchange whose request this is, else the usual one of its API, else None."""
        if (exact := self._by_request.get((path, request))) is not None:
            return exact
        kind = kind_of(path)
        stream = kind.endswith("-stream") or b'"stream":true' in request.replace(b": ", b":")
        if kind == "ollama" and b'"stream"' not in request:
            stream = True
        if (kind, stream) == ("chat", True) and b"include_usage" not in request:
            return self.by_id.get(_WITHOUT_USAGE)
        return self.by_id.get(self._usual.get((kind, stream), ""))


def exchanges(path: Path) -> Iterator[Source]:
    """Yield the exchanges of a file."""
    with path.open("rb") as lines:
        for line in lines:
            yield read_source(orjson.loads(line))


def _without_usage(chat: Source) -> Source:
    """Return a chat stream as it is where no usage was asked for: the last chunk is not there."""
    events = chat.response.split(b"\n\n")
    kept = b"\n\n".join(event for event in events if b'"choices":[]' not in event)
    return replace(chat, id=_WITHOUT_USAGE, request=b"", response=kept, response_bytes=len(kept))
