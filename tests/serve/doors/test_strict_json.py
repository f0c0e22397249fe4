"""What every reader takes alike is taken, and nothing else."""

from typing import Any

import pytest

from serve.doors.problem import Problem
from serve.doors.strict_json import parse


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"a": [1, -2.5, true, null, "\\u00e9"]}', {"a": [1, -2.5, True, None, "é"]}),
        (b'"\\ud83d\\ude00"', "😀"),
        (b"18446744073709551615", 2**64 - 1),
        (b" [] ", []),
        (b"[" * 254 + b"]" * 254, None),
    ],
)
def test_json_is_read(text: bytes, value: Any) -> None:
    assert parse(text) == value or value is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[1,]",
        b"1 2",
        b"NaN",
        b"[Infinity]",
        b"-Infinity",
        b"1e999",
        b"18446744073709551616",
        b"1" * 5000,
        b'"\\ud800"',
        b'{"\\udfff": 1}',
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b"\xef\xbb\xbf{}",
        b"[" * 255 + b"]" * 255,
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'"\x01"',
        b"'a'",
    ],
    ids=lambda text: repr(text[:20]),
)
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(Problem) as refused:
        parse(text)
    assert (refused.value.status, refused.value.code) == (400, "invalid_json")


def test_a_mistake_is_placed_and_not_quoted() -> None:
    with pytest.raises(Problem) as refused:
        parse(b'{"a": 1,\n "b": secret}')
    assert refused.value.detail == "the body is not JSON: line 2, column 7"


def test_a_key_that_stands_twice_is_named_if_it_can_be_shown() -> None:
    with pytest.raises(Problem) as refused:
        parse(b'{"a": {"type": 1, "x": 2, "type": 1}}')
    assert refused.value.field == "type"
    with pytest.raises(Problem) as refused:
        parse(b'{"geheime Notiz": 1, "geheime Notiz": 2}')
    assert refused.value.field == ""


def test_a_key_that_stands_twice_among_very_many_is_found() -> None:
    text = b"{" + b",".join(b'"k%d":0' % n for n in range(200_000)) + b',"k199999":1}'
    with pytest.raises(Problem) as refused:
        parse(text)
    assert refused.value.field == "k199999"
