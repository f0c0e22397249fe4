"""Content before it is encrypted: a msgpack map with sorted keys, compressed by zstd."""

import threading
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NoReturn

import msgpack
import zstandard

from turnlog.errors import FrameError, TooLarge, UsageError

# A frame that inflates over this is refused, whatever its header says of its size.
MAX_CONTENT_BYTES = 64 << 20
# On the recorded bodies level 3 saves 1 % of the bytes that 1 leaves and takes 25 to 60 % longer.
_LEVEL = 1
# Chunk batches live for two days, and there are many: half the time for a third more bytes.
_FAST_LEVEL = -1
# A packer never shrinks its buffer; past this it is replaced.
_KEPT_BUFFER_BYTES = 1 << 20
_LISTS = frozenset((list, tuple))
_SCALARS = frozenset((str, bytes, int, float, bool, type(None)))


def _packer() -> msgpack.Packer:
    return msgpack.Packer(use_bin_type=True, unicode_errors="surrogatepass")


class _Codecs(threading.local):
    """Neither is thread-safe; a compressor costs 9 µs to make and a packer 1, so both are kept."""

    def __init__(self) -> None:
        self.packer = _packer()
        self.compress = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True).compress
        self.compress_fast = zstandard.ZstdCompressor(
            level=_FAST_LEVEL, write_content_size=True
        ).compress
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_CONTENT_BYTES)


_codecs = _Codecs()


def pack(content: Mapping[str, Any]) -> bytes:
    """Return the msgpack bytes of a map: keys sorted bytewise at every depth, shortest encodings.

    The same content gives the same bytes. A lone surrogate, which JSON of a provider may bring,
    is kept as it is.

    Raises:
        UsageError: a value that msgpack does not know, a key that is no text, an integer of more
            than 64 bits, or maps and lists in each other over 500 deep.
    """
    try:
        return pack_ordered(_sorted(content))
    except (TypeError, RecursionError):
        raise _unfit() from None


def pack_ordered(content: Mapping[str, Any]) -> bytes:
    """Do as `pack` for a map whose keys are in order already, at every depth."""
    try:
        packed: bytes = _codecs.packer.pack(content)
    except (OverflowError, TypeError, ValueError):
        raise _unfit() from None  # its text may quote the value
    if len(packed) > _KEPT_BUFFER_BYTES:
        _codecs.packer = _packer()
    return packed


def _unfit() -> UsageError:
    return UsageError("the content holds what msgpack cannot")


def _sorted(value: Any) -> Any:
    """Sort the keys of all maps in a value; strings sort by code point as their UTF-8 does."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is dict or isinstance(value, Mapping):
        keys = sorted(value)
        if keys and type(keys[0]) is not str:  # the others are of its kind, or do not sort
            raise _unfit()
        return {key: _sorted(value[key]) for key in keys}
    if isinstance(value, list | tuple) and _may_hold_maps(value):
        return [_sorted(item) for item in value]
    return value


def _may_hold_maps(items: Sequence[Any]) -> bool:
    # Chunks are lists of lists of scalars: looked through two deep without a Python loop, which
    # takes 1.5 µs for ten chunks where a visit to each list took 8.
    kinds = set(map(type, items))
    if kinds <= _LISTS:
        kinds = set(map(type, chain.from_iterable(items)))
    return not kinds <= _SCALARS


def unpack(plaintext: bytes) -> dict[str, Any]:
    """Return the map that `pack` packed.

    Raises:
        FrameError: not a msgpack map with string keys, or one with extension types.
    """
    try:
        content = msgpack.unpackb(
            plaintext,
            raw=False,
            strict_map_key=True,
            # A timestamp never reaches the hook, an empty extension passes the length.
            max_ext_len=0,
            ext_hook=_no_extension,
            unicode_errors="surrogatepass",
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise FrameError("the frame's content is not msgpack") from error
    if not isinstance(content, dict):
        raise FrameError("the frame's content is not a map")
    return content


def _no_extension(code: int, data: bytes) -> NoReturn:
    raise FrameError("the frame's content holds a msgpack extension type")


def compress(plaintext: bytes, fast: bool = False) -> bytes:
    """Return one zstd frame that states its content's size.

    Args:
        plaintext: what to compress.
        fast: the content does not live long.

    Raises:
        TooLarge: more than a reader would open.
    """
    if len(plaintext) > MAX_CONTENT_BYTES:
        raise TooLarge(f"content of {len(plaintext)} bytes, over {MAX_CONTENT_BYTES}")
    return _codecs.compress_fast(plaintext) if fast else _codecs.compress(plaintext)


def decompress(compressed: bytes) -> bytes:
    """Return the content of one zstd frame.

    Raises:
        FrameError: not exactly one zstd frame that states its size, or one over 64 MiB.
    """
    try:
        if zstandard.get_frame_parameters(compressed).content_size > MAX_CONTENT_BYTES:
            raise FrameError(f"the frame inflates over {MAX_CONTENT_BYTES} bytes")
        return _codecs.decompressor.decompress(compressed, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FrameError("the frame's content is not zstd") from error
