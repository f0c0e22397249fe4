"""A second reader, written from docs/pack-format.md alone: the page is enough, and it is true."""

import hashlib
import io
import struct
from typing import Any

import msgpack
import zstandard
from hypothesis import given, settings

from sinks.packs.writer import write_pack
from tests.sinks.packs.events import Logged, logs, packed


def part(data: bytes, where: dict[str, Any]) -> bytes:
    found = data[where["offset"] : where["offset"] + where["bytes"]]
    assert hashlib.sha256(found).digest() == where["digest"]
    return found


def footer(data: bytes) -> dict[str, Any]:
    assert data[:16] == b"TURNPACK\x01" + bytes(7)
    trailer = data[-64:]
    assert trailer[48:] == bytes(7) + b"\x01TURNPACK"
    offset, size = struct.unpack(">QQ", trailer[:16])
    assert offset + size + 64 == len(data)
    stored = data[offset : offset + size]
    assert hashlib.sha256(stored).digest() == trailer[16:48]
    decoded: dict[str, Any] = msgpack.unpackb(zstandard.decompress(stored))
    return decoded


def index(found: dict[str, Any]) -> dict[str, list[Any]]:
    coded = found["dictionaries"]
    return {
        name: [coded[name][n] for n in column] if name in coded else column
        for name, column in found["index"].items()
    }


def length(value: int) -> bytes:
    """Return a length as Avro's zig-zag variable-length integer."""
    value, out = value << 1, b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def skip(value: bytes, at: int) -> int:
    """Return where the string that begins at an offset ends."""
    size = shift = 0
    while True:
        size |= (value[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if value[at - 1] < 128:
            return at + (size >> 1)


def joined(body: bytes, frame: bytes) -> bytes:
    at = 10
    for _ in ("org", "conversation", "run"):
        at = skip(body, at)
    at += 16
    assert body[at] == 0
    return body[:at] + length(len(frame)) + frame + body[at + 1 :]


def read(data: bytes) -> list[Logged]:
    found = footer(data)
    part(data, found["frames"])
    columns = index(found)
    blocks = [msgpack.unpackb(zstandard.decompress(part(data, b))) for b in found["blocks"]]
    assert [len(block["key"]) for block in blocks] == [b["records"] for b in found["blocks"]]
    stored = {name: [v for block in blocks for v in block[name]] for name in blocks[0]}
    frames = zip(columns["frame_offset"], columns["frame_bytes"], strict=True)
    values = [
        joined(body, data[offset : offset + size]) if size else body
        for body, (offset, size) in zip(stored["body"], frames, strict=True)
    ]
    places = [stored[name] for name in ("topic", "partition", "offset", "append_us", "key")]
    for name in ("topic", "partition", "offset", "append_us"):
        assert columns[name] == stored[name]
    return [Logged(*fields) for fields in zip(*places, values, strict=True)]


@settings(max_examples=30, deadline=None)
@given(logs())
def test_the_page_describes_what_is_written(records: list[Logged]) -> None:
    out = io.BytesIO()
    write_pack(map(packed, records), out)
    found = read(out.getvalue())
    assert sorted(found) == sorted(records)
    orgs = index(footer(out.getvalue()))["org"]
    assert orgs == sorted(orgs)
    for entry in footer(out.getvalue())["orgs"]:
        assert orgs[entry["first"]] == entry["org"]
        assert orgs.count(entry["org"]) == entry["records"]
