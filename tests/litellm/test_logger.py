"""The logger in the real LiteLLM: each call is one run, and its proxy's too."""

import json
import os
import socket
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import openai
import pytest

from tests.provider import Provider, Recordings
from tests.turnlog.clients.kept import provider_thread
from tests.turnlog.producer.parts import content_of
from turnlog.config import Config
from turnlog.events import decode
from turnlog.kafka import read_all
from turnlog.keeper_client import create, credential_of, fetch_grant
from turnlog.keys import Grant

ORG = "litellm"
ENDS = ("run.completed", "run.failed", "run.cancelled", "run.interrupted")
OFFLINE = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOG": "ERROR",
    "DISABLE_ADMIN_UI": "True",
}
PASSED = ("PATH", "TURNLOG_SPOOL_AFTER_MS", "HOME")
MASTER = "sk-master-never-recorded"


class Written(NamedTuple):
    """The events of one run."""

    created: dict[str, Any]
    ended: dict[str, Any]
    usage: dict[str, Any]
    request: dict[str, Any]
    response: dict[str, Any]


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with provider_thread(Recordings.read()) as served:
        yield served


@pytest.fixture(scope="module")
def environment(stack: Config) -> dict[str, str]:
    create(stack, ORG)
    own = {name: os.environ[name] for name in PASSED if name in os.environ}
    credential = str(stack.credentials / f"{ORG}.json")
    return {**own, **OFFLINE, "TURNLOG_HOME": str(stack.home), "TURNLOG_CREDENTIAL": credential}


def written(config: Config) -> dict[str, list[Written]]:
    """The runs of the org by group, in the order in which they were created."""
    grant = fetch_grant(config, credential_of(config, ORG))
    events: dict[str, dict[str, Any]] = defaultdict(dict)
    for topic in ("turnlog.runs", "turnlog.usage"):
        for message in read_all(config, topic):
            event = decode(message.value() or b"")
            if event.body["org"] == ORG:
                kind = "ended" if event.type in ENDS else event.type
                assert kind not in events[event.body["run"]], "one of each"
                events[event.body["run"]][kind] = {**event.body, "type": event.type}
    found = defaultdict(list)
    for run in sorted(events.values(), key=lambda run: run["run.created"]["occurred_at_us"]):
        found[run["run.created"]["run_group"]].append(_written(run, grant))
    return found


def _written(run: dict[str, Any], grant: Grant) -> Written:
    created, ended = run["run.created"], run["ended"]
    request = content_of(grant, "run.created", created, "q")
    response = content_of(grant, ended["type"], ended, "o") if ended["frame"] else {}
    return Written(created, ended, run["usage.recorded"], request, response)


@pytest.fixture(scope="module")
def sdk(
    stack: Config, litellm_python: Path, environment: dict[str, str], provider: Provider
) -> dict[str, list[Written]]:
    """What the program left in the log."""
    program = Path(__file__).with_name("application.py")
    done = subprocess.run(
        [litellm_python, program, provider.url()],
        cwd=stack.home, env=environment, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return written(stack)


@pytest.mark.parametrize(
    ("name", "statuses"),
    [
        ("sync", ["completed"]),
        ("sync-stream", ["completed"]),
        ("sync-failed", ["failed"]),
        ("sync-embedding", ["completed"]),
        ("sync-left", ["cancelled"]),
        ("async", ["completed"]),
        ("async-stream", ["completed"]),
        ("anthropic", ["completed"]),
        ("async-limited", ["failed"]),
        ("retried", ["failed", "completed"]),
        ("embedding", ["completed"]),
        ("image", ["completed"]),
        ("responses", ["completed"]),
        ("unlogged", []),
        ("cancelled", ["cancelled"]),
        ("left", ["cancelled"]),
    ],
)
def test_each_call_of_the_sdk_is_one_run(
    sdk: dict[str, list[Written]], name: str, statuses: list[str]
) -> None:
    runs = sdk.get(name, [])
    assert [run.ended["status"] for run in runs] == statuses
    for run in runs:
        assert run.created["user"] == "u-1"
        assert "never" not in repr(run)


def test_nothing_but_what_was_called_is_in_the_log(sdk: dict[str, list[Written]]) -> None:
    assert len([run for runs in sdk.values() for run in runs]) == 16


def test_a_run_says_what_was_asked_and_answered(sdk: dict[str, list[Written]]) -> None:
    (run,) = sdk["async"]
    assert (run.created["provider"], run.created["model"]) == ("openai", "gpt-4o-mini")
    asked = json.loads(run.request["request"])
    assert asked["messages"] == [{"role": "user", "content": "Shorten the link, please."}]
    answer = json.loads(run.response["response"])
    assert run.response["output"][0]["text"] == answer["choices"][0]["message"]["content"]
    assert run.ended["finish_reason"] == "stop"


def test_usage_is_the_providers(sdk: dict[str, list[Written]]) -> None:
    recordings = Recordings.read()
    block = json.loads(recordings.by_id["smp-chat-plain"].response)["usage"]
    (run,) = sdk["async"]
    assert run.usage["quality"] == "measured"
    into = ("input_uncached", "cache_read", "cache_write_5m", "cache_write_1h", "audio_in")
    assert sum(run.usage[name] for name in into) == block["prompt_tokens"]
    out = ("output_text", "output_reasoning", "audio_out")
    assert sum(run.usage[name] for name in out) == block["completion_tokens"]
    claude = json.loads(recordings.by_id["smp-anthropic-tool-answer"].response)["usage"]
    (run,) = sdk["anthropic"]
    assert run.usage["input_uncached"] == claude["input_tokens"]
    assert run.usage["cache_read"] == claude.get("cache_read_input_tokens", 0)
    assert run.usage["output_text"] == claude["output_tokens"]


def test_an_attempt_that_failed_caused_the_next(sdk: dict[str, list[Written]]) -> None:
    first, second = sdk["retried"]
    assert second.created["causation_id"] == first.created["run"]
    assert first.ended["http_status"] == 500


CONFIG = """
model_list:
  - model_name: gpt
    litellm_params:
      model: openai/gpt-4o-mini
      api_base: {url}/v1
      api_key: sk-never-to-be-recorded
  - model_name: broken
    litellm_params:
      model: openai/gpt-4o-mini
      api_base: {url}/~status=500/v1
      api_key: sk-never-to-be-recorded
  - model_name: slow
    litellm_params:
      model: openai/gpt-4o-mini
      api_base: {url}/~stall=900,exchange=smp-groq-stream/v1
      api_key: sk-never-to-be-recorded
  - model_name: ascii
    litellm_params:
      model: openai/gpt-4o-mini
      api_base: {url}/~exchange=smp-groq-stream/v1
      api_key: sk-never-to-be-recorded
  - model_name: embed
    litellm_params:
      model: openai/text-embedding-3-small
      api_base: {url}/v1
      api_key: sk-never-to-be-recorded
litellm_settings:
  callbacks: turnlog.litellm.logger
  num_retries: 0
general_settings:
  master_key: {master}
"""


@contextmanager
def proxy(python: Path, folder: Path, env: dict[str, str], provider: Provider) -> Iterator[str]:
    """Run LiteLLM's proxy until the block is left; yield its base URL."""
    config = folder / "config.yaml"
    config.write_text(CONFIG.format(url=provider.url(), master=MASTER))
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    at = ["--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    command = [str(python.with_name("litellm")), *at]
    with (folder / "proxy.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log)
        try:
            yield _ready(process, f"http://127.0.0.1:{port}", folder / "proxy.log")
        finally:
            process.terminate()
            process.wait(60)


def _ready(process: "subprocess.Popen[bytes]", url: str, log: Path) -> str:
    for _ in range(600):
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            if httpx2.get(f"{url}/health/liveliness", timeout=5).status_code == 200:
                return url
        except httpx2.HTTPError:
            time.sleep(0.2)
    raise AssertionError(log.read_text()[-3000:])


def test_each_call_of_the_proxy_is_one_run(
    stack: Config,
    litellm_python: Path,
    environment: dict[str, str],
    provider: Provider,
    tmp_path: Path,
) -> None:
    def about(name: str) -> dict[str, Any]:
        return {"metadata": {"turnlog": {"run_group": f"p-{name}"}, "session_id": f"s-{name}"}}

    say: Any = [{"role": "user", "content": "Shorten the link, please."}]
    with proxy(litellm_python, tmp_path, environment, provider) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=MASTER, max_retries=0)
        ask = client.chat.completions.create
        assert ask(model="gpt", messages=say, extra_body=about("chat")).choices
        # Of the usual stream, LiteLLM's proxy cannot write half an emoji.
        assert list(ask(model="ascii", messages=say, stream=True, extra_body=about("stream")))
        with pytest.raises(openai.APIStatusError):
            ask(model="broken", messages=say, extra_body=about("failed"))
        client.embeddings.create(model="embed", input="a", extra_body=about("embedding"))
        for _ in ask(model="slow", messages=say, stream=True, extra_body=about("left")):
            break
        client.close()
        time.sleep(5)
    found = written(stack)
    statuses = {
        name: [run.ended["status"] for run in runs]
        for name, runs in found.items()
        if name.startswith("p-")
    }
    assert statuses == {
        "p-chat": ["completed"],
        "p-stream": ["completed"],
        "p-failed": ["failed"],
        "p-embedding": ["completed"],
        "p-left": ["cancelled"],
    }
    (run,) = found["p-chat"]
    assert run.created["conversation"] == "s-chat"
    assert "never" not in repr(found)
