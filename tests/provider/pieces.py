"""The pieces that a recorded body was sent in, as far as its framing tells, and its encodings."""

import re
import zlib
from collections.abc import Callable, Iterator

import zstandard

_BLANK_LINE = re.compile(rb"(?<=\n)\r?\n|\r\r")

Encode = Callable[[bytes, bool], bytes]


def pieces(body: bytes, framing: str, size: int = 0) -> list[bytes]:
    """Cut a body; the pieces joined are the body.

    Args:
        body: as recorded.
        framing: sse, ndjson, aws-eventstream or json.
        size: bytes of a piece; 0: events, lines or messages.
    """
    if size:
        return [body[at : at + size] for at in range(0, len(body), size)]
    if framing == "sse":
        ends = [match.end() for match in _BLANK_LINE.finditer(body)]
    elif framing == "ndjson":
        ends = [match.end() for match in re.finditer(rb"\n", body)]
    elif framing == "aws-eventstream":
        ends = list(_message_ends(body))
    else:
        ends = []
    starts = [0, *ends]
    found = [body[start:end] for start, end in zip(starts, [*ends, len(body)], strict=True)]
    return [piece for piece in found if piece]


def _message_ends(body: bytes) -> Iterator[int]:
    at = 0
    while at + 4 <= len(body) and (size := int.from_bytes(body[at : at + 4])) >= 16:
        at = min(at + size, len(body))
        yield at


def grown(cut: list[bytes], size: int) -> list[bytes]:
    """Return pieces that are at least so many bytes together, the middle one repeated."""
    missing = size - sum(map(len, cut))
    if missing <= 0 or len(cut) < 3:
        return cut
    middle = len(cut) // 2
    more = [cut[middle]] * -(-missing // len(cut[middle]))
    return [*cut[:middle], *more, *cut[middle:]]


def encoder(encoding: str) -> Encode:
    """Return what encodes the pieces of one body; each comes out whole, so that none waits.

    Raises:
        ValueError: an encoding that is not known here.
    """
    if not encoding:
        return lambda piece, last: piece
    if encoding == "zstd":
        zstd = zstandard.ZstdCompressor().compressobj()
        frame, block = zstandard.COMPRESSOBJ_FLUSH_FINISH, zstandard.COMPRESSOBJ_FLUSH_BLOCK
        return lambda piece, last: zstd.compress(piece) + zstd.flush(frame if last else block)
    if encoding not in ("gzip", "deflate"):
        raise ValueError(f"no such encoding here: {encoding}")
    deflate = zlib.compressobj(wbits=31 if encoding == "gzip" else 15)
    end, sync = zlib.Z_FINISH, zlib.Z_SYNC_FLUSH
    return lambda piece, last: deflate.compress(piece) + deflate.flush(end if last else sync)
