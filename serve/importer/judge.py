"""Whether a line is new, there already, erased, or another one under the same id."""

from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple

from serve.importer.events import Event, Ids, Scope
from serve.importer.found import Known, Stored
from streams.content import Content
from turnlog.config import Config
from turnlog.errors import Erased, KeyUnavailable, TooLarge
from turnlog.keys import MAX_FRAME_BYTES, Grant, Locator, Subject
from turnlog.keys.content import compress, pack
from turnlog.keys.frames import OVERHEAD_BYTES

RUNS_TOPIC = "turnlog.runs"
# Content that does not compress at all grows by less than this in zstd.
_ZSTD_GROWTH_BYTES = 4096


class Verdict(NamedTuple):
    """What to do with a line.

    Attributes:
        kind: write, already, erased or rejected.
        reason: why it is rejected.
        locator: under which the run is written.
        turn_locator: under which its input turn is written.
    """

    kind: str
    reason: str = ""
    locator: Locator | None = None
    turn_locator: Locator | None = None


class Judge:
    """Decides over lines; opens stored content only where MACs do not answer.

    Args:
        config: where the parts are.
        grant: returns the keys of today; a long import outlives one grant.
        scope: for whom is written.
        opens: whether content is opened at all; where not, other MACs are another line, and where
            there is no key to compare them by, the same id is the same line.
    """

    def __init__(
        self, config: Config, grant: Callable[[], Grant], scope: Scope, opens: bool = True
    ) -> None:
        self._grant = grant
        self._scope = scope
        self._opens = opens
        self._content = Content(config)

    def __enter__(self) -> "Judge":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._content.close()

    def judge(self, events: list[Event], ids: Ids, known: Known | None, user: str = "") -> Verdict:
        """Return what to do with a line of these events, given what the views have of it."""
        if known is not None and known.project != self._scope.project:
            return Verdict("rejected", "conflict")
        if any(event.content and frame_too_large(event.content) for event in events):
            return Verdict("rejected", "too_large")
        try:
            return self._new(ids, user) if known is None else self._found(events, ids, known, user)
        except Erased:
            return Verdict("erased")

    def _new(self, ids: Ids, user: str) -> Verdict:
        run = self._begin(ids, user, ids.run, "o")
        return Verdict("write", "", run, self._begin(ids, user, ids.input, "t"))

    def _begin(self, ids: Ids, user: str, subject: str, kind: str) -> Locator:
        return self._grant().begin(
            self._scope.org,
            self._scope.project,
            user=user,
            conversation=ids.conversation,
            subject_id=subject,
            kind=kind,
        )

    def _found(self, events: list[Event], ids: Ids, known: Known, user: str) -> Verdict:
        created, terminal = events[0], events[-1]
        pairs = ((created, known.created), (terminal, known.terminal))
        if not all(self._same(event, stored, known) for event, stored in pairs if stored):
            return Verdict("rejected", "conflict")
        if known.complete and known.created and known.terminal:
            return Verdict("already")
        try:
            self._check_keys(ids, known.locator, user)
        except KeyUnavailable:
            # Begun on a day that no producer has keys of any more: its end cannot be sealed.
            return Verdict("rejected", "key_unavailable")
        return Verdict("write", "", known.locator, known.locator)

    def _check_keys(self, ids: Ids, locator: Locator, user: str) -> None:
        for kind in "oq":
            subject = Subject(self._scope.org, user, ids.conversation, ids.run, kind)
            self._grant().data_key(locator, subject)

    def _same(self, event: Event, stored: Stored, known: Known) -> bool:
        """Say whether an event says what is stored: by its MAC, else by what was sent and received.

        The second way is for output that a newer reader puts together differently, and for keys
        of days that the grant does not hold.
        """
        assert event.subject is not None and event.content is not None
        try:
            key = self._grant().data_key(known.locator, event.subject)
            if key.content_mac(pack(event.content)) == stored.mac:
                return True
            if not self._opens:
                return False
        except KeyUnavailable:
            if not self._opens:
                return True
        place = (self._scope.org, RUNS_TOPIC, stored.partition, stored.offset)
        held = self._content.open(*place)
        field = "request" if event.type == "run.created" else "response"
        return bool(held.get(field, b"") == event.content[field])


def frame_too_large(content: dict[str, object]) -> bool:
    """Say whether the frame of a content is over 786,432 bytes; small ones are not compressed."""
    packed = pack(content)
    if len(packed) + OVERHEAD_BYTES + _ZSTD_GROWTH_BYTES <= MAX_FRAME_BYTES:
        return False
    try:
        return len(compress(packed)) + OVERHEAD_BYTES > MAX_FRAME_BYTES
    except TooLarge:
        return True
