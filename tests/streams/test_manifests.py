"""Reading the manifests: what is none is left out, and told in one line."""

import logging

import pytest

from streams.manifests import TOPIC, Manifest, live_manifests
from tests.streams.log import new_org, write_raw
from turnlog.config import Config


def test_what_is_no_manifest_is_told_in_one_line(
    stores: Config, caplog: pytest.LogCaptureFixture
) -> None:
    before = by_object(stores)
    org = new_org("odd")
    for number, value in enumerate([b"", b"null", b"\xff" * 40]):
        write_raw(stores, TOPIC, f"{org}/{number}".encode(), value)
    with caplog.at_level(logging.WARNING, "streams.manifests"):
        assert by_object(stores) == before
    (said,) = caplog.messages
    assert " records are no manifests, the first is " in said


def by_object(config: Config) -> dict[tuple[str, str], Manifest]:
    """Return the manifests in no order: partitions interleave."""
    return {(found.org, found.object): found for found in live_manifests(config)}
