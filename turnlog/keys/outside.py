"""A frame that is too large for a record: it stands in an object, and its pointer in its place.

Pointer: `01 ff | dek_id 16 | SHA-256 of the frame 32 | u64be(length of the frame) | object key`. It
stands in the event's `frame` field, so packs, locator and views carry it as they carry a frame.
What is not read through here takes it for a frame of an unknown suite and refuses it.
"""

import hashlib
import struct
from typing import NamedTuple

from turnlog.errors import FrameError

_MAGIC = b"\1\xff"
_HEAD = struct.Struct(">2s16s32sQ")


class Pointer(NamedTuple):
    """Where a frame stands.

    Attributes:
        dek_id: of the frame's key.
        digest: SHA-256 of the frame.
        length: its bytes.
        key: key of the object in the content bucket, `org/{org}/frames/{day}/{event}-{digest}`.
    """

    dek_id: bytes
    digest: bytes
    length: int
    key: str

    def packed(self) -> bytes:
        """Return what stands in the event."""
        return _HEAD.pack(_MAGIC, self.dek_id, self.digest, self.length) + self.key.encode()

    def checked(self, frame: bytes) -> bytes:
        """Return the frame if it is the one.

        Raises:
            FrameError: it is another.
        """
        if len(frame) != self.length or hashlib.sha256(frame).digest() != self.digest:
            raise FrameError("the object holds another frame than the event names")
        return frame


def folder_of(org: str) -> str:
    """Return where the frames of an org stand."""
    return f"org/{org}/frames/"


def point_to(frame: bytes, org: str, event_id: bytes, day: str) -> Pointer:
    """Return the pointer to a frame.

    The digest is part of the key: the same event sealed a second time is another object.

    Args:
        frame: the frame.
        org: whose event it is.
        event_id: of the event, 16 bytes.
        day: UTC day, `yyyy-mm-dd`.
    """
    digest = hashlib.sha256(frame).digest()
    key = f"{folder_of(org)}{day}/{event_id.hex()}-{digest[:8].hex()}"
    return Pointer(frame[2:18], digest, len(frame), key)


def pointer_in(frame: bytes, org: str) -> Pointer | None:
    """Return the pointer that stands in the place of a frame; None: it is no pointer.

    Raises:
        FrameError: it is cut off, or names no frame of this org.
    """
    if frame[:2] != _MAGIC:
        return None
    try:
        _, dek_id, digest, length = _HEAD.unpack_from(frame)
        key = frame[_HEAD.size :].decode("ascii")
    except (struct.error, UnicodeDecodeError) as error:
        raise FrameError("the pointer to a frame is damaged") from error
    if not key.startswith(folder_of(org)):
        raise FrameError("the pointer names no frame of this org")
    return Pointer(dek_id, digest, length, key)
