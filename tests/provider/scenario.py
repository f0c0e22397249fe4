"""How one answer of the local provider goes: its pace, and where it breaks."""

from dataclasses import dataclass, fields
from typing import Any, Self

HEADER = "x-provider"
_MARK = "/~"


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is asked of an answer; -1 is never. Bytes are of the body as it goes over the wire.

    Attributes:
        exchange: id of the recording to answer with; empty: the one that fits the request.
        delay_ms: before the first byte of the answer, its status line included.
        pace_ms: before each piece but the first.
        piece: bytes of a piece; 0: the framing's own (an event, a line, a message).
        cut: bytes after which the connection is reset.
        close: bytes after which the connection is closed, without the end that HTTP wants.
        stall: bytes after which nothing more comes until the client leaves.
        error_after: pieces after which an error of the form's own ends it, under status 200.
        status: an error status, such as 429, 500 or 529, instead of an answer.
        retry_after: seconds that such an answer names.
        times: only so many requests get the status, those after them the answer; 0: all get it.
        encoding: gzip, deflate or zstd: content encoding of the body, flushed piece by piece.
        grow: the body is made at least so long by repeating its middle piece.
    """

    exchange: str = ""
    delay_ms: int = 0
    pace_ms: int = 0
    piece: int = 0
    cut: int = -1
    close: int = -1
    stall: int = -1
    error_after: int = -1
    status: int = 0
    retry_after: int = 0
    times: int = 0
    encoding: str = ""
    grow: int = 0

    @classmethod
    def read(cls, text: str) -> Self:
        """Read `name=value,name=value`.

        Raises:
            ValueError: a name that is none, or a value that is no integer where one is wanted.
        """
        given = dict(part.split("=", 1) for part in text.split(",") if part)
        known = {field.name: field.type for field in fields(cls)}
        if strange := set(given) - set(known):
            raise ValueError(f"no such field of a scenario: {', '.join(sorted(strange))}")
        typed: dict[str, Any] = {name: _typed(known[name], value) for name, value in given.items()}
        return cls(**typed)

    @property
    def ends(self) -> tuple[int, str]:
        """The byte at which the answer breaks, and how; (-1, "") where it does not."""
        for how in ("cut", "close", "stall"):
            if (at := getattr(self, how)) >= 0:
                return at, how
        return -1, ""


def _typed(kind: object, value: str) -> str | int:
    return int(value) if kind is int else value


def split(path: str) -> tuple[str, str]:
    """Return the scenario's text that a path begins with, and the path behind it."""
    if not path.startswith(_MARK):
        return "", path
    text, _, rest = path.removeprefix(_MARK).partition("/")
    return text, f"/{rest}"


def prefix(text: str) -> str:
    """Return what a base URL ends with to ask for a scenario."""
    return f"{_MARK}{text}" if text else ""
