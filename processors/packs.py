"""What the archive holds: canonical rows of archived events, and which manifest owns what."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from processors.common import NULLABLE
from processors.intervals import holes, joined
from turnlog.events import Event
from turnlog.ids import stream_key

# DESIGN.md section 7 "Digests": what depends on where, when and under which key a copy was written.
LEFT_OUT = frozenset(
    {
        "frame",
        "key_tree",
        "key_day",
        "key_gen",
        "producer_id",
        "producer_epoch",
        "producer_seq",
        "may_repeat",
    }
)


Row = tuple[bytes, bytes, dict[str, Any]]

_INDEXED_IDS = ("org", "conversation", "run", "turn", "user")
_ID = "[A-Za-z0-9_-]"
_IDS = re.compile(f"{_ID}{{1,64}}(?:/{_ID}{{0,64}}){{{len(_INDEXED_IDS) - 1}}}")


def archivable(body: Mapping[str, Any]) -> bool:
    """Say whether the ids that the index of a pack and the locator would hold are ids (law 5)."""
    return _IDS.fullmatch("/".join([body[name] for name in _INDEXED_IDS])) is not None


def canonical(event: Event) -> Row | None:
    """Return `(stream key, event_id, row)` of an archived event: its whole body but `LEFT_OUT`.

    Empty values are left out too, so that a field which a later schema version adds changes no
    digest of earlier events. None where the archive refuses the event.
    """
    body = event.body
    if not archivable(body):
        return None
    row = {name: value for name, value in body.items() if _kept(name, value)}
    row["type"] = event.type
    if body["time_basis"] == "import":
        row.pop("occurred_at_us", None)
    key = stream_key(body["org"], body["conversation"], body["run"])
    return key, body["event_id"], row


def _kept(name: str, value: object) -> bool:
    if name in LEFT_OUT or value is None:
        return False
    return name in NULLABLE or value not in ("", b"", 0, {}, [])


class Span(NamedTuple):
    """Offsets `first` to `last` of one org in one partition, both included."""

    org: str
    topic: str
    partition: int
    first: int
    last: int


class Claims:
    """Which coordinates manifests have claimed so far; the first one to list a coordinate owns it.

    Manifests are folded in the order of the log. A manifest lists a coordinate when one of its
    ranges covers it and the record there belongs to the manifest's org.
    """

    def __init__(self) -> None:
        self._claimed: dict[tuple[str, str, int], list[tuple[int, int]]] = {}

    def claim(self, span: Span) -> list[Span]:
        """Claim a span; return the parts of it that nobody had claimed before."""
        owned = self._claimed.setdefault(span[:3], [])
        free = list(holes(owned, span.first, span.last))
        self._claimed[span[:3]] = joined([*owned, (span.first, span.last)])
        return [span._replace(first=first, last=last) for first, last in free]

    def claim_all(self, spans: Iterable[Span]) -> list[Span]:
        """Claim several spans, as one manifest does."""
        return [part for span in spans for part in self.claim(span)]

    def __contains__(self, coordinate: tuple[str, str, int, int]) -> bool:
        """Tell whether `(org, topic, partition, offset)` is claimed."""
        owned = self._claimed.get(coordinate[:3])
        if not owned:
            return False
        at = bisect_right(owned, (coordinate[3], _TOP)) - 1
        return at >= 0 and owned[at][1] >= coordinate[3]


_TOP = 1 << 63
