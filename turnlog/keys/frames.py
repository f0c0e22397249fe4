"""Frames: the content of one event as one AES-256-GCM ciphertext that opens under one key.

`01 | suite 01 | dek_id 16 | nonce 12 | ciphertext | tag 16`. GCM does not commit to its key, so the
key's own commitment stands in front and is compared before anything is decrypted (Albertini et al.,
"How to abuse and fix authenticated encryption without key commitment", 2022).
"""

import hmac
import os
import struct
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, TypedDict, Unpack

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from turnlog.errors import FrameError, TooLarge
from turnlog.keys.content import compress, decompress, pack, pack_ordered, unpack
from turnlog.keys.expand import INNER, INNER_PAD, OUTER, OUTER_PAD, lp, lp_text, mac, pads

MAX_FRAME_BYTES = 786_432
OVERHEAD_BYTES = 2 + 16 + 12 + 16

_MAGIC = b"\1\1"
_NONCE_BYTES = 12
_AAD = _MAGIC + b"turnlog-frame-v1\0"
# Many, and gone after two days; their content is a single list of lists of scalars.
_CHUNKS = "chunk.batch"
# One block of HKDF-Expand is one HMAC: label 00 context, then the block counter 1.
_MAC = b"turnlog/mac/v1\0"
# `expand` to 64 bytes, its two blocks spelled out: 1.5 µs less of 4.
_FIRST = INNER_PAD + b"turnlog/frame/v1\0\1"
_SECOND = b"turnlog/frame/v1\0\2"
_two_u64 = struct.Struct(">QQ").pack


def frame_keys(dek: bytes) -> tuple[bytes, bytes]:
    """Return the encryption key of a DEK and the commitment to it, 32 bytes each."""
    inner, outer = dek.translate(INNER), dek.translate(OUTER) + OUTER_PAD
    key = sha256(outer + sha256(inner + _FIRST).digest()).digest()
    return key, sha256(outer + sha256(inner + INNER_PAD + key + _SECOND).digest()).digest()


class DataKey:
    """The key of one subject, ready to seal and open frames.

    Attributes:
        dek_id: 16 bytes that name the key in a frame.
        commit: 32 bytes, the commitment to the key; safe to publish.
    """

    __slots__ = ("_aead", "_dek", "commit", "dek_id")

    def __init__(self, dek: bytes) -> None:
        encryption_key, self.commit = frame_keys(dek)
        self._dek = dek
        self._aead = AESGCM(encryption_key)
        self.dek_id = self.commit[:16]

    def __repr__(self) -> str:
        return f"DataKey({self.dek_id.hex()})"

    def seal(self, plaintext: bytes, place: bytes) -> bytes:
        """Return a frame under a fresh random nonce.

        Args:
            plaintext: what to encrypt, already compressed.
            place: what `place_of` gives for the event.
        """
        return frame_under(self.dek_id, self._aead, os.urandom(_NONCE_BYTES), plaintext, place)

    def open(self, frame: bytes, place: bytes) -> bytes:
        """Return what was sealed.

        Raises:
            FrameError: not a frame, sealed under another key, for another place, or changed.
        """
        if len(frame) < OVERHEAD_BYTES or frame[:2] != _MAGIC:
            raise FrameError("not a frame of version 1, suite 1")
        # Before decryption and on every call, so that a cached key is held to it too.
        if not hmac.compare_digest(frame[2:18], self.dek_id):
            raise FrameError("the frame was sealed under another key")
        try:
            return self._aead.decrypt(frame[18:30], frame[30:], _AAD + self.dek_id + place)
        except InvalidTag:
            raise FrameError("the frame does not open: changed, or of another event") from None

    def content_mac(self, plaintext: bytes) -> bytes:
        """Return what tells duplicates from conflicts, 32 bytes.

        Args:
            plaintext: the content before compression.
        """
        return mac(self._dek, _MAC + sha256(plaintext).digest() + b"\1")


def frame_under(dek_id: bytes, aead: AESGCM, nonce: bytes, plaintext: bytes, place: bytes) -> bytes:
    """Return a frame under a given nonce: for the test vector, and for `DataKey.seal` alone."""
    sealed = aead.encrypt(nonce, plaintext, _AAD + dek_id + place)
    return _MAGIC + dek_id + nonce + sealed


class Place(TypedDict):
    """What binds a frame to its event.

    Attributes:
        org: the org's id.
        tree: tree id of the key locator, 16 bytes.
        event_id: 16 bytes.
        subject_id: the run's id, else the turn's or artefact's.
        writer_epoch: 0 where there is no writer.
        seq: 0 where there is none.
        kind: name of the event type, such as `run.completed`.
    """

    org: str
    tree: bytes
    event_id: bytes
    subject_id: str
    writer_epoch: int
    seq: int
    kind: str


def place_of(
    *,
    org: str,
    tree: bytes,
    event_id: bytes,
    subject_id: str,
    writer_epoch: int,
    seq: int,
    kind: str,
) -> bytes:
    """Return a `Place` as the bytes that are authenticated with the frame, after the key's id."""
    subject = lp(subject_id.encode()) + _two_u64(writer_epoch, seq)
    return lp_text(org) + tree + event_id + subject + lp_text(kind)


def seal_content(
    key: DataKey, content: Mapping[str, Any], **place: Unpack[Place]
) -> tuple[bytes, bytes]:
    """Seal the content fields of one event: `(frame, content_mac)`.

    Args:
        key: the subject's.
        content: msgpack values (str, bytes, int, float, bool, None, lists, maps with str keys).
        **place: the event, see `Place`.

    Raises:
        TooLarge: the frame is over `MAX_FRAME_BYTES`.
    """
    plaintext = pack(content)
    frame = key.seal(compress(plaintext), place_of(**place))
    if len(frame) > MAX_FRAME_BYTES:
        raise TooLarge(f"a frame of {len(frame)} bytes, over {MAX_FRAME_BYTES}")
    return frame, key.content_mac(plaintext)


class Sealer:
    """Seals event after event of one subject as `seal_content` does.

    What their places share is put together once: 3 µs of 15 for a chunk batch.

    Attributes:
        org: whose events they are.

    Args:
        key: the subject's.
        org: see `Place`, like all that follow.
    """

    __slots__ = ("_before", "_encrypt", "_epoch", "_head", "_inner", "_outer", "_subject", "org")

    def __init__(
        self, key: DataKey, *, org: str, tree: bytes, subject_id: str, writer_epoch: int
    ) -> None:
        self.org = org
        self._encrypt = key._aead.encrypt
        inner, outer = pads(key._dek)
        self._inner, self._outer = inner + _MAC, outer
        self._head = _MAGIC + key.dek_id
        self._before = _AAD + key.dek_id + lp_text(org) + tree
        self._subject = lp(subject_id.encode())
        self._epoch = writer_epoch

    def seal(
        self,
        content: Mapping[str, Any],
        event_id: bytes,
        seq: int,
        kind: str,
        max_bytes: int = MAX_FRAME_BYTES,
    ) -> tuple[bytes, bytes]:
        """Return `(frame, content_mac)`. Any thread may call it.

        Raises:
            TooLarge: the frame is over `max_bytes`.
        """
        # Looking for maps that are out of order took 5 µs of 15 in a list of chunks.
        chunks = kind == _CHUNKS
        plaintext = pack_ordered(content) if chunks else pack(content)
        nonce = os.urandom(_NONCE_BYTES)
        place = self._before + event_id + self._subject + _two_u64(self._epoch, seq) + lp_text(kind)
        sealed = self._encrypt(nonce, compress(plaintext, chunks), place)
        frame = self._head + nonce + sealed
        if len(frame) > max_bytes:
            raise TooLarge(f"a frame of {len(frame)} bytes, over {max_bytes}")
        # `DataKey.content_mac`, the key's two pads put in front once.
        inner = sha256(self._inner + sha256(plaintext).digest() + b"\1").digest()
        return frame, sha256(self._outer + inner).digest()


def open_content(
    key: DataKey, frame: bytes, *, content_mac: bytes | None = None, **place: Unpack[Place]
) -> dict[str, Any]:
    """Open a frame into its content fields.

    Args:
        key: the subject's.
        frame: as it stands in the event.
        content_mac: the event's; compared when given.
        **place: the event, see `Place`.

    Raises:
        FrameError: it does not open under this key at this place, or is not what a frame holds.
    """
    plaintext = decompress(key.open(frame, place_of(**place)))
    if content_mac is not None and not hmac.compare_digest(content_mac, key.content_mac(plaintext)):
        raise FrameError("content_mac is not that of the frame's content")
    return unpack(plaintext)
