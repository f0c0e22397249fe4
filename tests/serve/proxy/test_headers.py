"""Headers of one connection stay on it; ours go nowhere; all others pass as they are."""

import pytest
from multidict import CIMultiDict

from serve.doors.problem import Problem
from serve.proxy.headers import Marks, for_client, for_upstream, marks_of, narrow_codings
from serve.proxy.settings import Settings, checked_upstream
from turnlog.errors import UsageError


def test_headers_of_the_connection_stay_on_it() -> None:
    sent = [
        ("Host", "proxy.example"),
        ("Connection", "keep-alive, X-Own"),
        ("x-own", "1"),
        ("Keep-Alive", "timeout=5"),
        ("TE", "trailers"),
        ("Transfer-Encoding", "chunked"),
        ("Expect", "100-continue"),
        ("Proxy-Authorization", "Basic eA=="),
        ("X-Turnlog-User", "ann"),
        ("x-turnlog-anything", "1"),
        ("Authorization", "Bearer k"),
        ("X-Repeat", "2"),
        ("x-repeat", "1"),
    ]
    assert list(for_upstream(sent, "api.example").items()) == [
        ("Authorization", "Bearer k"),
        ("X-Repeat", "2"),
        ("x-repeat", "1"),
        ("Host", "api.example"),
    ]


def test_connection_cannot_name_what_the_request_means() -> None:
    sent = [("Connection", "content-length, authorization"), ("Content-Length", "2")]
    assert for_upstream(sent, "a")["Content-Length"] == "2"


def test_the_provider_cannot_name_a_run() -> None:
    assert list(for_client([("X-Turnlog-Run", "other"), ("a", "1")])) == ["a"]


def test_marks_are_read_and_bounded() -> None:
    sent = CIMultiDict({"X-Turnlog-User": "ann", "x-turnlog-run-group": "nightly"})
    assert marks_of(sent) == Marks(user="ann", run_group="nightly")
    with pytest.raises(Problem) as refused:
        marks_of(CIMultiDict({"x-turnlog-project": "p" * 1025}))
    assert (refused.value.status, refused.value.field) == (400, "x-turnlog-project")


@pytest.mark.parametrize(
    ("offered", "passed"),
    [
        ("gzip, deflate", "gzip, deflate"),
        ("br;q=1.0, gzip;q=0.8, *;q=0.1", "gzip;q=0.8"),
        ("br", "identity"),
    ],
)
def test_only_codings_that_can_be_undone_are_offered(offered: str, passed: str) -> None:
    headers = CIMultiDict({"Accept-Encoding": offered})
    narrow_codings(headers)
    assert headers["Accept-Encoding"] == passed


@pytest.mark.parametrize(
    "url",
    [
        "api.openai.com",
        "ftp://x",
        "https://",
        "https://user:pass@x",
        "https://x/?key=1",
        "https://x#y",
        "https://x:99999",
        "https://x y",
        "",
    ],
)
def test_an_upstream_that_is_no_base_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="--upstream"):
        checked_upstream(url)


def test_the_provider_is_known_by_its_address() -> None:
    settings = Settings(upstream=checked_upstream("https://api.openai.com/"))
    assert (settings.upstream, settings.provider_name) == ("https://api.openai.com", "openai")
    assert settings.authority == "api.openai.com"
    assert Settings(upstream="http://127.0.0.1:8000/v1").provider_name == "127.0.0.1"
