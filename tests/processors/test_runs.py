"""The canonical row of a run's event."""

from typing import Any

from processors.digest import row_hash
from processors.runs import canonical
from turnlog.events import Event, decode, encode

MAC = b"m" * 32


def completed(**more: Any) -> Event:
    body = {
        "org": "acme",
        "run": "run_1",
        "event_id": b"e" * 16,
        "occurred_at_us": 5,
        "frame": b"ciphertext",
        "content_mac": MAC,
        "writer_epoch": 1,
        "seq": 3,
        "ttft_us": 0,
        "versions": {"prompt": "v2"},
        "shed": [{"first": 3, "last": 9}],
    }
    return decode(encode("run.completed", body | more))


def hash_of(event: Event) -> bytes:
    found = canonical(event)
    assert found is not None
    return row_hash(found[2])


def test_the_frame_is_left_out_and_the_mac_stands_in() -> None:
    assert hash_of(completed(frame=b"other nonce")) == hash_of(completed())
    assert hash_of(completed(content_mac=b"n" * 32)) != hash_of(completed())


def test_maps_and_lists_count() -> None:
    assert hash_of(completed(versions={"prompt": "v3"})) != hash_of(completed())
    assert hash_of(completed(shed=[{"first": 3, "last": 8}])) != hash_of(completed())


def test_not_measured_and_zero_differ() -> None:
    assert hash_of(completed(ttft_us=None)) != hash_of(completed())
