"""The digest of a view depends on its rows and on nothing else."""

import hashlib
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from processors.digest import ViewDigest, canonical_bytes, row_hash

Rows = list[tuple[bytes, bytes, dict[str, Any]]]

rows = st.lists(
    st.tuples(
        st.sampled_from([b"acme/a", b"acme/b", b"other/a"]),
        st.binary(min_size=16, max_size=16),
        st.dictionaries(st.text(max_size=5), st.integers(-(2**63), 2**64 - 1) | st.text()),
    ),
    unique_by=lambda row: row[1],
)


def digest_of(rows: Rows, *, keep_repeats: bool = False) -> tuple[int, str]:
    digest = ViewDigest(keep_repeats=keep_repeats)
    for row in rows:
        digest.add(*row)
    return digest.result()


@given(rows, st.randoms(use_true_random=False))
def test_order_and_repeats_change_nothing(rows: Rows, random: Any) -> None:
    shuffled = rows + rows[::2]
    random.shuffle(shuffled)
    assert digest_of(shuffled) == digest_of(rows)


@given(rows.filter(bool))
def test_the_first_occurrence_wins(rows: Rows) -> None:
    stream, key, row = rows[0]
    assert digest_of([*rows, (stream, key, {**row, "changed": 1})]) == digest_of(rows)


@given(rows.filter(bool), st.integers())
def test_one_changed_value_changes_the_digest(rows: Rows, value: int) -> None:
    stream, key, row = rows[0]
    changed = {**row, "tokens": value % 2**32 + 1}
    other = digest_of([(stream, key, changed), *rows[1:]])
    assert other != digest_of([(stream, key, {**row, "tokens": 0}), *rows[1:]])


@given(rows.filter(bool))
def test_a_row_that_is_stored_twice_changes_the_digest_of_a_table(rows: Rows) -> None:
    once = digest_of(rows, keep_repeats=True)
    assert once == digest_of(rows)
    twice = digest_of([*rows, rows[0]], keep_repeats=True)
    assert twice[0] == once[0]
    assert twice[1] != once[1]


def test_the_lines_are_those_of_the_design() -> None:
    row_line = b"k" * 16 + hashlib.sha256(msgpack.packb({"a": 1, "b": "x"})).digest()
    stream = hashlib.sha256(row_line).digest()
    wanted = hashlib.sha256(b"acme/c" + stream).hexdigest()
    assert digest_of([(b"acme/c", b"k" * 16, {"b": "x", "a": 1})]) == (1, wanted)


def test_nothing_has_a_digest_too() -> None:
    assert digest_of([]) == (0, hashlib.sha256().hexdigest())


def test_a_row_is_flat_and_holds_integers_and_text_only() -> None:
    row = {
        "map": {"z": "1", "a": "2"},
        "list": [{"first": 1}, {"first": 2}],
        "mac": b"\x00\xff",
        "flag": True,
        "none": None,
    }
    assert msgpack.unpackb(canonical_bytes(row)) == {
        "flag": 1,
        "list.0.first": 1,
        "list.1.first": 2,
        "mac": "00ff",
        "map.a": "2",
        "map.z": "1",
    }
    assert row_hash({"a": 1, "b": 2}) == row_hash({"b": 2, "a": 1})


def test_a_float_has_no_place_in_a_row() -> None:
    with pytest.raises(TypeError, match=r"field cost\.usd: .* float"):
        canonical_bytes({"cost": {"usd": 0.1}})
