"""Content encodings of ClickHouse's HTTP interface, both ways."""

import gzip
import zlib

import cramjam

ENCODINGS = ("lz4", "zstd", "gzip", "deflate")
# Small answers are not worth it on loopback.
_SMALLEST = 4096


class UnknownEncoding(ValueError):
    """A content encoding that is not spoken here."""


class BrokenBody(ValueError):
    """A body that is not what its content encoding says."""


def decompress(body: bytes, encoding: str) -> bytes:
    """Return the body without its content encoding.

    A body may be several frames, one after the other: the client compresses block by block.

    Raises:
        UnknownEncoding: the encoding is not one of ours.
        BrokenBody: the bytes are not of that encoding.
    """
    if encoding in ("", "identity"):
        return body
    if encoding not in ENCODINGS:
        raise UnknownEncoding(encoding)
    try:
        return _decompress(body, encoding)
    except (cramjam.DecompressionError, zlib.error, OSError, EOFError) as e:
        raise BrokenBody(f"the body is not {encoding}: {e}") from e


def _decompress(body: bytes, encoding: str) -> bytes:
    if encoding == "gzip":
        return gzip.decompress(body)
    if encoding == "deflate":
        return zlib.decompress(body)
    if encoding == "lz4":
        return bytes(cramjam.lz4.decompress(body))
    return bytes(cramjam.zstd.decompress(body))


def accepted(header: str) -> str:
    """Return the first encoding of an Accept-Encoding header that is spoken here, else ""."""
    for part in header.split(","):
        name = part.split(";")[0].strip().lower()
        if name in ENCODINGS:
            return name
    return ""


def compress(body: bytes, encoding: str) -> tuple[bytes, str]:
    """Return the body under an encoding, and that encoding; small bodies stay as they are."""
    if not encoding or len(body) < _SMALLEST:
        return body, ""
    if encoding == "gzip":
        return gzip.compress(body, 1), encoding
    if encoding == "deflate":
        return zlib.compress(body, 1), encoding
    if encoding == "lz4":
        return bytes(cramjam.lz4.compress(body, level=1)), encoding
    return bytes(cramjam.zstd.compress(body, level=1)), encoding
