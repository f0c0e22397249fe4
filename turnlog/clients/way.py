"""How a client's calls come to a producer: on its loop, from another loop, or from threads."""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from turnlog.clients.about import said
from turnlog.clients.request import Sent
from turnlog.errors import TurnlogError, UsageError
from turnlog.ids import new_id
from turnlog.keys import Grant
from turnlog.producer import Producer, SyncProducer
from turnlog.producer.fields import DEFAULT_PROJECT, allowed
from turnlog.recording import COUNTS, Recording, Seen, SyncRecording


class Settings(NamedTuple):
    """What `wrap` was told.

    Attributes:
        provider: name of the provider.
        org: whose runs they are; empty while no producer could be asked.
        about: fields of all runs.
        refuses: whether a call that cannot be recorded is refused.
    """

    provider: str
    org: str
    about: Mapping[str, Any]
    refuses: bool


class Recorder(Protocol):
    """What a transport tells of a call; `turnlog.recording` describes it."""

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The answer begins."""

    def data(self, data: bytes) -> None:
        """Bytes of it."""

    def done_later(self) -> None:
        """It ended."""

    def cancelled_later(self) -> None:
        """Its reader went away."""

    def broke_later(self, error: BaseException) -> None:
        """The connection broke."""


# `begin` of the three gives None for a call that goes out unrecorded.


@dataclass(frozen=True, slots=True)
class OnLoop:
    """A `Producer` on the loop of the calls."""

    producer: Producer
    settings: Settings

    async def begin(self, sent: Sent) -> Recorder | None:
        """Create the run of a request that is about to go out.

        Raises:
            TurnlogError: it could not be created, and such calls are refused.
        """
        try:
            seen = _seen(sent, self.settings, self.producer)
            return await Recording.begin(self.producer, seen)
        except TurnlogError as error:
            _unrecorded(error, self.settings)
            return None


@dataclass(frozen=True, slots=True)
class BesideLoop:
    """A `SyncProducer`, and calls on an event loop that is not its own."""

    producer: Callable[[], SyncProducer]
    settings: Settings

    async def begin(self, sent: Sent) -> Recorder | None:
        """See `OnLoop.begin`."""
        try:
            producer = self.producer()
            seen = _seen(sent, self.settings, producer)
            return await SyncRecording.begin_beside(producer, seen)
        except TurnlogError as error:
            _unrecorded(error, self.settings)
            return None


@dataclass(frozen=True, slots=True)
class OnThread:
    """A `SyncProducer`, and calls that wait."""

    producer: Callable[[], SyncProducer]
    settings: Settings

    def begin(self, sent: Sent) -> Recorder | None:
        """See `OnLoop.begin`."""
        try:
            producer = self.producer()
            return SyncRecording.begin(producer, _seen(sent, self.settings, producer))
        except TurnlogError as error:
            _unrecorded(error, self.settings)
            return None


def _unrecorded(error: TurnlogError, settings: Settings) -> None:
    if settings.refuses:
        raise error
    COUNTS.unrecorded_call(error)


class _Attempt(NamedTuple):
    """The last request of this thread or task: what is sent again is its retry."""

    run: str
    run_group: str
    mark: tuple[str, int]


_last: ContextVar[_Attempt | None] = ContextVar("turnlog_last_attempt", default=None)


def _seen(sent: Sent, settings: Settings, producer: Producer | SyncProducer) -> Seen:
    """Return what a run says of a request: one run an attempt, the attempts of a call one group."""
    settings = checked(settings, producer.grant)
    about = {"idempotency_key": sent.idempotency_key, **settings.about, **said()}
    run = new_id("run")
    before = _last.get() if sent.is_retry else None
    again = before is not None and before.mark == sent.mark
    if before is not None and again:
        about |= {"causation_id": before.run, "run_group": before.run_group}
    group = about.setdefault("run_group", run)
    _last.set(_Attempt(run, group, sent.mark))
    seen = Seen.of(
        provider=settings.provider,
        method=sent.method,
        host=sent.host,
        path=sent.path,
        request=sent.body,
        content_type=sent.content_type,
        org=settings.org,
        run=run,
        **about,
    )
    # The input turn of a call is there already when it is sent again.
    return replace(seen, input="") if again else seen


def checked(settings: Settings, grant: Grant) -> Settings:
    """Return the settings with the org; it and the project are those of the credential.

    Raises:
        UsageError: they are not, or none is named and the credential has several.
    """
    org = settings.org or (grant.orgs[0] if len(grant.orgs) == 1 else "")
    if not org:
        raise UsageError("the credential names several orgs: say which with org=")
    allowed(grant, org, settings.about.get("project", DEFAULT_PROJECT))
    return settings._replace(org=org)


AsyncWay = OnLoop | BesideLoop
