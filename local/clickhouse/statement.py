"""Just enough of ClickHouse's grammar to route a statement.

Where an INSERT's data begin, which format is asked for, what a KILL QUERY selects. Everything
else is the engine's business.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

# One token; strings and quoted names whole, so that nothing inside them counts.
_TOKEN = re.compile(
    rb"""(?P<skip>\s+|--[^\n]*|/\*.*?\*/)
    |(?P<quoted>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`\\]|\\.|``)*`)
    |(?P<word>[A-Za-z_][A-Za-z_0-9]*)
    |(?P<open>[(\[{])|(?P<close>[)\]}])
    |(?P<other>.)""",
    re.DOTALL | re.VERBOSE,
)
_DATA_GAP = re.compile(rb"[ \t\f]*\r?\n?")
_KILL = re.compile(
    r"\s*KILL\s+QUERY\s+WHERE\s+(?P<where>.+?)(?:\s+(?P<mode>SYNC|ASYNC|TEST))?"
    r"(?:\s+FORMAT\s+(?P<format>\w+))?\s*;?\s*",
    re.DOTALL | re.IGNORECASE,
)
# An INSERT whose rows do not follow a FORMAT goes to the engine as it is.
_NO_DATA = {b"SELECT", b"WITH", b"VALUES", b"INFILE", b"WATCH"}


class Word(NamedTuple):
    """A bare word outside all brackets: its upper-case text and where it lies."""

    text: bytes
    start: int
    end: int


class Insert(NamedTuple):
    """An INSERT with data: the statement around a source, its format, where the data begin."""

    before_source: bytes  # INSERT INTO t (a, b)
    after_source: bytes  # SETTINGS x = 1 FORMAT Avro
    format: str
    data_start: int


class Kill(NamedTuple):
    """A KILL QUERY: its condition and how it waits."""

    where: str
    mode: str
    format: str


def _words(text: bytes) -> Iterator[Word]:
    depth = 0
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        if kind == "open":
            depth += 1
        elif kind == "close":
            depth -= 1
        elif depth == 0 and (kind == "word" or match.group() == b";"):
            yield Word(match.group().upper(), match.start(), match.end())


def insert_with_data(text: bytes) -> Insert | None:
    """Split an INSERT whose data follow its FORMAT; None for every other statement."""
    source = None
    words = _words(text)
    if next(words, Word(b"", 0, 0)).text != b"INSERT":
        return None
    for word in words:
        if word.text in _NO_DATA:
            return None
        if word.text == b"SETTINGS" and source is None:
            source = word.start
        if word.text == b"FORMAT":
            return _split(text, word.start if source is None else source, next(words, None))
    return None


def _split(text: bytes, source: int, name: Word | None) -> Insert | None:
    if name is None:
        return None
    gap = _DATA_GAP.match(text, name.end)
    start = gap.end() if gap else name.end
    form = text[name.start : name.end].decode()
    return Insert(text[:source], text[source : name.end], form, start)


def output_format(text: bytes, default: str) -> str:
    """Return the format that a statement's own FORMAT clause asks for, else `default`."""
    found = default
    words = _words(text)
    for word in words:
        name = next(words, None) if word.text == b"FORMAT" else None
        if name is not None:
            found = text[name.start : name.end].decode()
    return found


def several(text: bytes) -> bool:
    """Tell whether anything follows a semicolon: over HTTP a request is one statement."""
    ended = False
    for word in _words(text):
        if word.text == b";":
            ended = True
        elif ended or word.text == b"VALUES":
            return ended
    return False


def kill(text: str) -> Kill | None:
    """Read a KILL QUERY; None for every other statement."""
    match = _KILL.fullmatch(text)
    if match is None:
        return None
    mode = (match["mode"] or "ASYNC").upper()
    return Kill(match["where"], mode, match["format"] or "TabSeparated")


def quote(value: str) -> str:
    """Return a string literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def quote_name(name: str) -> str:
    """Return a quoted identifier."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"
