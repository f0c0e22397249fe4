import hashlib
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinks.packs import writer
from sinks.packs.layout import PackError, Trailer
from sinks.packs.reader import Pack, read_footer
from sinks.packs.writer import PackSummary, write_pack
from tests.sinks.packs.events import Logged, logged, logs, packed

# A log of records costs more to make than to pack.
light = settings(max_examples=30, deadline=None)


def pack(records: list[Logged], **options: object) -> tuple[bytes, PackSummary]:
    out = io.BytesIO()
    summary = write_pack(map(packed, records), out, **options)  # type: ignore[arg-type]
    return out.getvalue(), summary


def order(record: Logged) -> tuple[object, ...]:
    return packed(record).entry[:4]


SAMPLE = [
    logged(
        "turnlog.runs",
        n % 3,
        n,
        "run.completed",
        {
            "org": f"org_{n % 2}",
            "run": f"run_{n}",
            "event_id": n.to_bytes(16),
            "occurred_at_us": n,
            "frame": bytes([n]) * (n % 4),
        },
    )
    for n in range(24)
]


@light
@given(logs())
def test_every_record_comes_back_exactly_as_it_was_in_kafka(records: list[Logged]) -> None:
    data, _ = pack(records)
    found = [
        Logged(row.topic, row.partition, row.offset, row.append_us, key, value)
        for row, key, value in Pack.of_bytes(data).records()
    ]
    assert found == sorted(records, key=order)


@light
@given(logs())
def test_one_range_of_the_object_is_the_frame_of_one_record(records: list[Logged]) -> None:
    data, _ = pack(records)
    frames = {record[:3]: packed(record).frame for record in records}
    for row in Pack.of_bytes(data).footer.rows():
        assert data[row.frame_offset :][: row.frame_bytes] == frames[row[1:4]]


@light
@given(logs())
def test_the_summary_is_true_of_the_object(records: list[Logged]) -> None:
    data, summary = pack(records)
    assert summary.digest == hashlib.sha256(data).digest()
    assert (summary.size_bytes, summary.records) == (len(data), len(records))
    footer = read_footer(data[summary.footer_offset :], len(data))
    assert tuple(footer.orgs.values()) == summary.orgs


@light
@given(logs())
def test_rows_of_an_org_are_its_records_and_ranges_cover_just_them(records: list[Logged]) -> None:
    data, summary = pack(records)
    footer = Pack.of_bytes(data).footer
    for part in summary.orgs:
        own = [row[1:4] for row in footer.rows_of(part.org)]
        assert own == [order(r)[1:] for r in sorted(records, key=order) if order(r)[0] == part.org]
        covered = [
            place
            for place in own
            if any(place[:2] == r[:2] and r.first <= place[2] <= r.last for r in part.ranges)
        ]
        assert covered == own
        assert sum(found.records for found in part.ranges) == len(own)


@light
@given(logs(), st.data())
def test_no_range_spreads_over_a_record_that_another_pack_owns(
    records: list[Logged], data: st.DataObject
) -> None:
    taken = data.draw(st.sets(st.sampled_from(records), max_size=len(records) - 1))
    elsewhere = [record[:3] for record in taken]
    _, summary = pack([r for r in records if r not in taken], elsewhere=elsewhere)
    ranges = [found for part in summary.orgs for found in part.ranges]
    assert not [
        (place, found)
        for place in elsewhere
        for found in ranges
        if place[:2] == found[:2] and found.first <= place[2] <= found.last
    ]


@light
@given(logs())
def test_a_replay_without_content_reads_no_frame(records: list[Logged]) -> None:
    data, _ = pack(records)
    footer = Pack.of_bytes(data).footer

    def read(offset: int, length: int) -> bytes:
        assert offset >= footer.frames.offset + footer.frames.size_bytes
        return data[offset : offset + length]

    bodies = [stored.body for stored in Pack(read, footer).stored()]
    assert bodies == [packed(record).body for record in sorted(records, key=order)]


def test_blocks_hold_a_thousand_records_or_four_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "BLOCK_RECORDS", 10)
    assert [b.records for b in Pack.of_bytes(pack(SAMPLE)[0]).footer.blocks] == [10, 10, 4]
    monkeypatch.setattr(writer, "BLOCK_BYTES", len(packed(SAMPLE[0]).body))
    assert {b.records for b in Pack.of_bytes(pack(SAMPLE)[0]).footer.blocks} == {1}


def test_any_flipped_bit_is_found_when_the_part_is_read() -> None:
    data, _ = pack(SAMPLE[:6])
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(PackError):
            list(Pack.of_bytes(bytes(damaged)).records())


@given(st.integers(0, 10_000))
def test_an_object_cut_off_anywhere_is_refused(at: int) -> None:
    data, _ = pack(SAMPLE)
    with pytest.raises(PackError):
        Pack.of_bytes(data[: at % len(data)])


@given(st.binary(max_size=200))
def test_what_is_no_pack_is_refused(data: bytes) -> None:
    with pytest.raises(PackError):
        Pack.of_bytes(data)


def test_another_version_is_refused_by_its_number() -> None:
    data = bytearray(pack(SAMPLE)[0])
    data[-9] = 2
    with pytest.raises(PackError, match="version 2"):
        read_footer(bytes(data), len(data))


def test_an_org_that_the_object_does_not_hold_is_an_error_and_not_empty() -> None:
    with pytest.raises(PackError, match="no record of the org"):
        list(Pack.of_bytes(pack(SAMPLE)[0]).footer.rows_of("org_9"))


def test_a_trailer_is_64_bytes_and_reads_back() -> None:
    trailer = Trailer(2**40, 77, bytes(range(32)))
    assert len(trailer.encode()) == 64
    assert Trailer.decode(trailer.encode()) == trailer
