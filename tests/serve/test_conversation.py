"""`turnlog conversation` and what is behind it, on a log that a producer wrote."""

import asyncio
import json
import sys
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from processors.conversation_rows import unpack_turn
from serve.cli import main
from serve.conversation_api import is_whole, read_conversation
from serve.views import wait_for
from sinks.redis import connect
from sinks.redis.conversations import Conversations, hash_key, turn_field
from streams.conversations.rebuild import records
from turnlog import Producer
from turnlog.config import Config
from turnlog.errors import NotFound
from turnlog.ids import event_id, stream_key
from turnlog.kafka import partition_of, partitions_of
from turnlog.keeper_client import create, credential_of, puncture
from turnlog.keys.targets import Target

FILE = "recorded/a file.jsonl"
ANSWER = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"Four."}}]}'


class Done(NamedTuple):
    returncode: int
    stdout: bytes
    stderr: bytes


Turnlog = Callable[..., Done]


@pytest.fixture
def turnlog(
    stack: Config, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Turnlog:
    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["turnlog", *arguments])
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(int(ended.value.code or 0), *capfdbinary.readouterr())

    return run


async def talk(config: Config, org: str) -> None:
    """A question, its answer, a second question, a sibling of that, an answer in progress."""
    async with Producer.open(config, credential_of(config, org)) as producer:
        async with producer.run(
            org=org, conversation="talk", run="run_1", user="u1", provider="p", model="m",
            input="Two and\ntwo? 🙂", request=b"{}",
        ) as run:  # fmt: skip
            run.chunk("Fo")
            run.chunk("ur.")
            await run.complete(response=ANSWER, usage={"output_text": 2}, finish_reason="stop")
        turn: dict[str, Any] = {"org": org, "conversation": "talk", "user": "u1"}
        await producer.turn(**turn, turn="q2", text="And three?")
        await producer.turn(**turn, turn="q2b", text="And five?", parent_turn="q2")
        answer = {
            "org": org,
            "project": "default",
            "conversation": "talk",
            "turn": "a2",
            "role": "assistant",
            "run": "run_2",
            "answer_run": "run_2",
            "occurred_at_us": 1,
            "event_id": event_id(org, "run_2", "turn.appended", "a2"),
        }
        await producer.append("turn.appended", answer)
        await producer.turn(org=org, conversation=FILE, text="from a file")
        await producer.turn(org=org, conversation="gone", turn="secret", text="forget me")
        await producer.turn(org=org, conversation="gone", turn="kept", text="keep me")


def erase_turn(config: Config, org: str, conversation: str, turn: str) -> None:
    """Have the keeper puncture a turn's key."""
    stream = stream_key(org, conversation, "")
    row = unpack_turn(Conversations(connect(config)).read(stream)[turn_field(turn)])
    tree, day, gen = row.locator
    assert puncture(
        config, org, "default", [Target("key", tree, day, row.user, gen, conversation, turn, "t")]
    )


@pytest.fixture(scope="module")
def org(stack: Config) -> str:
    name = f"talk_{uuid.uuid4().hex[:8]}"
    create(stack, name)
    asyncio.run(talk(stack, name))
    assert wait_for(stack, ["conversations", "runs"], 120) == {}
    return name


def texts(found: dict[str, Any]) -> list[tuple[int, str, str | None, str | None]]:
    return [(t["turn_seq"], t["role"], t["status"], t["text"]) for t in found["turns"]]


def test_a_conversation_is_printed_with_texts_joined_from_its_runs(
    turnlog: Turnlog, org: str
) -> None:
    done = turnlog("conversation", "talk", "--org", org, "--json")
    assert done.returncode == 0 and done.stderr == b""
    found = json.loads(done.stdout)
    assert set(found) == {"conversation", "leaf", "turns"}
    assert (found["conversation"], found["leaf"]) == ("talk", "a2")
    assert texts(found) == [
        (1, "user", None, "Two and\ntwo? 🙂"),
        (2, "assistant", "completed", "Four."),
        (3, "user", None, "And three?"),
        (5, "assistant", "running", ""),
    ]
    first, second, *_ = found["turns"]
    assert set(first) == {"turn", "parent", "turn_seq", "role", "run", "status", "text"}
    assert (first["parent"], first["run"]) == (None, None)
    assert (second["parent"], second["run"]) == (first["turn"], "run_1")


def test_all_turns_are_shown_on_request(turnlog: Turnlog, org: str) -> None:
    found = json.loads(turnlog("conversation", "talk", "--org", org, "--all", "--json").stdout)
    assert [turn["turn_seq"] for turn in found["turns"]] == [1, 2, 3, 4, 5]
    assert texts(found)[3] == (4, "user", None, "And five?")


def test_people_read_a_dialog(turnlog: Turnlog, org: str) -> None:
    printed = turnlog("conversation", "talk", "--org", org).stdout.decode()
    assert printed.startswith("talk  (4 turns)\n")
    assert "\n   1  user" in printed and "\n      Two and\n      two? 🙂\n" in printed
    assert "assistant  completed\n      Four.\n" in printed and "q2" not in printed
    tree = turnlog("conversation", "talk", "--org", org, "--all").stdout.decode()
    assert (
        "user  q2b, after q2\n      And five?\n" in tree and "running, a2, after q2, leaf" in tree
    )


def test_a_conversation_is_found_by_the_value_that_its_import_named(
    turnlog: Turnlog, org: str
) -> None:
    found = json.loads(turnlog("conversation", FILE, "--org", org, "--json").stdout)
    assert found["conversation"].startswith("x_")
    assert [turn["text"] for turn in found["turns"]] == ["from a file"]


@pytest.mark.parametrize("conversation", ["nobody", "not an id/at all", "x" * 300])
def test_missing_and_foreign_get_the_same_answer(
    stack: Config, turnlog: Turnlog, org: str, conversation: str
) -> None:
    create(stack, "other_talk")
    wanted = f"turnlog: conversation {conversation}: not found\n".encode()
    for name in (org, "other_talk", "no_such_org", "../x"):
        done = turnlog("conversation", conversation, "--org", name, "--json")
        assert (done.returncode, done.stdout, done.stderr) == (1, b"", wanted)
    with pytest.raises(NotFound):
        read_conversation(stack, "other_talk", "talk")


def test_a_conversation_that_redis_lost_reads_the_same(stack: Config, org: str) -> None:
    before = read_conversation(stack, org, "talk", everything=True)
    stream = stream_key(org, "talk", "")
    redis = connect(stack)
    redis.delete(hash_key(stream))
    assert read_conversation(stack, org, "talk", everything=True) == before
    hot = Conversations(redis)
    assert is_whole(hot.read(stream))
    redis.hdel(hash_key(stream), turn_field("q2"))
    assert read_conversation(stack, org, "talk", everything=True) == before


def test_what_kafka_no_longer_has_is_read_from_packs(stack: Config, org: str) -> None:
    assert wait_for(stack, ["packs"], 120) == {}
    stream = stream_key(org, "talk", "")
    number = partition_of(stream, len(partitions_of(stack, "turnlog.turns")))
    whole = list(records(stack, stream, number, 0))
    assert len(whole) == 5
    for start in (whole[2][0], whole[-1][0] + 1):
        assert list(records(stack, stream, number, start)) == whole


def test_without_redis_a_conversation_is_read_from_the_log(stack: Config, org: str) -> None:
    before = read_conversation(stack, org, "talk")
    away = stack.model_copy(update={"redis": "redis://127.0.0.1:1/0"})
    assert read_conversation(away, org, "talk") == before


def test_a_text_whose_key_was_erased_is_null(stack: Config, turnlog: Turnlog, org: str) -> None:
    erase_turn(stack, org, "gone", "secret")
    done = turnlog("conversation", "gone", "--org", org, "--json")
    assert done.returncode == 0
    assert [turn["text"] for turn in json.loads(done.stdout)["turns"]] == [None, "keep me"]
    assert b"[erased]" in turnlog("conversation", "gone", "--org", org).stdout


def test_a_frame_that_does_not_open_is_named_and_the_rest_is_shown(
    stack: Config, turnlog: Turnlog, org: str
) -> None:
    stream = stream_key(org, "talk", "")
    redis = connect(stack)
    frame = redis.hget(hash_key(stream), b"f:q2")
    assert isinstance(frame, bytes)
    redis.hset(hash_key(stream), b"f:q2", frame[:-1] + bytes([frame[-1] ^ 1]))
    try:
        done = turnlog("conversation", "talk", "--org", org, "--json")
    finally:
        redis.delete(hash_key(stream))
    assert done.returncode == 1
    assert b"turnlog.turns/" in done.stderr and b"does not open" in done.stderr
    assert texts(json.loads(done.stdout))[2] == (3, "user", None, None)


def test_help_teaches_by_an_example(turnlog: Turnlog) -> None:
    printed = turnlog("conversation", "--help").stdout.decode()
    assert "turnlog conversation conv_1 --org local --json" in printed
