import inspect
import os

import pytest

from tests.turnlog.keys.helpers import CONTENT, PLACE
from turnlog.errors import FrameError, TooLarge
from turnlog.keys import MAX_FRAME_BYTES, DataKey, open_content, seal_content
from turnlog.keys.frames import OVERHEAD_BYTES

KEY = DataKey(os.urandom(32))
FRAME, MAC = seal_content(KEY, CONTENT, **PLACE)


def test_a_frame_opens_at_its_place_under_its_key() -> None:
    assert open_content(KEY, FRAME, content_mac=MAC, **PLACE) == CONTENT
    assert FRAME[:2] == b"\1\1"
    assert FRAME[2:18] == KEY.dek_id == KEY.commit[:16]


def test_another_key_is_refused_by_its_id() -> None:
    with pytest.raises(FrameError, match="another key"):
        open_content(DataKey(os.urandom(32)), FRAME, **PLACE)


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
