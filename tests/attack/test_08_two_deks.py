"""Attack 8: two DEKs that open one frame. AES-GCM does not commit to its key, so there are some.

The frame is built so that nothing but `dek_id` is in the way: under each key it is a valid
ciphertext with the very AAD that a reader computes for that key.
"""

import os

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.attack.crossing import Both
from tests.attack.two_keys import sealed_for_both
from tests.turnlog.keys.helpers import ORG, RUN, TREE
from turnlog.errors import FrameError
from turnlog.keys import DataKey, place_of
from turnlog.keys.cache import Deriver, NodeCache
from turnlog.keys.frames import frame_keys
from turnlog.keys.index import Locator
from turnlog.keys.walk import dek_of

LOCATOR = Locator(TREE, 17, 0)
NONCE = os.urandom(12)
MAGIC = b"\1\1"


class Decrypted(Exception):
    """Something was decrypted."""


class Untouchable:
    """In the place of a cipher: it must not be asked."""

    def decrypt(self, nonce: bytes, data: bytes, aad: bytes) -> bytes:
        raise Decrypted


def place(name: str) -> bytes:
    return place_of(
        org=ORG,
        tree=TREE,
        event_id=bytes(16),
        subject_id=name,
        writer_epoch=1,
        seq=7,
        kind="run.completed",
    )


def aad_of(key: DataKey, at: bytes) -> bytes:
    return MAGIC + b"turnlog-frame-v1\0" + key.dek_id + at


def colliding(deks: tuple[bytes, bytes], places: tuple[bytes, bytes]) -> bytes:
    """Return a frame that names the first key and decrypts under both."""
    keys = [DataKey(dek) for dek in deks]
    one, two = (
        (frame_keys(dek)[0], aad_of(key, at))
        for dek, key, at in zip(deks, keys, places, strict=True)
    )
    sealed = sealed_for_both(one, two, NONCE)
    opened = {AESGCM(key).decrypt(NONCE, sealed, aad) for key, aad in (one, two)}
    assert len(opened) == 2
    return MAGIC + keys[0].dek_id + NONCE + sealed


def test_8_a_frame_that_opens_under_two_keys_is_refused_under_the_second() -> None:
    deks = os.urandom(32), os.urandom(32)
    at = place("run_01J")
    frame = colliding(deks, (at, at))
    assert len(DataKey(deks[0]).open(frame, at)) == 16
    with pytest.raises(FrameError, match="another key"):
        DataKey(deks[1]).open(frame, at)


def test_8_it_is_refused_before_anything_is_decrypted() -> None:
    deks = os.urandom(32), os.urandom(32)
    at = place("run_01J")
    frame = colliding(deks, (at, at))
    second = DataKey(deks[1])
    second._aead = Untouchable()  # type: ignore[assignment]
    with pytest.raises(FrameError, match="another key"):
        second.open(frame, at)
    # The trap works: what names the second key does reach its cipher.
    with pytest.raises(Decrypted):
        second.open(MAGIC + second.dek_id + frame[18:], at)


@pytest.mark.parametrize("flipped", range(16))
def test_8_every_byte_of_the_key_id_is_compared(flipped: int) -> None:
    dek = os.urandom(32)
    key, at = DataKey(dek), place("run_01J")
    frame = bytearray(key.seal(b"", at))
    frame[2 + flipped] ^= 1
    key._aead = Untouchable()  # type: ignore[assignment]
    with pytest.raises(FrameError, match="another key"):
        key.open(bytes(frame), at)


def test_8_keys_derived_by_a_reader_refuse_it_on_a_fill_and_on_a_cache_hit() -> None:
    store = Both(17, 17)
    stored, subjects = store.tree(), (RUN, RUN._replace(id="run_01K"))
    indexes = [store.index(subject) for subject in subjects]
    one, two = (
        dek_of(store.leaf(index), TREE, index, subject)
        for index, subject in zip(indexes, subjects, strict=True)
    )
    frame = colliding((one, two), (place(RUN.id), place("run_01K")))
    cache = NodeCache()
    deriver = Deriver(TREE, stored.head.gen, store.index_key, stored, cache)
    for filled in (False, True):
        assert bool(len(cache)) is filled
        key = deriver.data_key(LOCATOR, subjects[1])
        assert key.commit == DataKey(two).commit
        with pytest.raises(FrameError, match="another key"):
            key.open(frame, place("run_01K"))
    assert len(deriver.data_key(LOCATOR, RUN).open(frame, place(RUN.id))) == 16
