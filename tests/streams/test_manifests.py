"""Reading the manifests: what is none is left out, and told in one line."""

import logging

import pytest

from streams.manifests import TOPIC, live_manifests
from tests.streams.log import new_org, write_raw
from turnlog.config import Config


def test_what_is_no_manifest_is_told_in_one_line(
    stores: Config, caplog: pytest.LogCaptureFixture
) -> None:
    before = live_manifests(stores)
    org = new_org("odd")
    for number, value in enumerate([b"", b"null", b"\xff" * 40]):
        write_raw(stores, TOPIC, f"{org}/{number}".encode(), value)
    with caplog.at_level(logging.WARNING, "streams.manifests"):
        assert live_manifests(stores) == before
    (said,) = caplog.messages
    assert " records are no manifests, the first is " in said
