import threading
from typing import Any

import msgpack
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from turnlog.errors import FrameError, TooLarge
from turnlog.keys.content import MAX_CONTENT_BYTES, compress, decompress, pack, unpack

names = st.text(max_size=6)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | names | st.binary(max_size=9)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=8,
)
contents = st.dictionaries(names, values, max_size=4)


def reversed_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(value)}
    return [reversed_keys(item) for item in value] if isinstance(value, list) else value


@given(contents)
def test_content_comes_back_as_it_was(content: dict[str, Any]) -> None:
    assert unpack(decompress(compress(pack(content)))) == content


@given(contents)
def test_the_order_of_keys_makes_no_difference(content: dict[str, Any]) -> None:
    assert pack(reversed_keys(content)) == pack(content)


@given(contents)
def test_keys_are_sorted_by_their_bytes_at_every_depth(content: dict[str, Any]) -> None:
    def check(value: Any) -> None:
        if isinstance(value, dict):
            keys = [key.encode() for key in value]
            assert keys == sorted(keys)
            for item in value.values():
                check(item)
        elif isinstance(value, list):
            for item in value:
                check(item)

    check(msgpack.unpackb(pack(content)))


def test_maps_in_lists_of_lists_are_sorted_too() -> None:
    assert pack({"a": [[{"y": 1, "x": 2}]]}) == pack({"a": [[{"x": 2, "y": 1}]]})
    assert pack({"a": [[1, [{"y": 1, "x": 2}]]]}) == pack({"a": [[1, [{"x": 2, "y": 1}]]]})


def test_encodings_are_the_shortest() -> None:
    assert pack({"a": 1}) == b"\x81\xa1a\x01"
    assert pack({"a": 200}) == b"\x81\xa1a\xcc\xc8"
    assert pack({"a": b"x", "b": "x"}) == b"\x82\xa1a\xc4\x01x\xa1b\xa1x"


def test_half_a_character_of_a_broken_stream_is_kept() -> None:
    content = {"text": "\ud83d"}
    assert unpack(pack(content)) == content


@pytest.mark.parametrize(
    "plaintext",
    [
        msgpack.packb([1]),
        msgpack.packb({1: 2}),
        msgpack.packb({"a": msgpack.ExtType(5, b"x")}),
        msgpack.packb({"a": msgpack.ExtType(5, b"")}),
        msgpack.packb({"a": msgpack.Timestamp(1, 0)}),
        msgpack.packb({"a": 1}) + b"\0",
        b"\x81\xa1a",
        b"\xc1",
        b"",
    ],
)
def test_what_is_not_a_map_with_string_keys_is_refused(plaintext: bytes) -> None:
    with pytest.raises(FrameError):
        unpack(plaintext)


def test_a_bomb_is_refused_by_what_it_says_of_itself() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(MAX_CONTENT_BYTES + 1))
    with pytest.raises(FrameError, match="inflates"):
        decompress(bomb)


def test_a_frame_that_hides_its_size_is_refused() -> None:
    hidden = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))
    with pytest.raises(FrameError):
        decompress(hidden)


def test_a_frame_that_lies_about_its_size_is_refused() -> None:
    honest = zstandard.ZstdCompressor().compress(bytes(300))
    assert honest[5:7] == (300 - 256).to_bytes(2, "little")
    lying = honest[:5] + (100).to_bytes(2, "little") + honest[7:]
    with pytest.raises(FrameError):
        decompress(lying)


@pytest.mark.parametrize("data", [b"", b"x", b"not zstd at all", compress(b"abc") + b"more"])
def test_what_is_not_one_zstd_frame_is_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        decompress(data)


def test_more_than_a_reader_would_open_is_not_sealed() -> None:
    with pytest.raises(TooLarge):
        compress(bytes(MAX_CONTENT_BYTES + 1))


def test_threads_do_not_share_a_compressor() -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        for n in range(300):
            content = {"text": f"{seed}/{n} " * 200}
            if unpack(decompress(compress(pack(content)))) != content:
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_large_content_does_not_keep_its_buffer() -> None:
    assert unpack(pack({"a": bytes(3 << 20)})) == {"a": bytes(3 << 20)}
    assert pack({"a": 1}) == b"\x81\xa1a\x01"
