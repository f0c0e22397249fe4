"""Which requests are recorded, and where every request goes."""

import pytest

from serve.doors.problem import Problem
from serve.proxy.calls import is_call, target_of
from tests.provider.recordings import CHECKOUT_SAMPLES, SHARED, exchanges
from turnlog.providers import Source


@pytest.mark.parametrize(
    "target",
    [
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/responses/compact",
        "/v1/embeddings?api-version=1",
        "/v1/images/edits",
        "/v1/audio/transcriptions",
        "/openai/deployments/m/chat/completions?api-version=2024-10-21",
        "/v1/messages?beta=true",
        "/v1/threads/runs",
        "/v1/threads/thread_1/runs",
        "/v1beta/models/gemini-2.5-flash:generateContent?key=k",
        "/v1beta/models/gemini-2.5-flash:streamGenerateContent",
        "/v1beta/models/text-embedding:batchEmbedContents",
        "/v1/projects/p/locations/l/publishers/google/models/g:streamRawPredict",
        "/model/amazon.nova-micro-v1%3A0/converse-stream",
        "/model/amazon.nova-micro-v1%3A0/invoke",
        "/api/chat",
        "/v1/anything-new",
    ],
)
def test_a_post_that_calls_a_model_is_one(target: str) -> None:
    assert is_call("POST", target)


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/v1/models"),
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/files"),
        ("POST", "/v1/uploads/u/parts"),
        ("POST", "/v1/batches"),
        ("POST", "/v1/messages/batches"),
        ("POST", "/v1/messages/count_tokens?beta=true"),
        ("POST", "/v1beta/models/g:countTokens"),
        ("POST", "/model/m/count-tokens"),
        ("POST", "/v1/threads"),
        ("POST", "/v1/threads/t/messages"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("POST", "/upload/v1beta/files"),
        ("POST", "/api/pull"),
        ("OPTIONS", "/v1/chat/completions"),
        ("HEAD", "/v1/chat/completions"),
    ],
)
def test_what_calls_no_model_is_none(method: str, target: str) -> None:
    assert not is_call(method, target)


def _recorded() -> list[Source]:
    files = [CHECKOUT_SAMPLES, SHARED / "streams.jsonl"]
    return [source for path in files if path.exists() for source in exchanges(path)]


def test_every_recorded_stream_is_a_call() -> None:
    streams = [source for source in _recorded() if source.streaming]
    assert [s.path for s in streams if not is_call(s.method, s.path)] == []


@pytest.mark.parametrize(
    ("raw", "target"),
    [
        ("/v1/a%3Ab?x=%20y+z", "/v1/a%3Ab?x=%20y+z"),
        ("http://elsewhere.example:81/v1/models?a=b", "/v1/models?a=b"),
        ("HTTPS://elsewhere.example", "/"),
        ("//elsewhere.example/v1", "//elsewhere.example/v1"),
        ("/v1#fragment", "/v1"),
    ],
)
def test_a_target_names_a_path_and_never_a_host(raw: str, target: str) -> None:
    assert target_of(raw) == target


@pytest.mark.parametrize(
    "raw", ["*", "elsewhere.example:443", "gopher://x/y", "@elsewhere.example"]
)
def test_a_target_without_a_path_is_refused(raw: str) -> None:
    with pytest.raises(Problem) as refused:
        target_of(raw)
    assert refused.value.status == 400
