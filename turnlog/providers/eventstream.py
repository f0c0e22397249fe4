"""The binary framing of Amazon's event streams, as far as telling whole messages apart.

A message is total length (4), headers length (4), CRC-32 of those eight bytes (4), headers,
payload, CRC-32 of all before it (4); big endian.

Not botocore's decoder, with which a test compares this one: it is 31 MB that the gateway has only
as an extra, takes 0.2 s to import, and raises where a recording is damaged, whose whole messages
are still wanted.
"""

import base64
import binascii
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

from turnlog.providers.json_text import NotJson, loads

_PRELUDE, _TAIL = 12, 4
_STRING = 7
_FIXED = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}


class Message(NamedTuple):
    """One message: the name of its event, or of the exception that it is, and its payload."""

    event: str
    exception: str
    payload: bytes


class Decoder:
    """Turns bytes, cut anywhere, into messages; stops for good where they are damaged.

    A payload that wraps bytes in base64 (`{"bytes": …}`) is unwrapped.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._damaged = False

    def feed(self, chunk: bytes) -> Iterator[Message]:
        """Take the next bytes and yield the messages that they complete."""
        self._rest += chunk
        while not self._damaged and len(self._rest) >= _PRELUDE + _TAIL:
            total = int.from_bytes(self._rest[:4])
            if _PRELUDE + _TAIL <= total > len(self._rest):
                return
            message = bytes(self._rest[:total])
            self._damaged = total < _PRELUDE + _TAIL or not _intact(message)
            if not self._damaged:
                del self._rest[:total]
                yield _message(message)


def messages(body: bytes) -> Iterator[Message]:
    """Yield the whole messages of a body, and stop where it is cut or damaged."""
    return Decoder().feed(body)


def _intact(message: bytes) -> bool:
    return crc32(message[:8]) == int.from_bytes(message[8:_PRELUDE]) and crc32(
        message[:-_TAIL]
    ) == int.from_bytes(message[-_TAIL:])


def _message(message: bytes) -> Message:
    split = _PRELUDE + int.from_bytes(message[4:8])
    headers = dict(_headers(message[_PRELUDE:split]))
    failed = headers.get(":message-type") in ("exception", "error")
    exception = headers.get(":exception-type") or headers.get(":error-code") or "error"
    payload = _unwrapped(message[split:-_TAIL])
    return Message(headers.get(":event-type", ""), exception if failed else "", payload)


def _headers(raw: bytes) -> Iterator[tuple[str, str]]:
    at = 0
    while at + 1 < len(raw):
        name = raw[at + 1 : at + 1 + raw[at]].decode("utf-8", "replace")
        at += 1 + raw[at]
        kind = raw[at] if at < len(raw) else -1
        at += 1
        if kind in _FIXED:
            at += _FIXED[kind]
        elif kind in (6, _STRING):
            size = int.from_bytes(raw[at : at + 2])
            if kind == _STRING:
                yield name, raw[at + 2 : at + 2 + size].decode("utf-8", "replace")
            at += 2 + size
        else:
            return


def _unwrapped(payload: bytes) -> bytes:
    if b'"bytes"' not in payload:
        return payload
    try:
        value = loads(payload)
        return base64.b64decode(value["bytes"], validate=True)
    except (NotJson, KeyError, TypeError, binascii.Error, ValueError):
        return payload
