"""Attack 1: frames of one implementation in the other; every bit flipped, every field swapped."""

import os
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from hypothesis import given
from hypothesis import strategies as st

from tests.attack.crossing import where
from tests.attack.second import frames
from tests.turnlog.keys.helpers import CONTENT, PLACE
from turnlog.errors import FrameError
from turnlog.keys import DataKey, Place, Sealer, open_content, place_of, seal_content

DEK = os.urandom(32)
KEY = DataKey(DEK)
FRAME, MAC = seal_content(KEY, CONTENT, **PLACE)

texts = st.text(st.characters(codec="utf-8"), max_size=12)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | texts | st.binary()
values = st.recursive(
    scalars | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
contents = st.dictionaries(texts, values, max_size=5)
places = st.fixed_dictionaries(
    {
        "org": texts,
        "tree": st.binary(min_size=16, max_size=16),
        "event_id": st.binary(min_size=16, max_size=16),
        "subject_id": texts,
        "writer_epoch": st.integers(0, 2**64 - 1),
        "seq": st.integers(0, 2**64 - 1),
        "kind": texts,
    }
)


def moved(**changes: Any) -> Place:
    return {**PLACE, **changes}  # type: ignore[typeddict-item]


@given(contents, places, st.binary(min_size=32, max_size=32))
def test_1_what_the_product_seals_the_second_implementation_opens(
    content: dict[str, Any], place: Place, dek: bytes
) -> None:
    frame, mac = seal_content(DataKey(dek), content, **place)
    assert frames.unseal(dek, where(place), frame) == content
    assert frames.seal(dek, frame[18:30], where(place), content)[1] == mac


@given(contents, places, st.binary(min_size=32, max_size=32))
def test_1_what_the_second_implementation_seals_the_product_opens(
    content: dict[str, Any], place: Place, dek: bytes
) -> None:
    frame, mac = frames.seal(dek, os.urandom(12), where(place), content)
    assert open_content(DataKey(dek), frame, content_mac=mac, **place) == content


@given(st.lists(st.lists(st.integers() | texts, max_size=4), max_size=4))
def test_1_a_sealer_writes_the_same_frames(chunks: list[list[Any]]) -> None:
    chunks = [[n for n in chunk if isinstance(n, str) or abs(n) < 2**63] for chunk in chunks]
    place = moved(kind="chunk.batch")
    sealer = Sealer(
        KEY, org=place["org"], tree=place["tree"], subject_id=place["subject_id"], writer_epoch=1
    )
    frame, mac = sealer.seal({"chunks": chunks}, place["event_id"], 7, "chunk.batch")
    assert frames.unseal(DEK, where(place), frame) == {"chunks": chunks}
    assert frames.seal(DEK, frame[18:30], where(place), {"chunks": chunks})[1] == mac


def test_1_every_flipped_bit_of_a_frame_is_refused_by_both() -> None:
    for bit in range(len(FRAME) * 8):
        broken = bytearray(FRAME)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FrameError):
            open_content(KEY, bytes(broken), **PLACE)
        with pytest.raises((ValueError, InvalidTag, frames.WrongKey)):
            frames.open_bytes(DEK, where(PLACE), bytes(broken))


def test_1_every_truncation_and_extension_is_refused() -> None:
    for broken in (*(FRAME[:length] for length in range(len(FRAME))), FRAME + b"\0"):
        with pytest.raises(FrameError):
            open_content(KEY, broken, **PLACE)


OTHER: Place = {
    "org": "org_acmf",
    "tree": os.urandom(16),
    "event_id": os.urandom(16),
    "subject_id": "run_01K",
    "writer_epoch": 2,
    "seq": 8,
    "kind": "run.failed",
}


@pytest.mark.parametrize("name", OTHER)
def test_1_a_frame_is_refused_where_any_one_field_is_anothers(name: str) -> None:
    place = moved(**{name: OTHER[name]})  # type: ignore[literal-required]
    with pytest.raises(FrameError):
        open_content(KEY, FRAME, **place)
    with pytest.raises(InvalidTag):
        frames.open_bytes(DEK, where(place), FRAME)


@pytest.mark.parametrize(
    "place",
    [
        moved(seq=2**63 - 1),
        moved(writer_epoch=7, seq=1),
        moved(org="org_acmerun", subject_id="_01J"),
        moved(subject_id="run_01Jrun", kind=".completed"),
        moved(tree=PLACE["event_id"], event_id=PLACE["tree"]),
        moved(org=PLACE["subject_id"], subject_id=PLACE["org"]),
        moved(subject_id=PLACE["kind"], kind=PLACE["subject_id"]),
    ],
)
def test_1_fields_cannot_be_swapped_or_shifted_into_one_another(place: Place) -> None:
    with pytest.raises(FrameError):
        open_content(KEY, FRAME, **place)


@given(places, places)
def test_1_two_places_never_have_the_same_bytes(one: Place, two: Place) -> None:
    assert (place_of(**one) == place_of(**two)) == (one == two)
