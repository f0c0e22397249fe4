"""The body of a response, kept as the application sees it: its content-encoding undone."""

import importlib
import zlib
from typing import Any, Protocol

import zstandard

from turnlog.keys.content import MAX_CONTENT_BYTES

# What a frame holds at most, less what stands beside the response in it.
MAX_BODY_BYTES = MAX_CONTENT_BYTES - (8 << 20)
_GZIP = zlib.MAX_WBITS | 16


class _Decoder(Protocol):
    def decompress(self, data: bytes, /) -> bytes:
        """Return what the next bytes hold."""


class Body:
    """The bytes of one response, up to 56 MiB.

    Attributes:
        whole: false where bytes were left out, over the bound or after damage.
    """

    def __init__(self, encoding: str = "") -> None:
        """Begin.

        Args:
            encoding: the header content-encoding; an unknown one leaves the bytes as they are.
        """
        self.whole = True
        self._parts: list[bytes] = []
        self._bytes = 0
        names = [name.strip().lower() for name in encoding.split(",")]
        self._decoders = [_decoder(name) for name in reversed(names) if name not in _NONE]
        self.readable = None not in self._decoders

    def __len__(self) -> int:
        return self._bytes

    def take(self, data: bytes) -> bytes:
        """Keep the next bytes of the wire; return those of the body that they gave."""
        if not self.whole:
            return b""
        plain = self._plain(data) if self.readable else data
        room = MAX_BODY_BYTES - self._bytes
        if len(plain) > room:
            self.whole, plain = False, plain[:room]
        self._parts.append(plain)
        self._bytes += len(plain)
        return plain if self.readable else b""

    def _plain(self, data: bytes) -> bytes:
        for decoder in self._decoders:
            if decoder is None:
                break
            try:
                data = decoder.decompress(data)
            except (zlib.error, zstandard.ZstdError, ValueError):
                self.whole = False
                return b""
        return data

    def content(self) -> bytes:
        """Return what was kept."""
        self._parts = [b"".join(self._parts)]
        return self._parts[0]


_NONE = frozenset(("", "identity"))


def _decoder(name: str) -> _Decoder | None:
    if name in ("gzip", "x-gzip"):
        return _Inflate(_GZIP)
    if name == "deflate":
        return _Deflate()
    if name == "zstd":
        return zstandard.ZstdDecompressor().decompressobj(read_across_frames=True)
    return _brotli() if name == "br" else None


class _Inflate:
    """zlib's decoder, which never gives more at a time than is kept at all."""

    def __init__(self, window_bits: int) -> None:
        self._decoder = zlib.decompressobj(window_bits)

    def decompress(self, data: bytes) -> bytes:
        return self._decoder.decompress(data, MAX_BODY_BYTES + 1)


class _Deflate:
    """`deflate` is zlib by RFC 9110, and raw deflate as some servers read it."""

    def __init__(self) -> None:
        self._inflate = _Inflate(zlib.MAX_WBITS)
        self._begun = False

    def decompress(self, data: bytes) -> bytes:
        try:
            plain = self._inflate.decompress(data)
        except zlib.error:
            if self._begun:
                raise
            self._inflate = _Inflate(-zlib.MAX_WBITS)
            plain = self._inflate.decompress(data)
        self._begun = self._begun or bool(data)
        return plain


class _Brotli:
    """Google's module calls it `process`, brotlicffi `decompress`; both raise their own error."""

    def __init__(self, module: Any) -> None:
        decoder = module.Decompressor()
        self._decode = getattr(decoder, "decompress", None) or decoder.process
        self._error = module.error

    def decompress(self, data: bytes) -> bytes:
        try:
            plain: bytes = self._decode(data)
        except self._error:
            raise ValueError("no brotli") from None
        return plain


def _brotli() -> _Decoder | None:
    """Return a decoder where the client could have asked for brotli: it is installed."""
    for name in ("brotli", "brotlicffi"):
        try:
            return _Brotli(importlib.import_module(name))
        except ModuleNotFoundError:
            continue
    return None
