"""Bodies within bounds: what inflates, what is refused, and what a bomb costs."""

import gzip
import resource
import zlib
from collections.abc import Callable, Iterator

import pytest
import zstandard

from serve.doors.body import _INFLATERS, MAX_MEMBERS, Inflater
from serve.doors.problem import Problem

LIMIT = 1 << 20


def zstd(data: bytes, **settings: int) -> bytes:
    if settings:
        made = zstandard.ZstdCompressionParameters(**settings)
        return zstandard.ZstdCompressor(compression_params=made).compress(data)
    return zstandard.ZstdCompressor().compress(data)


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "identity": lambda data: data,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstd,
}
COMPRESSED = ("gzip", "deflate", "zstd")
TEXT = b"".join(b"line %d of a body\n" % n for n in range(20_000))


def inflated(encoding: str, body: bytes, step: int = 1000) -> Iterator[bytes]:
    inflater: Inflater = _INFLATERS[encoding]()
    for at in range(0, len(body), step):
        yield from inflater.feed(body[at : at + step])
    inflater.end()


@pytest.mark.parametrize("encoding", ENCODERS)
@pytest.mark.parametrize("step", [1, 7, 1000, 1 << 20])
def test_a_body_comes_out_as_it_was(encoding: str, step: int) -> None:
    text = TEXT[:5000] if step == 1 else TEXT
    assert b"".join(inflated(encoding, ENCODERS[encoding](text), step)) == text


@pytest.mark.parametrize("encoding", COMPRESSED)
def test_members_one_after_another_are_one_body(encoding: str) -> None:
    encode = ENCODERS[encoding]
    body = encode(b"one ") + encode(b"two ") + encode(b"") + encode(b"three")
    assert b"".join(inflated(encoding, body, 5)) == b"one two three"


@pytest.mark.parametrize("encoding", COMPRESSED)
def test_a_body_has_a_bound_on_its_members(encoding: str) -> None:
    empty = ENCODERS[encoding](b"")
    assert b"".join(inflated(encoding, empty * MAX_MEMBERS, 1 << 16)) == b""
    with pytest.raises(Problem) as raised:
        list(inflated(encoding, empty * (MAX_MEMBERS + 1), 1 << 16))
    assert (raised.value.status, raised.value.code) == (400, "encoding")


@pytest.mark.parametrize("encoding", COMPRESSED)
@pytest.mark.parametrize("bad", ["cut", "empty", "plain", "flipped", "tail"])
def test_what_is_not_in_the_encoding_is_refused(encoding: str, bad: str) -> None:
    good = ENCODERS[encoding](TEXT)
    body = {
        "cut": good[:-3],
        "empty": b"",
        "plain": b'{"a": 1}' * 100,
        "flipped": good[:20] + bytes(byte ^ 0x5A for byte in good[20:60]) + good[60:],
        "tail": good + b"and more that is no member of it",
    }[bad]
    with pytest.raises(Problem) as refused:
        b"".join(inflated(encoding, body))
    assert refused.value.status == 400


@pytest.mark.parametrize("encoding", COMPRESSED)
def test_a_bomb_comes_out_in_small_pieces(encoding: str) -> None:
    bomb = ENCODERS[encoding](bytes(1 << 26))
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    total = 0
    for piece in inflated(encoding, bomb, 1 << 20):
        assert len(piece) <= 2 << 20
        total += len(piece)
        if total > 8 * LIMIT:
            break
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 64 << 10


def test_a_zstd_frame_that_asks_for_a_large_window_is_refused() -> None:
    body = zstd(bytes(1 << 26), window_log=26, enable_ldm=1)
    with pytest.raises(Problem):
        b"".join(inflated("zstd", body))
