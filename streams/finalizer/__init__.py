"""The finalizer: every run ends, also when all who could end it are dead (DESIGN.md section 4)."""

from streams.finalizer.worker import GROUP, run

__all__ = ["GROUP", "run"]
