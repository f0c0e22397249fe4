"""The key keeper: the one process that creates, mints and grants keys. Worker `keeper`."""

from streams.keeper.worker import run

__all__ = ["run"]
