"""Reading a file of exchanges, one JSON object a line, whatever it holds instead."""

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from serve.importer.events import NOTHING_TOLD, Told
from turnlog.errors import UsageError
from turnlog.providers import BadLine, Source, read_source
from turnlog.providers.json_text import NotJson, loads

# A frame holds 786,432 bytes of ciphertext; text that compresses to so little is never longer.
MAX_LINE_BYTES = 64 << 20
BOM = b"\xef\xbb\xbf"

# A file of something else has thousands of lines; one of exchanges does not begin with 20 bad ones.
LOOKED_AT = 20
NO_LINES = f"the file is no JSON lines: none of its first {LOOKED_AT} lines is a JSON object"
_NOT_JSON = "not JSON"
_NO_OBJECT = "not a JSON object"


class Line(NamedTuple):
    """One line that is not blank.

    Attributes:
        number: counted from 1.
        id: the line's own id, or `line:N` where it has none.
        source: the exchange; None where the line is none.
        reason: why it is none.
        end: offset of the byte after it.
        told: what the source says beyond the exchange.
    """

    number: int
    id: str
    source: Source | None
    reason: str
    end: int
    told: Told = NOTHING_TOLD


def check_file(path: Path) -> int:
    """Return the size of a file that can be read.

    Raises:
        UsageError: there is none, it is a directory or no file of bytes, or it cannot be read.
    """
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a directory, not a file of exchanges")
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} is no regular file: it is read twice")
        with path.open("rb") as file:
            return file.seek(0, 2)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or 'cannot be read'}") from None


def read_lines(path: Path) -> Iterator[Line]:
    """Yield every line that is not blank, in a file of any size.

    Raises:
        UsageError: the file cannot be read.
    """
    number = 0
    try:
        with path.open("rb") as file:
            while raw := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                long = _skip_rest(file, raw)
                raw = raw.removeprefix(BOM) if number == 1 else raw
                if raw.strip():
                    yield _line(number, raw, long, file.tell())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or 'cannot be read'}") from None


def may_be_lines(path: Path) -> bool:
    """Tell whether a file of 20 lines or more begins with one that is a JSON object.

    Raises:
        UsageError: the file cannot be read.
    """
    first = list(islice(read_lines(path), LOOKED_AT))
    bad = sum(line.reason in (_NOT_JSON, _NO_OBJECT) for line in first)
    return bad < LOOKED_AT


def _skip_rest(file: BinaryIO, raw: bytes) -> bool:
    """Pass over the rest of a line that is too long; return whether it was."""
    if len(raw) <= MAX_LINE_BYTES or raw.endswith(b"\n"):
        return False
    while (more := file.readline(1 << 20)) and not more.endswith(b"\n"):
        pass
    return True


def _line(number: int, raw: bytes, long: bool, end: int) -> Line:
    unnamed = f"line:{number}"
    if long:
        return Line(number, unnamed, None, "too_large", end)
    try:
        value = loads(raw)
    except NotJson:
        return Line(number, unnamed, None, _NOT_JSON, end)
    if not isinstance(value, dict):
        return Line(number, unnamed, None, _NO_OBJECT, end)
    try:
        source = read_source(value)
    except BadLine as error:
        return Line(number, _id_of(value) or unnamed, None, str(error), end)
    return Line(number, source.id, source, "", end)


def _id_of(value: Mapping[str, Any]) -> str:
    given = value.get("id")
    return given if isinstance(given, str) else ""
