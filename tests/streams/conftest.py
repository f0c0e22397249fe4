"""Stores and the key keeper without workers, for tests that are the worker themselves."""

from collections.abc import Iterator

import pytest

from tests.conftest import running_stack
from turnlog.config import Config


@pytest.fixture(scope="session")
def stores() -> Iterator[Config]:
    """The config of Kafka, S3, ClickHouse and the keeper that nobody but these tests writes to."""
    with running_stack(("kafka", "s3", "clickhouse", "keeper")) as config:
        yield config
