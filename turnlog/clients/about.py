"""What a caller says of its calls without saying it to the provider."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Unpack

from turnlog.producer.fields import check_fields
from turnlog.recording import About

_said: ContextVar[Mapping[str, Any]] = ContextVar("turnlog_said")


@contextmanager
def annotate(**about: Unpack[About]) -> Iterator[None]:
    """Say what the model calls within are about.

    It holds for this thread or task and for the tasks it starts, and wins over what `wrap` was
    given; nested ones add up. Nothing of it goes to the provider.

    Args:
        **about: fields of the runs: user, conversation, run_group and others of
            `turnlog.producer.RunFields`.

    Raises:
        UsageError: a field is unknown or of the wrong type.

    Example:
        ```python
        with turnlog.annotate(user="u-7", conversation="c-12"):
            client.chat.completions.create(...)
        ```
    """
    check_fields(about, About, "a model call")
    token = _said.set({**said(), **about})
    try:
        yield
    finally:
        _said.reset(token)


def said() -> Mapping[str, Any]:
    """Return what was said for the code that runs now."""
    return _said.get({})
