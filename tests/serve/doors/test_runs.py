"""The life cycle of a run over HTTP: what is durable when, who may end it, and who looks alive."""

import asyncio
import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from serve.appending.seen import Patient
from serve.doors.life import Life, Lives
from serve.doors.run_fields import ENDS, digest, read_fields
from serve.runs_api import run_content, run_summary
from serve.views import wait_for
from sinks.redis import connect_async
from tests.serve.doors.door import Answer, Door, eventually, new_key, running_door
from tests.streams.log import write
from turnlog.apikeys import Role
from turnlog.config import Config
from turnlog.events import decode
from turnlog.ids import new_id
from turnlog.kafka import read_all
from turnlog.keeper_client import create
from turnlog.producer.writer import natural_event_id

ORG = "runs-door"


@pytest.fixture(scope="module")
def key(door: Door, stack: Config) -> str:
    return usable_key(door, stack)


def usable_key(door: Door, stack: Config, org: str = ORG, project: str = "default") -> str:
    made = new_key(stack, org, Role.PRODUCER, project)
    eventually(lambda: door.ask("POST", "/v1/events", made, []).status == 200)
    return made


def test_one_key_at_two_servers_at_once_is_one_beginning(door: Door, stack: Config) -> None:
    key = usable_key(door, stack)
    with running_door(stack) as second, ThreadPoolExecutor(4) as pool:
        eventually(lambda: second.ask("POST", "/v1/events", key, []).status == 200)
        runs = set()
        for n in range(8):
            named = {"provider": "openai", "idempotency_key": f"at-once-{n}"}
            asked = [named | {"user": f"u{m}"} for m in range(4)]
            doors = (door, second, door, second)
            answers = list(
                pool.map(lambda d, body: d.ask("POST", "/v1/runs", key, body), doors, asked)
            )
            assert sorted(answer.status for answer in answers) == [201, 409, 409, 409]
            runs |= {answer.json["run"] for answer in answers if answer.status == 201}
    events = [decode(m.value() or b"") for m in read_all(stack, "turnlog.runs")]
    begun = [e.body["run"] for e in events if e.type == "run.created" and e.body["run"] in runs]
    assert len(begun) == len(runs) == 8


class Client:
    """A gateway that is not in Python."""

    def __init__(self, door: Door, key: str) -> None:
        self.door = door
        self.key = key

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.door.ask("POST", f"/v1/runs{path}", self.key, body, named)

    def begin(self, **fields: Any) -> str:
        answer = self.post("", fields)
        assert answer.status == 201, answer.body
        return str(answer.json["run"])


@pytest.fixture(scope="module")
def client(door: Door, key: str) -> Client:
    return Client(door, key)


def test_a_run_from_beginning_to_end(client: Client, stack: Config) -> None:
    begun = client.post(
        "",
        {
            "provider": "openai",
            "model": "gpt-4o-mini",
            "conversation": "life",
            "user": "u1",
            "input": "Greet the world",
            "request": {"model": "gpt-4o-mini"},
        },
    )
    assert begun.status == 201
    assert begun.json["durable"] == "broker"
    assert begun.json["turn"]
    run = begun.json["run"]
    assert client.post(f"/{run}/chunks", {"chunks": ["Bon", {"text": "jour"}]}).json["noted"] == 2
    assert client.post(f"/{run}/heartbeat").json["status"] == "running"
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    ended = client.post(f"/{run}/complete", {"response": "Bonjour", "usage": usage})
    assert (ended.status, ended.json["status"], ended.json["durable"]) == (
        200,
        "completed",
        "broker",
    )
    assert not wait_for(stack, ["runs", "usage", "packs", "locator"])
    summary = run_summary(stack, ORG, run)
    assert (summary["status"], summary["usage"]["input_uncached"]) == ("completed", 5)
    assert summary["output"] == [{"index": 0, "text": "Bonjour"}]
    assert run_content(stack, ORG, run) == b"Bonjour"


def test_an_idempotency_key_is_one_run(client: Client) -> None:
    name, body = new_id("key"), {"provider": "openai", "conversation": "keyed"}
    first = client.post("", body, Idempotency_Key=name)
    again = client.post("", body, Idempotency_Key=name)
    assert (first.status, again.status) == (201, 200)
    assert [first.json[n] for n in ("run", "turn")] == [again.json[n] for n in ("run", "turn")]
    other = client.post("", body | {"provider": "anthropic"}, Idempotency_Key=name)
    assert (other.status, other.json["title"]) == (409, "conflict")
    client.post(f"/{first.json['run']}/cancel")
    assert client.post("", body, Idempotency_Key=name).status == 200


def test_a_run_ends_once(client: Client) -> None:
    run = client.begin(provider="openai")
    said = {"response": "x", "usage": {"input_uncached": 1}}
    first = client.post(f"/{run}/complete", said)
    again = client.post(f"/{run}/complete", said)
    assert (first.json["outcome"], again.json["outcome"]) == ("accepted", "duplicate")
    assert first.json["position"] == again.json["position"]
    for path, body in (
        ("complete", {"response": "y"}),
        ("fail", {"error": "late"}),
        ("cancel", None),
        ("chunks", ["late"]),
        ("heartbeat", None),
    ):
        answer = client.post(f"/{run}/{path}", body)
        assert (answer.status, answer.json["title"]) == (409, "ended"), path


@pytest.mark.parametrize(
    ("path", "said", "status"),
    [("fail", {"error": "boom", "http_status": 529}, "failed"), ("cancel", None, "cancelled")],
)
def test_other_ends(client: Client, stack: Config, path: str, said: Any, status: str) -> None:
    run = client.begin(provider="anthropic")
    assert client.post(f"/{run}/{path}", said).json["status"] == status
    assert not wait_for(stack, ["runs", "usage", "packs", "locator"])
    assert run_summary(stack, ORG, run)["status"] == status


def test_missing_and_foreign_runs_are_told_alike(client: Client, door: Door, stack: Config) -> None:
    create(stack, ORG, "side")
    run = client.begin(provider="openai")
    foreign = Client(door, usable_key(door, stack, "runs-door-other"))
    beside = Client(door, usable_key(door, stack, ORG, "side"))
    for path, body in (("chunks", ["x"]), ("complete", {}), ("heartbeat", None)):
        answers = [
            foreign.post(f"/{run}/{path}", body),
            foreign.post(f"/{new_id('run')}/{path}", body),
            beside.post(f"/{run}/{path}", body),
            beside.post(f"/no%20id%00/{path}", body),
        ]
        assert {answer.status for answer in answers} == {404}
        assert len({answer.body for answer in answers}) == 1
    client.post(f"/{run}/cancel")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (7, None),
        ({"colour": "red"}, "colour"),
        ({"provider": 7}, "provider"),
        ({"request": {"$base64": "%"}}, "request"),
        ({"streaming": "yes"}, "streaming"),
        ({"versions": {"prompt": 1}}, "versions"),
        ({"org": "another"}, "org"),
    ],
)
def test_a_wrong_field_of_a_beginning_is_named(client: Client, body: Any, field: Any) -> None:
    answer = client.post("", body)
    assert (answer.status, answer.json.get("field")) == (400, field)


@pytest.mark.parametrize("project", ["side", "nowhere", "a b"])
def test_a_project_that_the_key_has_not_is_not_there(client: Client, project: str) -> None:
    answer = client.post("", {"project": project})
    assert (answer.status, answer.json["field"]) == (404, "project")


def test_a_wrong_end_leaves_the_run_open(client: Client) -> None:
    run = client.begin(provider="openai")
    for said in ({"usage": {"input_uncached": -1}}, {"usage": 7}, {"reponse": "x"}):
        assert client.post(f"/{run}/complete", said).status == 400
    assert client.post(f"/{run}/complete", {"response": "x"}).status == 200


def test_a_batch_of_chunks_that_is_sent_again_is_shown_once(client: Client, stack: Config) -> None:
    run = client.begin(provider="openai")
    assert client.post(f"/{run}/chunks", {"first": 0, "chunks": ["a", "b"]}).json["noted"] == 2
    assert client.post(f"/{run}/chunks", {"first": 0, "chunks": ["a", "b"]}).json["noted"] == 2
    assert client.post(f"/{run}/chunks", {"first": 1, "chunks": ["b", "c"]}).json["noted"] == 3
    missing = client.post(f"/{run}/chunks", {"first": 5, "chunks": ["e"]})
    assert (missing.status, missing.json["title"]) == (409, "missing_chunks")
    bad = client.post(f"/{run}/chunks", ["d", {"text": 7}])
    assert (bad.status, bad.json["field"]) == (400, "chunks[1]")
    client.post(f"/{run}/complete", {})
    assert not wait_for(stack, ["runs", "usage", "packs", "locator"])
    assert run_summary(stack, ORG, run)["output"] == [{"index": 0, "text": "abc"}]


class Streaming:
    """A request whose body is sent piece by piece."""

    def __init__(self, client: Client, run: str, media_type: str) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", client.door.port, timeout=60)
        self._http.putrequest("POST", f"/v1/runs/{run}/chunks")
        self._http.putheader("Authorization", f"Bearer {client.key}")
        self._http.putheader("Content-Type", media_type)
        self._http.putheader("Transfer-Encoding", "chunked")
        self._http.endheaders()

    def send(self, data: bytes) -> None:
        self._http.send(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> Any:
        self._http.send(b"0\r\n\r\n")
        answer = self._http.getresponse()
        said = json.loads(answer.read())
        self._http.close()
        return said

    def drop(self) -> None:
        self._http.close()


def shown(stack: Config, run: str) -> int:
    """Characters of a run that stand in the log."""
    total = 0
    for message in read_all(stack, "turnlog.run-chunks"):
        event = decode(message.value() or b"")
        if event.type == "chunk.batch" and event.body["run"] == run:
            total += event.body["chars"]
    return total


@pytest.mark.parametrize(
    ("media_type", "pieces"),
    [
        ("text/plain", [b"Bonj", "ou\u00e9".encode()[:3], "ou\u00e9".encode()[3:]]),
        ("application/x-ndjson", [b'"Bonj"\n{"te', b'xt":"ou"}\n', b'"\\u00e9"']),
    ],
)
def test_a_streamed_body_is_shown_as_it_comes(
    client: Client, stack: Config, media_type: str, pieces: list[bytes]
) -> None:
    run = client.begin(provider="openai", streaming=True)
    stream = Streaming(client, run, media_type)
    stream.send(pieces[0])
    if media_type == "text/plain":
        # It is in the log while the body is still open.
        eventually(lambda: shown(stack, run) == 4)
    for piece in pieces[1:]:
        stream.send(piece)
    assert stream.end()["noted"] >= 2
    client.post(f"/{run}/complete", {})
    assert not wait_for(stack, ["runs", "usage", "packs", "locator"])
    assert run_summary(stack, ORG, run)["output"] == [{"index": 0, "text": "Bonjou\u00e9"}]


def test_a_stream_that_breaks_off_leaves_the_run_open(client: Client) -> None:
    run = client.begin(provider="openai", streaming=True)
    stream = Streaming(client, run, "text/plain")
    stream.send(b"Bon")
    stream.drop()
    eventually(lambda: client.post(f"/{run}/heartbeat").json["noted"] == 1)
    assert client.post(f"/{run}/cancel").status == 200


def heartbeats(stack: Config, run: str) -> int:
    count = 0
    for message in read_all(stack, "turnlog.run-chunks"):
        event = decode(message.value() or b"")
        count += event.type == "run.heartbeat" and event.body["run"] == run
    return count


def test_a_client_that_is_gone_looks_gone(stack: Config) -> None:
    with running_door(stack, TURNLOG_CLIENT_IDLE_S="1.5") as door:
        client = Client(door, usable_key(door, stack))
        gone, quiet = client.begin(provider="openai"), client.begin(provider="openai")
        # A heartbeat is due after 5 s.
        until = time.monotonic() + 6
        while time.monotonic() < until:
            assert client.post(f"/{quiet}/heartbeat").status == 200
            time.sleep(0.3)
        eventually(lambda: heartbeats(stack, quiet) == 1)
        assert heartbeats(stack, gone) == 0
        # It comes back.
        assert client.post(f"/{gone}/heartbeat").status == 200
        eventually(lambda: heartbeats(stack, gone) == 1)
        for run in (gone, quiet):
            assert client.post(f"/{run}/complete", {}).status == 200


def test_a_server_that_is_stopped_loses_nothing_of_what_was_shown(stack: Config) -> None:
    with running_door(stack) as door:
        client = Client(door, usable_key(door, stack))
        run = client.begin(provider="openai")
        client.post(f"/{run}/chunks", ["Bonjour"])
    assert shown(stack, run) == 7


def test_another_process_says_where_and_takes_over_what_was_lost(
    client: Client, stack: Config
) -> None:
    run = client.begin(provider="openai", conversation="handed-over")
    client.post(f"/{run}/chunks", ["Bon"])
    with running_door(stack, TURNLOG_CLIENT_IDLE_S="2") as lost:
        key = usable_key(lost, stack)
        elsewhere = Client(lost, key).post(f"/{run}/complete", {"response": "x"})
        assert (elsewhere.status, elsewhere.json["title"]) == (409, "elsewhere")
        mine = Client(lost, key).begin(provider="openai", conversation="handed-over")
        Client(lost, key).post(f"/{mine}/chunks", ["Bon"])
        eventually(lambda: shown(stack, mine) == 3)
        lost.process.kill()
        lost.process.wait()
    # Its process said a moment ago that it would live for 3 s.
    taken: list[Answer] = []

    def is_taken() -> bool:
        taken.append(client.post(f"/{mine}/chunks", ["jour"]))
        return taken[-1].status == 202

    eventually(is_taken)
    assert taken[0].json.get("title") == "elsewhere"
    # A client that counts its pieces hears which were lost with the process, and which were not.
    assert client.post(f"/{mine}/chunks", {"first": 3, "chunks": ["!"]}).status == 409
    again = client.post(f"/{mine}/chunks", {"first": 0, "chunks": ["Bon", "jour", "!"]})
    assert again.json == {"run": mine, "chunks": 3, "noted": 3}
    assert client.post(f"/{mine}/complete", {}).json["status"] == "completed"
    assert not wait_for(stack, ["runs", "usage", "packs", "locator"])
    summary = run_summary(stack, ORG, mine)
    assert (summary["status"], summary["output"]) == (
        "completed",
        [{"index": 0, "text": "Bonjour!"}],
    )
    client.post(f"/{run}/cancel")


SAID: dict[str, Any] = {"response": "Bonjour", "usage": {"input_uncached": 5, "output_text": 2}}


def ending(config: Config, run: str, reached: str) -> None:
    """Do what a process does that dies before it can answer `complete`."""

    async def announced() -> Life:
        redis = connect_async(config, 5)
        lives = Lives(redis, Patient())
        life, _ = await lives.find(ORG, run)
        assert life is not None
        call = digest({"how": "complete", **read_fields(SAID, ENDS["complete"])})
        await lives.write(ORG, run, life._replace(ended=call))
        await redis.aclose()
        return life

    life = asyncio.run(announced())
    body = {
        **life.common,
        "producer_id": new_id("producer"),
        "producer_epoch": 1,
        "occurred_at_us": life.began_us + 1,
    }
    events = {
        "run.completed": body | {"seq": 9, "status": "completed"},
        "usage.recorded": body | {"seq": 0, "sign": 1, "quality": "measured"} | SAID["usage"],
    }
    for name, given in events.items():
        if reached in (name, "both"):
            write(config, [(name, given | {"event_id": natural_event_id(name, given)})])


@pytest.mark.parametrize("reached", ["both", "run.completed", "usage.recorded", "nothing"])
def test_an_end_whose_answer_was_lost_with_its_process_is_booked_once(
    client: Client, stack: Config, reached: str
) -> None:
    with running_door(stack, TURNLOG_CLIENT_IDLE_S="2") as lost:
        run = Client(lost, usable_key(lost, stack)).begin(provider="openai")
        ending(stack, run, reached)
        lost.process.kill()
        lost.process.wait()
    answers: list[Answer] = []

    def is_ended() -> bool:
        answers.append(client.post(f"/{run}/complete", SAID))
        return answers[-1].status == 200

    eventually(is_ended)
    assert answers[-1].json["outcome"] == ("duplicate" if reached == "both" else "accepted")
    assert client.post(f"/{run}/complete", SAID).json["outcome"] == "duplicate"
    for other in (f"/{run}/cancel", f"/{run}/chunks"):
        assert client.post(other, ["x"] if other.endswith("chunks") else {}).status == 409
    assert not wait_for(stack, ["runs", "usage"])
    summary = run_summary(stack, ORG, run)
    used = summary["usage"]
    assert (summary["status"], used["input_uncached"], used["output_text"]) == ("completed", 5, 2)
