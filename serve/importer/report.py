"""What an import did, line by line, in one object."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

# So that a file that is not what it claims prints kilobytes and not megabytes.
MAX_LISTED = 1000
MAX_ID_CHARS = 128


@dataclass(slots=True)
class Noted:
    """Lines and what was found about them; only the first thousand are listed, all are counted."""

    count: int = 0
    listed: list[dict[str, Any]] = field(default_factory=list)

    def add(self, line_id: str, reason: str, number: int | None = None) -> None:
        """Note a line by its id, and by its number from 1 where the id is not already that."""
        self.count += 1
        if len(self.listed) < MAX_LISTED:
            own = number is not None and line_id != f"line:{number}"
            place = {"line": number} if own else {}
            self.listed.append({"id": _printable(line_id), "reason": reason, **place})

    def rows(self) -> list[dict[str, Any]]:
        """Return what is listed, and how many more there were."""
        more = self.count - len(self.listed)
        return [
            *self.listed,
            *([{"id": "", "reason": f"and {more} more"}] if more else []),
        ]


@dataclass(slots=True)
class Report:
    """Counts of an import.

    Attributes:
        exchanges: lines that are not blank; runs, already, erased and rejected add up to it.
        runs: runs that were written.
        already: lines found in the views with the same content.
        erased: lines found under an erased key; nothing of them was written.
        read_again: of those that were there already, lines whose usage is booked only now.
        by_status: runs that were written, by terminal status.
        usage: runs that were written, by the quality of their usage.
        no_usage: runs that were written with unknown usage, by the reason.
        warnings: what a person should know.
        rejected: lines of which nothing was written, and why.
    """

    exchanges: int = 0
    runs: int = 0
    already: int = 0
    erased: int = 0
    read_again: int = 0
    by_status: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("completed", "failed", "cancelled", "interrupted"), 0
        )
    )
    usage: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("measured", "estimated", "unknown"), 0)
    )
    no_usage: Counter[str] = field(default_factory=Counter)
    warnings: Noted = field(default_factory=Noted)
    rejected: Noted = field(default_factory=Noted)

    def as_dict(self) -> dict[str, Any]:
        """Return the object that `turnlog import --json` prints."""
        return {
            "exchanges": self.exchanges,
            "runs": self.runs,
            "already": self.already,
            "erased": self.erased,
            "read_again": self.read_again,
            "by_status": self.by_status,
            "usage": self.usage,
            "warnings": self.warnings.rows(),
            "rejected": self.rejected.rows(),
        }


def _printable(line_id: str) -> str:
    """Cut an id to what a terminal can take; what has no UTF-8 is replaced."""
    return line_id[:MAX_ID_CHARS].encode("utf-8", "replace").decode()
