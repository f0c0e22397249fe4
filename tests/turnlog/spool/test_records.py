"""Records of a segment: torn, damaged, found again."""

from hypothesis import given
from hypothesis import strategies as st

from turnlog.spool.records import Damage, Found, Spooled, packed, packed_size, scan

RECORD = Spooled("turnlog.runs", 3, b"acme/c1", b"\xc3\x01value", [("ce_id", b"1")], 7, 1_000)


def records(count: int) -> list[Spooled]:
    return [RECORD._replace(seq=seq, value=RECORD.value * (seq + 1)) for seq in range(count)]


def found(data: bytes) -> list[Spooled]:
    return [part.record for part in scan(data) if isinstance(part, Found)]


def test_records_come_back_as_they_were() -> None:
    written = records(5)
    assert found(b"".join(map(packed, written))) == written


@given(st.integers(min_value=0, max_value=2_000))
def test_a_segment_cut_off_anywhere_keeps_its_whole_records(cut: int) -> None:
    parts = [packed(record) for record in records(8)]
    data = b"".join(parts)[:cut]
    whole = [r for n, r in enumerate(records(8)) if len(b"".join(parts[: n + 1])) <= cut]
    assert found(data) == whole


@given(st.integers(min_value=0), st.integers(min_value=0, max_value=7))
def test_one_bit_flipped_loses_one_record_at_most(place: int, bit: int) -> None:
    written = records(6)
    data = bytearray(b"".join(map(packed, written)))
    data[place % len(data)] ^= 1 << bit
    kept = found(bytes(data))
    assert len(kept) == 5
    assert all(record in written for record in kept)


def test_damage_is_told_with_its_place() -> None:
    one, two = map(packed, records(2))
    parts = list(scan(one + b"rubbish" + two))
    assert [part for part in parts if isinstance(part, Damage)] == [
        Damage(len(one), len(one) + len(b"rubbish"))
    ]


def test_the_size_of_a_large_record_is_known_before_it_is_packed() -> None:
    for size in (1 << 16, 1 << 20):
        record = Spooled("t", 1, b"k", b"v", [("a", b"1"), ("frame", bytes(size))], 7, 1)
        assert packed_size(record) == len(packed(record))
