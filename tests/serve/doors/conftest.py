from collections.abc import Iterator

import pytest

from tests.serve.doors.door import Door, running_door
from turnlog.config import Config


@pytest.fixture(scope="session")
def door(stack: Config) -> Iterator[Door]:
    """A server that all tests share: use org names of your own."""
    with running_door(stack) as running:
        yield running
