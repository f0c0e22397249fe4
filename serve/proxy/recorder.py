"""What records an exchange on its way, or does not."""

from collections.abc import Mapping
from typing import Protocol


class Recorder(Protocol):
    """What an exchange tells; `turnlog.recording.Recording` is one. None of it waits or raises."""

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Take the beginning of the answer."""

    def data(self, data: bytes) -> None:
        """Take the next bytes of its body."""

    def done_later(self) -> None:
        """Take note that it has ended."""

    def cancelled_later(self) -> None:
        """Take note that its reader has left."""

    def broke_later(self, error: BaseException) -> None:
        """Take note that its connection broke, or never was."""


class Nobody:
    """Records nothing."""

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Do nothing; so do the others."""

    def data(self, data: bytes) -> None:
        """See `head`."""

    def done_later(self) -> None:
        """See `head`."""

    def cancelled_later(self) -> None:
        """See `head`."""

    def broke_later(self, error: BaseException) -> None:
        """See `head`."""
