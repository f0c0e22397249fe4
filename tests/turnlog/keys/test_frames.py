import inspect
import os
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from tests.turnlog.keys.two_keys import sealed_for_both
from turnlog.errors import FrameError, TooLarge
from turnlog.keys import MAX_FRAME_BYTES, DataKey, Place, open_content, place_of, seal_content
from turnlog.keys.frames import OVERHEAD_BYTES, frame_keys

KEY = DataKey(os.urandom(32))
PLACE: Place = {
    "org": "org_acme",
    "tree": os.urandom(16),
    "event_id": os.urandom(16),
    "subject_id": "run_01J",
    "writer_epoch": 1,
    "seq": 7,
    "kind": "run.completed",
}
CONTENT = {"output": "café", "chunks": [[0, 0, "text", "c"]]}
FRAME, MAC = seal_content(KEY, CONTENT, **PLACE)


def moved(**changes: Any) -> Place:
    return {**PLACE, **changes}  # type: ignore[typeddict-item]


def test_a_frame_opens_at_its_place_under_its_key() -> None:
    assert open_content(KEY, FRAME, content_mac=MAC, **PLACE) == CONTENT
    assert FRAME[:2] == b"\1\1"
    assert FRAME[2:18] == KEY.dek_id == KEY.commit[:16]


def test_every_flipped_bit_of_a_frame_is_refused() -> None:
    for bit in range(len(FRAME) * 8):
        broken = bytearray(FRAME)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FrameError):
            open_content(KEY, bytes(broken), **PLACE)


def test_every_truncation_and_extension_is_refused() -> None:
    for length in range(len(FRAME)):
        with pytest.raises(FrameError):
            open_content(KEY, FRAME[:length], **PLACE)
    with pytest.raises(FrameError):
        open_content(KEY, FRAME + b"\0", **PLACE)


@pytest.mark.parametrize(
    "place",
    [
        moved(org="org_acmf"),
        moved(tree=os.urandom(16)),
        moved(event_id=os.urandom(16)),
        moved(subject_id="run_01K"),
        moved(writer_epoch=2),
        moved(seq=8),
        moved(seq=2**63 - 1),
        moved(writer_epoch=7, seq=1),
        moved(kind="run.failed"),
        moved(org="org_acmerun", subject_id="_01J"),
        moved(subject_id="run_01Jrun", kind=".completed"),
        moved(tree=PLACE["event_id"], event_id=PLACE["tree"]),
    ],
)
def test_a_frame_is_refused_at_another_place(place: Place) -> None:
    with pytest.raises(FrameError):
        open_content(KEY, FRAME, **place)


@given(st.binary(max_size=32), st.binary(min_size=16, max_size=16))
def test_nothing_but_bytes_of_one_place_gives_its_bytes(suffix: bytes, event_id: bytes) -> None:
    a = place_of(**moved(event_id=event_id, subject_id="r" + suffix.hex()))
    b = place_of(**moved(event_id=event_id, subject_id="r" + suffix.hex() + "0"))
    assert a != b


def test_another_key_is_refused_by_its_id() -> None:
    with pytest.raises(FrameError, match="another key"):
        open_content(DataKey(os.urandom(32)), FRAME, **PLACE)


def test_a_frame_that_opens_under_two_keys_is_refused_under_the_second() -> None:
    """Attack 8: AES-GCM does not commit to its key, so such a frame can be built. Here is one."""
    deks = os.urandom(32), os.urandom(32)
    first, second = map(DataKey, deks)
    keys = [frame_keys(dek)[0] for dek in deks]
    place = place_of(**PLACE)
    aad = b"\1\1turnlog-frame-v1\0" + first.dek_id + place
    nonce = os.urandom(12)
    sealed = sealed_for_both(keys[0], keys[1], nonce, aad)
    opened = {AESGCM(key).decrypt(nonce, sealed, aad) for key in keys}
    assert len(opened) == 2
    frame = b"\1\1" + first.dek_id + nonce + sealed
    assert first.open(frame, place) in opened
    for _ in range(2):
        with pytest.raises(FrameError, match="another key"):
            second.open(frame, place)


def test_a_mac_of_other_content_is_refused() -> None:
    _, other = seal_content(KEY, {"output": "tea"}, **PLACE)
    with pytest.raises(FrameError, match="content_mac"):
        open_content(KEY, FRAME, content_mac=other, **PLACE)


def test_the_mac_is_that_of_the_content_and_the_key() -> None:
    again, mac = seal_content(KEY, CONTENT, **PLACE)
    assert mac == MAC and again != FRAME
    assert seal_content(DataKey(os.urandom(32)), CONTENT, **PLACE)[1] != MAC


def test_nonces_do_not_repeat_and_cannot_be_given() -> None:
    nonces = {seal_content(KEY, CONTENT, **PLACE)[0][18:30] for _ in range(2000)}
    assert len(nonces) == 2000
    for function in (DataKey.seal, seal_content):
        assert "nonce" not in inspect.signature(function).parameters


def test_a_frame_over_the_limit_is_refused_and_one_at_it_is_not() -> None:
    def sealed(size: int) -> bytes:
        return seal_content(KEY, {"a": os.urandom(size)}, **PLACE)[0]

    around = len(sealed(MAX_FRAME_BYTES - 200)) - (MAX_FRAME_BYTES - 200)
    fits = sealed(MAX_FRAME_BYTES - around)
    assert len(fits) == MAX_FRAME_BYTES
    with pytest.raises(TooLarge, match=str(MAX_FRAME_BYTES)):
        sealed(MAX_FRAME_BYTES - around + 1)


def test_a_key_shows_its_id_and_nothing_else() -> None:
    dek = os.urandom(32)
    shown = repr(DataKey(dek)) + str(DataKey(dek))
    assert DataKey(dek).dek_id.hex() in shown
    assert dek.hex() not in shown
    assert DataKey(dek).commit.hex() not in shown


def test_an_empty_map_is_content_too() -> None:
    frame, mac = seal_content(KEY, {}, **PLACE)
    assert open_content(KEY, frame, content_mac=mac, **PLACE) == {}
    assert len(frame) > OVERHEAD_BYTES
