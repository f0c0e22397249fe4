"""The local engine under the unmodified `clickhouse-connect` HTTP client, sync and async."""

import asyncio
import gzip
import io
import os
import signal
import socket
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode

import clickhouse_connect
import fastavro
import lz4.frame
import pyarrow
import pytest
import zstandard
from clickhouse_connect.driver.asyncclient import AsyncClient
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError

from local import stack
from local.probe import host_port
from local.process import PidFile
from turnlog.config import Config, load

SLOW = (
    "SELECT sum(sleepEachRow(0.1)) FROM numbers(300)"
    " SETTINGS max_block_size=1, function_sleep_max_microseconds_per_block=100000000"
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Config]:
    with tempfile.TemporaryDirectory(prefix="turnlog-test-") as home:
        config = load(home=Path(home) / "a space, {a,b}*?mutations_sync=0")
        try:
            started = stack.up(config, ["clickhouse"])
            # Not `default`, which in chDB also holds the files of the working directory.
            post(started, b"CREATE DATABASE turnlog", database="default")
            yield started
        finally:
            stack.down(config)


@pytest.fixture
def client(engine: Config) -> Iterator[Client]:
    with connect(engine) as client:
        yield client


@pytest.fixture
def table(client: Client) -> Iterator[str]:
    name = f"t{time.time_ns()}"
    client.command(
        f"CREATE TABLE {name} (a UInt64, b String, c Nullable(Float64)) ENGINE = MergeTree"
        " ORDER BY a SETTINGS non_replicated_deduplication_window = 100"
    )
    yield name
    client.command(f"DROP TABLE {name}")


def connect(engine: Config, **options: Any) -> Client:
    return clickhouse_connect.get_client(dsn=engine.clickhouse, database="turnlog", **options)


def avro(rows: int) -> bytes:
    fields = [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}]
    schema = {"type": "record", "name": "Row", "fields": fields}
    out = io.BytesIO()
    fastavro.writer(out, schema, ({"a": n, "b": f"row {n}"} for n in range(rows)))
    return out.getvalue()


def post(engine: Config, body: bytes, /, **fields: str) -> tuple[int, dict[str, str], bytes]:
    headers = {"Content-Encoding": fields.pop("encoding")} if "encoding" in fields else {}
    fields = {"database": "turnlog", **fields}
    url = f"{engine.clickhouse}/?{urlencode(fields)}"
    request = urllib.request.Request(url, body or None, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


def test_ping_and_version(client: Client) -> None:
    assert client.ping()
    assert client.server_version == client.query("SELECT version()").result_rows[0][0]


@pytest.mark.parametrize("compress", [False, "lz4", "zstd", "gzip"])
def test_rows_inserted_under_any_compression_come_back(
    engine: Config, table: str, compress: bool | str
) -> None:
    rows = [[n, f"ro'w\\ {n}\t\n", None if n % 3 else n / 2] for n in range(5000)]
    with connect(engine, compress=compress) as client:
        summary = client.insert(table, rows, column_names=["a", "b", "c"])
        found = client.query(f"SELECT a, b, c FROM {table} ORDER BY a").result_rows
    assert summary.written_rows == 5000
    assert [list(row) for row in found] == rows


def test_arrow_goes_in_and_comes_out(client: Client, table: str) -> None:
    rows = pyarrow.table({"a": pyarrow.array(range(1000), pyarrow.uint64()), "b": ["x"] * 1000})
    client.insert_arrow(table, rows)
    found = client.query_arrow(f"SELECT a, b FROM {table} ORDER BY a")
    assert found["a"].to_pylist() == list(range(1000))


def test_an_avro_container_with_a_token_is_inserted_once(client: Client, table: str) -> None:
    for _ in range(2):
        client.raw_insert(
            table,
            column_names=["a", "b"],
            insert_block=avro(10_000),
            fmt="Avro",
            settings={"insert_deduplication_token": "p0:0-9999", "max_insert_threads": 1},
        )
    assert client.command(f"SELECT count(), sum(a) FROM {table}") == ["10000", "49995000"]


def test_parameters_are_bound_by_the_engine(client: Client) -> None:
    values = {"s": "it's \\ \t\n ü", "n": -5, "xs": ["a'b", "c"], "t": None}
    row = client.query(
        "SELECT {s:String}, {n:Int64}, {xs:Array(String)}, {t:Nullable(String)}", parameters=values
    ).result_rows[0]
    assert list(row) == ["it's \\ \t\n ü", -5, ["a'b", "c"], None]


def test_settings_hold_for_one_request_of_a_session(client: Client) -> None:
    ask = "SELECT getSetting('max_result_rows')"
    before = client.command(ask)
    assert client.command(ask, settings={"max_result_rows": 77}) == 77
    assert client.command(ask) == before


def test_a_session_keeps_its_temporary_table(engine: Config) -> None:
    with connect(engine, session_id="mine") as client:
        client.command("CREATE TEMPORARY TABLE mine (x UInt8)")
        client.insert("mine", [[1], [2]], column_names=["x"])
        assert client.command("SELECT sum(x) FROM mine") == 3
    with (
        connect(engine, session_id="other") as client,
        pytest.raises(DatabaseError, match="UNKNOWN_TABLE"),
    ):
        client.command("SELECT sum(x) FROM mine")


def test_an_update_is_visible_when_it_is_answered(client: Client, table: str) -> None:
    client.insert(table, [[n, "old", None] for n in range(100)], column_names=["a", "b", "c"])
    client.command(f"ALTER TABLE {table} UPDATE b = 'new' WHERE a < 50")
    assert client.command(f"SELECT countIf(b = 'new') FROM {table}") == 50


def test_the_database_of_a_request_holds(client: Client, engine: Config) -> None:
    client.command("CREATE DATABASE IF NOT EXISTS `odd name`")
    with clickhouse_connect.get_client(dsn=engine.clickhouse, database="odd name") as there:
        assert there.command("SELECT currentDatabase()") == "odd name"
    with pytest.raises(DatabaseError, match="UNKNOWN_DATABASE"):
        clickhouse_connect.get_client(dsn=engine.clickhouse, database="nowhere")


def test_an_empty_result_has_no_rows(client: Client, table: str) -> None:
    assert client.query(f"SELECT a FROM {table}").result_rows == []
    assert client.query(f"SELECT a, b FROM {table} LIMIT 0").column_names == ("a", "b")


def test_a_stream_of_blocks_holds_every_row(client: Client) -> None:
    with client.query_row_block_stream("SELECT number FROM numbers(200000)") as blocks:
        assert sum(len(block) for block in blocks) == 200_000


@pytest.mark.parametrize(
    ("sql", "code", "status"),
    [
        ("SELECT * FROM nowhere", 60, 404),
        ("SELECT throwIf(1)", 395, 500),
        ("SELEC 1", 62, 400),
        ("SELECT 1; SELECT 2", 62, 400),
        ("SELECT 1 SETTINGS no_such_setting = 1", 115, 404),
    ],
)
def test_an_error_has_its_code(engine: Config, sql: str, code: int, status: int) -> None:
    got, headers, body = post(engine, sql.encode())
    assert (got, int(headers["X-ClickHouse-Exception-Code"])) == (status, code)
    assert body.startswith(f"Code: {code}. DB::Exception: ".encode())


def test_the_client_sees_the_code_of_an_error(client: Client) -> None:
    with pytest.raises(DatabaseError) as caught:
        client.query("SELECT * FROM nowhere")
    assert (caught.value.code, caught.value.name) == (60, "UNKNOWN_TABLE")


@pytest.mark.parametrize("form", ["TabSeparated", "JSONEachRow", "Native", "ArrowStream"])
def test_the_format_of_an_answer_is_named(engine: Config, form: str) -> None:
    _, headers, _ = post(engine, f"SELECT 'FORMAT x' AS a FORMAT {form}".encode())
    assert headers["X-ClickHouse-Format"] == form
    _, headers, _ = post(engine, b"SELECT 1", default_format=form)
    assert headers["X-ClickHouse-Format"] == form


@pytest.mark.parametrize(
    ("encoding", "encode"),
    [
        ("gzip", gzip.compress),
        ("zstd", zstandard.compress),
        ("lz4", lz4.frame.compress),
        ("identity", bytes),
    ],
)
def test_a_body_of_several_frames_is_one_body(
    engine: Config, table: str, encoding: str, encode: object
) -> None:
    assert callable(encode)
    body = encode(f"INSERT INTO {table} (a, b) FORMAT TSV\n1\tx\n".encode()) + encode(b"2\ty\n")
    status, headers, said = post(engine, body, encoding=encoding)
    assert (status, said) == (200, b"")
    assert '"written_rows":"2"' in headers["X-ClickHouse-Summary"]
    assert post(engine, f"SELECT sum(a) FROM {table}".encode())[2] == b"3\n"


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "lz4"])
def test_a_body_cut_short_inserts_nothing(engine: Config, table: str, encoding: str) -> None:
    encode = {"gzip": gzip.compress, "zstd": zstandard.compress, "lz4": lz4.frame.compress}
    body = encode[encoding](f"INSERT INTO {table} (a) FORMAT TSV\n".encode() + b"1\n" * 9)
    status, headers, _ = post(engine, body[:-5], encoding=encoding)
    assert (status, headers["X-ClickHouse-Exception-Code"]) == (400, "271")
    assert post(engine, f"SELECT count() FROM {table}".encode())[2] == b"0\n"


def test_other_users_are_refused(engine: Config) -> None:
    status, headers, _ = post(engine, b"SELECT 1", user="eve")
    assert (status, headers["X-ClickHouse-Exception-Code"]) == (403, "516")


def test_a_get_changes_nothing(engine: Config, table: str) -> None:
    status, _, _ = post(engine, b"", query=f"INSERT INTO {table} (a) VALUES (1)")
    assert status == 403
    assert post(engine, b"", query=f"SELECT count() FROM {table}")[2] == b"0\n"


def test_a_running_query_is_killed_by_its_id(engine: Config) -> None:
    outcome: list[int] = []
    slow = threading.Thread(
        target=lambda: outcome.append(post(engine, SLOW.encode(), query_id="slow/0/1-2")[0])
    )
    slow.start()
    while not outcome:
        said = post(engine, b"KILL QUERY WHERE query_id = {id:String} SYNC", param_id="slow/0/1-2")
        if said[2]:
            break
    slow.join()
    assert said[2].startswith(b"finished\tslow/0/1-2\tdefault\tSELECT sum(sleepEachRow")
    assert outcome == [500]


def test_a_kill_that_selects_nothing_says_nothing(client: Client, engine: Config) -> None:
    assert post(engine, b"KILL QUERY WHERE query_id = 'none' SYNC")[2] == b""
    client.command("KILL QUERY WHERE query_id LIKE 'usage-sink:%' SYNC")


def test_an_id_that_runs_is_refused_for_another_query(engine: Config) -> None:
    outcome: list[int] = []
    slow = threading.Thread(
        target=lambda: outcome.append(post(engine, SLOW.encode(), query_id="twice")[0])
    )
    slow.start()
    while not post(engine, b"KILL QUERY WHERE query_id = 'twice' TEST")[2]:
        assert not outcome
    _, headers, _ = post(engine, b"SELECT 1", query_id="twice")
    post(engine, b"KILL QUERY WHERE query_id = 'twice' SYNC")
    slow.join()
    assert headers["X-ClickHouse-Exception-Code"] == "216"
    assert post(engine, b"SELECT 1", query_id="twice")[0] == 200


def test_a_killed_insert_that_is_still_being_received_inserts_nothing(
    engine: Config, table: str
) -> None:
    host, port = host_port(engine.clickhouse)
    query = urlencode(
        {"database": "turnlog", "query_id": "half", "query": f"INSERT INTO {table} (a) FORMAT TSV"}
    )
    with socket.create_connection((host, port), timeout=60) as half:
        half.sendall(f"POST /?{query} HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n1\n".encode())
        said = b""
        while not said:
            said = post(engine, b"KILL QUERY WHERE query_id = 'half'")[2]
        half.sendall(b"2\n")
        assert b"X-ClickHouse-Exception-Code: 394" in half.recv(4096)
    assert said.startswith(b"waiting\thalf\t")
    assert post(engine, f"SELECT count() FROM {table}".encode())[2] == b"0\n"


async def test_the_async_client_speaks_it_too(engine: Config, table: str) -> None:
    client: AsyncClient = await clickhouse_connect.get_async_client(
        dsn=engine.clickhouse, database="turnlog"
    )
    try:
        await client.insert(
            table, [[n, "x", 0.5] for n in range(100)], column_names=["a", "b", "c"]
        )
        await client.raw_insert(table, ["a", "b"], avro(50), fmt="Avro")
        counts = await asyncio.gather(
            *(client.command(f"SELECT count() FROM {table}") for _ in range(8))
        )
        assert set(counts) == {150}
        with pytest.raises(DatabaseError, match="UNKNOWN_TABLE"):
            await client.query("SELECT * FROM nowhere")
    finally:
        await client.close()


def test_what_was_acknowledged_survives_kill_9(engine: Config, client: Client) -> None:
    client.command("CREATE TABLE kept (a UInt64, b String) ENGINE = MergeTree ORDER BY a")
    acknowledged = 0

    def feed() -> None:
        nonlocal acknowledged
        while post(engine, b"INSERT INTO kept (a, b) FORMAT Avro\n" + avro(1000))[0] == 200:
            acknowledged += 1

    def feed_until_death() -> None:
        try:
            feed()
        except OSError:
            return

    feeder = threading.Thread(target=feed_until_death, daemon=True)
    feeder.start()
    while acknowledged < 5:
        assert feeder.is_alive()
        time.sleep(0.01)
    running = PidFile(engine.home, "clickhouse").read()
    assert running is not None
    os.kill(running.pid, signal.SIGKILL)
    feeder.join()
    stack.up(engine, ["clickhouse"])
    _, _, said = post(engine, b"SELECT count(), sum(a) FROM kept")
    count, total = map(int, said.split())
    # The one in flight may have become a part before it could be acknowledged: whole or not at all.
    assert count in (acknowledged * 1000, (acknowledged + 1) * 1000)
    assert total == count // 1000 * sum(range(1000))
