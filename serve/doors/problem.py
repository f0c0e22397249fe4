"""What a refused request gets: problem details (RFC 9457), the same form for every refusal."""

from collections.abc import Mapping
from typing import Any


class Problem(Exception):
    """A refusal; the middleware turns it into `application/problem+json`.

    Attributes:
        status: HTTP status.
        code: a word that programs compare, such as `too_large`.
        detail: a sentence for a person; never content, never a credential.
        field: name of the field that is wrong, empty where none is.
        headers: further headers, such as `Retry-After`.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        field: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.field = field
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """Return the members of the problem document."""
        said = {"type": "about:blank", "title": self.code, "status": self.status}
        said["detail"] = self.detail
        return {**said, "field": self.field} if self.field else said
