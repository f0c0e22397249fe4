"""The stores of one stack, broken in every way that must not hurt, with their data looked at."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import clickhouse_connect
import psutil
import pytest
import redis
from confluent_kafka import Consumer, Producer, TopicPartition

from local import process, stack
from local.parts import NAMES, PARTS
from local.process import PidFile
from tests.conftest import running_stack
from turnlog.config import Config, load
from turnlog.errors import UsageError
from turnlog.s3 import s3_client

STORES = ("kafka", "s3", "redis", "clickhouse")
TOPIC = "turnlog.audit"
BEGAN_S = time.time()


@pytest.fixture(scope="module")
def stores() -> Iterator[Config]:
    """Stores that the tests of this module break one after the other and bring up again."""
    with running_stack(STORES) as config:
        yield config


def write(config: Config, marker: str) -> None:
    """Leave a marker in every store, acknowledged."""
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": config.kafka, "enable.idempotence": True})
    producer.produce(
        TOPIC, marker, partition=0, on_delivery=lambda error, _: failures.append(error)
    )
    assert producer.flush(30) == 0
    assert failures == [None]
    s3_client(config).put_object(Bucket=config.content_bucket, Key=marker, Body=marker)
    with redis.Redis.from_url(config.redis) as hot:
        hot.set(marker, marker)
    with clickhouse_connect.get_client(dsn=config.clickhouse) as client:
        client.command("CREATE DATABASE IF NOT EXISTS test")
        client.command(
            "CREATE TABLE IF NOT EXISTS test.markers (marker String)"
            " ENGINE = MergeTree ORDER BY marker"
        )
        client.insert("test.markers", [[marker]], column_names=["marker"])


def missing(config: Config, markers: set[str]) -> dict[str, set[str]]:
    """Return which markers each store does not hold."""
    found = {
        "kafka": _in_kafka(config),
        "s3": _in_s3(config),
        "redis": _in_redis(config),
        "clickhouse": _in_clickhouse(config),
    }
    return {store: markers - held for store, held in found.items() if markers - held}


def _in_kafka(config: Config) -> set[str]:
    consumer = Consumer({"bootstrap.servers": config.kafka, "group.id": "test"})
    try:
        end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=30)[1]
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        found: list[str] = []
        while len(found) < end:
            found += [
                value.decode()
                for message in consumer.consume(100, timeout=5)
                if message.error() is None and (value := message.value())
            ]
        assert len(found) == len(set(found))
        return set(found)
    finally:
        consumer.close()


def _in_s3(config: Config) -> set[str]:
    page = s3_client(config).list_objects_v2(Bucket=config.content_bucket)
    return {item["Key"] for item in page["Contents"]}


def _in_redis(config: Config) -> set[str]:
    with redis.Redis.from_url(config.redis, decode_responses=True) as hot:
        return set(hot.keys())


def _in_clickhouse(config: Config) -> set[str]:
    with clickhouse_connect.get_client(dsn=config.clickhouse) as client:
        return {row[0] for row in client.query("SELECT marker FROM test.markers").result_rows}


def pids(config: Config) -> dict[str, int | None]:
    return {part.name: part.pid for part in stack.status(config) if part.name in STORES}


def states(config: Config) -> dict[str, str]:
    return {part.name: part.state for part in stack.status(config)}


def kill_9(config: Config, *names: str) -> None:
    """Kill parts and wait until the kernel has let go of them."""
    for name in names:
        running = PidFile(config.home, name).read()
        assert running is not None
        os.kill(running.pid, signal.SIGKILL)
    while any(PidFile(config.home, name).read() for name in names):
        time.sleep(0.01)


def turnlog(config: Config, *arguments: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "TURNLOG_HOME": str(config.home)}
    command = [sys.executable, "-m", "serve", *arguments]
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )


def ours(home: Path) -> list[str]:
    """Return the parts of a stack that have any process."""
    return [name for name in NAMES if name in process.marked(home)]


def ports(config: Config) -> dict[str, int]:
    kept: dict[str, int] = json.loads((config.home / "ports.json").read_text())
    return kept


@contextmanager
def taken(*wanted: int) -> Iterator[None]:
    """Listen on ports, as another program would."""
    with ExitStack() as sockets:
        for port in wanted:
            listener = sockets.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen()
        yield


def test_a_second_up_changes_nothing(stores: Config) -> None:
    before = pids(stores), ports(stores)
    assert stack.up(stores, STORES) == stores
    assert (pids(stores), ports(stores)) == before
    assert stores.home.stat().st_mode & 0o777 == 0o700


def test_everything_listens_on_loopback_alone(stores: Config) -> None:
    heard = {
        connection.laddr.ip
        for pid in pids(stores).values()
        for connection in psutil.Process(pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert heard <= {"127.0.0.1", "::ffff:127.0.0.1"}


def test_concurrent_ups_start_each_part_once(stores: Config) -> None:
    stack.down(stores, ["redis", "clickhouse"])
    callers = [turnlog(stores, "up", "redis", "clickhouse") for _ in range(3)]
    outcomes = [caller.communicate(timeout=300) for caller in callers]
    assert outcomes == [(b"", b"")] * 3  # quiet in a pipe
    assert [caller.returncode for caller in callers] == [0, 0, 0]
    for name in ("redis", "clickhouse"):
        assert len(process.marked(stores.home)[name]) == 1


def test_acknowledged_data_survive_kill_9_of_every_store_at_once(stores: Config) -> None:
    write(stores, "before-kill")
    kill_9(stores, *STORES)
    assert {states(stores)[name] for name in STORES} == {"died"}
    again = stack.up(stores, STORES)
    assert again == stores
    assert missing(stores, {"before-kill"}) == {}
    write(stores, "after-kill")
    assert missing(stores, {"before-kill", "after-kill"}) == {}


def test_data_survive_down_and_a_move_of_every_port(stores: Config) -> None:
    write(stores, "before-move")
    assert sorted(stack.down(stores)) == sorted(STORES)
    assert ours(stores.home) == []
    kept = ports(stores)
    found = {path for port in kept.values() for path in Path("/tmp").glob(f"*{port}*.sock")}
    # One from before is of a process that was killed there once, and whose port came round again.
    assert {path for path in found if path.lstat().st_mtime > BEGAN_S} == set()
    told: list[str] = []
    with taken(*kept.values()):
        moved = stack.up(stores, STORES, told.append)
        used = {name for part in PARTS if part.name in STORES for name in part.ports}
        assert all(ports(stores)[name] != kept[name] for name in used)
        assert any(line.startswith(f"kafka: port {kept['kafka']} is taken by ") for line in told)
        assert missing(moved, {"before-move"}) == {}
        write(moved, "after-move")
    assert load(home=stores.home) == moved
    stack.down(moved)
    again = stack.up(moved, STORES)
    assert missing(again, {"before-move", "after-move"}) == {}


def test_a_stale_pid_file_hurts_nobody(stores: Config) -> None:
    now = load(home=stores.home)
    stack.down(now, ["redis"])
    with subprocess.Popen(["sleep", "600"]) as stranger:
        # The pid of a redis that died long ago, given to someone else since.
        stale = process.Running(stranger.pid, "another boot/1", {})
        PidFile(now.home, "redis").write(stale)
        assert states(now)["redis"] == "died"
        stack.up(now, ["redis"])
        assert states(now)["redis"] == "running"
        PidFile(now.home, "redis").write(stale)
        stack.down(now, ["redis"])
        assert stranger.poll() is None
        stranger.kill()
    assert ours(now.home) == ["kafka", "s3", "clickhouse"]


def test_a_process_without_a_pid_file_is_replaced(stores: Config) -> None:
    now = load(home=stores.home)
    stack.up(now, ["redis"])
    old = pids(now)["redis"]
    PidFile(now.home, "redis").remove()
    stack.up(now, ["redis"])
    assert [p.pid for p in process.marked(now.home)["redis"]] == [pids(now)["redis"]] != [old]


def test_a_given_address_is_used_and_nothing_started(stores: Config, tmp_path: Path) -> None:
    now = load(home=stores.home)
    config = load(home=tmp_path / "other", redis=now.redis, clickhouse="http://127.0.0.1:9")
    stack.up(config, ["redis", "clickhouse"])
    shown = {part.name: part for part in stack.status(config)}
    assert shown["redis"] == ("redis", "external", None, now.redis, "running")
    assert shown["clickhouse"].state == "unreachable"
    assert ours(config.home) == []
    assert stack.down(config) == []
    assert states(now)["redis"] == "running"


def test_two_stacks_run_side_by_side(stores: Config) -> None:
    first = load(home=stores.home)
    with running_stack(("s3", "redis")) as second:
        assert {first.s3, first.redis}.isdisjoint({second.s3, second.redis})
        with redis.Redis.from_url(first.redis) as one, redis.Redis.from_url(second.redis) as two:
            one.set("whose", "first")
            assert two.get("whose") is None
        stack.down(second)
        assert ours(second.home) == []
    assert states(first)["redis"] == "running"


def test_a_store_that_cannot_start_shows_its_log(stores: Config) -> None:
    now = load(home=stores.home)
    stack.down(now, ["redis"])
    manifest = now.home / "redis" / "appendonlydir" / "appendonly.aof.manifest"
    text = manifest.read_text()
    manifest.write_text("not a manifest\n")
    caller = turnlog(now, "up", "redis")
    _, said = caller.communicate(timeout=300)
    assert caller.returncode == 1
    assert said.startswith(b"turnlog: redis ended while it was starting (exit code 1); its log is ")
    assert b"manifest" in said
    assert b"Traceback" not in said
    manifest.write_text(text)
    stack.up(now, ["redis"])
    assert "before-move" in _in_redis(now)


def test_an_unknown_name_is_refused_with_the_names(tmp_path: Path) -> None:
    config = load(home=tmp_path)
    with pytest.raises(UsageError, match="no part 'kafak'; the parts are kafka s3 redis"):
        stack.up(config, ["kafak"])
    with pytest.raises(UsageError, match="no part 'kafak'"):
        stack.down(config, ["kafak"])


def test_down_without_a_stack_makes_nothing(tmp_path: Path) -> None:
    assert stack.down(load(home=tmp_path / "none")) == []
    assert not (tmp_path / "none").exists()


def test_a_part_that_hangs_is_seen_and_stopped_all_the_same(stores: Config) -> None:
    now = load(home=stores.home)
    stack.up(now, STORES)
    pid = pids(now)["redis"]
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    assert states(now)["redis"] in ("starting", "failing")
    stack.down(now, ["redis"])
    assert states(now)["redis"] == "stopped"
    assert "redis" not in ours(now.home)
