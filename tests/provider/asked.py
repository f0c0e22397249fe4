"""What the local provider was asked, and what became of its answer."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Asked:
    """One request as it came.

    Attributes:
        path: the target as it was sent, with its query, without the scenario.
        headers: names and values in the order they came, repeats included.
        sent: bytes of the body that went out.
        ended: empty while it is answered; then whole, cut, close, stall, or gone where the client
            left first.
    """

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes = b""
    sent: int = 0
    ended: str = ""
    scenario: str = field(default="", repr=False)

    def header(self, name: str) -> list[str]:
        """Return every value of a header."""
        return [value for known, value in self.headers if known.lower() == name.lower()]

    def as_dict(self) -> dict[str, Any]:
        """Return what can be shown as JSON."""
        names = [name.lower() for name, _ in self.headers]
        shown = {"method": self.method, "path": self.path, "headers": names}
        return shown | {"body_bytes": len(self.body), "sent": self.sent, "ended": self.ended}
