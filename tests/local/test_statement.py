"""Routing of statements: what is data, what is a clause, what only looks like one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.clickhouse import statement

names = st.text(min_size=1, max_size=20).map(statement.quote_name)
literals = st.text(max_size=20).map(statement.quote)
gaps = st.sampled_from([" ", "\n", "\t", " /* FORMAT x */ ", " -- FORMAT y\n"])


@given(
    table=names,
    columns=st.lists(names, min_size=1, max_size=4),
    token=literals,
    gap=gaps,
    data=st.binary(max_size=200),
)
def test_the_data_of_an_insert_begin_after_its_format(
    table: str, columns: list[str], token: str, gap: str, data: bytes
) -> None:
    head = f"INSERT INTO{gap}{table} ({', '.join(columns)}){gap}"
    tail = f"SETTINGS insert_deduplication_token = {token}{gap}FORMAT Avro"
    text = head.encode() + tail.encode() + b"\n" + data
    insert = statement.insert_with_data(text)
    assert insert is not None
    assert text[insert.data_start :] == data
    assert (insert.before_source.decode(), insert.after_source.decode()) == (head, tail)
    assert insert.format == "Avro"


@pytest.mark.parametrize(
    ("text", "data"),
    [
        (b"INSERT INTO t FORMAT TSV\n\n1", b"\n1"),
        (b"insert into t format TSV 1", b"1"),
        (b"INSERT INTO t FORMAT RowBinary\r\n\x00", b"\x00"),
        (b"INSERT INTO t FORMAT Native", b""),
        (b"INSERT INTO FUNCTION file('a', TSV) FORMAT TSV\n1", b"1"),
    ],
)
def test_one_line_break_after_the_format_is_no_data(text: bytes, data: bytes) -> None:
    insert = statement.insert_with_data(text)
    assert insert is not None
    assert text[insert.data_start :] == data


@pytest.mark.parametrize(
    "text",
    [
        b"INSERT INTO t VALUES ('a FORMAT b')",
        b"INSERT INTO t (a) VALUES (1) FORMAT",
        b"INSERT INTO t SELECT 1 FORMAT Null",
        b"INSERT INTO t FROM INFILE 'x' FORMAT Avro",
        b"SELECT 'INSERT INTO t FORMAT TSV'",
        b"INSERT INTO `t FORMAT x`",
        b"",
    ],
)
def test_other_statements_have_no_data(text: bytes) -> None:
    assert statement.insert_with_data(text) is None


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (b"SELECT 1", "default"),
        (b"SELECT 1 FORMAT JSON", "JSON"),
        (b"select 1 format Native settings max_threads = 1", "Native"),
        (b"SELECT ' FORMAT JSON', (SELECT 1 AS FORMAT)", "default"),
        (b"SELECT formatRow('CSV', 1) -- FORMAT JSON", "default"),
    ],
)
def test_the_format_asked_for_is_found(text: bytes, form: str) -> None:
    assert statement.output_format(text, "default") == form


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (b"SELECT 1", False),
        (b"SELECT 1;", False),
        (b"SELECT ';'; -- SELECT 2\n", False),
        (b"SELECT 1; SELECT 2", True),
        (b"INSERT INTO t VALUES (1); ", False),
    ],
)
def test_a_second_statement_is_seen(text: bytes, more: bool) -> None:
    assert statement.several(text) is more


def test_a_kill_is_read() -> None:
    assert statement.kill("KILL QUERY WHERE query_id = 'a SYNC' SYNC") == (
        "query_id = 'a SYNC'",
        "SYNC",
        "TabSeparated",
    )
    assert statement.kill("kill query where user='x' format JSON;") == ("user='x'", "ASYNC", "JSON")
    assert statement.kill("KILL MUTATION WHERE 1") is None


@given(st.binary(max_size=300))
def test_no_bytes_upset_the_reading(text: bytes) -> None:
    statement.insert_with_data(text)
    statement.output_format(text, "x")
    statement.several(text)
