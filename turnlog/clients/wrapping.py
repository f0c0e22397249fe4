"""`wrap`: the same client, whose model calls become runs.

The official clients of OpenAI and Anthropic send everything through an httpx client. The copy that
`wrap` returns has one whose transport also writes down what goes by; types, iteration, retries and
errors are made above it, by the client's own code.
"""

import copy
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Literal, TypeVar, Unpack

from turnlog.clients.process import OF_PROCESS
from turnlog.clients.transport import AsyncTransport, SyncTransport
from turnlog.clients.way import AsyncWay, BesideLoop, OnLoop, OnThread, Settings, checked
from turnlog.errors import Unavailable, UsageError
from turnlog.producer import Producer, SyncProducer
from turnlog.producer.fields import check_fields
from turnlog.recording import COUNTS, About

C = TypeVar("C")

OnUnavailable = Literal["pass", "refuse"]
_HTTPX = ("httpx2", "httpx")
# By the beginning of the class's name; Azure's and Bedrock's clients lie in the same packages.
_PROVIDERS = {"Azure": "azure", "Bedrock": "bedrock", "Vertex": "vertex"}


def wrap(
    client: C,
    producer: Producer | SyncProducer | None = None,
    *,
    org: str = "",
    on_unavailable: OnUnavailable = "pass",
    **about: Unpack[About],
) -> C:
    """Return a client like this one that records each model call as a run.

    The client itself stays as it is. The two share their connections, as the client's own
    `with_options` has it: closing one closes those of both. Wrapping a wrapped client replaces what
    was said before; a call is recorded once.

    `run.created` is durable before a request goes out; the end is written in the background, and
    closing the producer waits for it.

    Args:
        client: an `OpenAI` or `Anthropic` client or one of their kinds, sync or async.
        producer: writes the runs. A `Producer` for async clients on its event loop, a
            `SyncProducer` for any. Left out: one of this process, from the environment.
        org: whose runs they are; may be left out where the credential names one org.
        on_unavailable: what happens to a call whose run cannot be created: `pass` lets it go
            unrecorded, with a warning and a count in `turnlog.recording.COUNTS`; `refuse` raises
            the reason, a `TurnlogError`, into it, and nothing goes out.
        **about: fields of all runs; `annotate` has those of single calls.

    Raises:
        UsageError: it is no such client, a field is wrong, or the credential does not name the org.
    """
    check_fields(about, About, "wrap")
    http = getattr(client, "_client", None)
    module, is_async = _module_of(http)
    settings = Settings(_provider(client), org, about, on_unavailable == "refuse")
    way = _way(producer, is_async, settings)
    made: C = client.copy(http_client=_recording(http, module, is_async, way))  # type: ignore[attr-defined]
    return made


def _module_of(http: Any) -> tuple[ModuleType, bool]:
    """Return the httpx that a client of it comes from, and whether that is an async one."""
    for kind in type(http).__mro__:
        root = kind.__module__.partition(".")[0]
        if root in _HTTPX and kind.__name__ in ("Client", "AsyncClient"):
            return import_module(root), kind.__name__ == "AsyncClient"
    raise UsageError("wrap takes a client of the packages openai and anthropic")


def _provider(client: object) -> str:
    names = [kind.__name__ for kind in type(client).__mro__]
    for part, provider in _PROVIDERS.items():
        if any(part in name for name in names):
            return provider
    return "anthropic" if any("Anthropic" in name for name in names) else "openai"


def _way(
    producer: Producer | SyncProducer | None, is_async: bool, settings: Settings
) -> AsyncWay | OnThread:
    if isinstance(producer, Producer):
        if not is_async:
            raise UsageError("a client that is not async needs a SyncProducer")
        return OnLoop(producer, checked(settings, producer.grant))
    given = producer
    kind = BesideLoop if is_async else OnThread
    try:
        ready = given or OF_PROCESS.get()
    except Unavailable as error:
        COUNTS.unopened(error)
        return kind(OF_PROCESS.get, settings)
    settings = checked(settings, ready.grant)
    return kind((lambda: given) if given is not None else OF_PROCESS.get, settings)


def _recording(http: Any, module: ModuleType, is_async: bool, way: AsyncWay | OnThread) -> Any:
    """Return a copy of an httpx client, with its connections, that records."""
    original = getattr(http, "turnlog_original", http)
    made = copy.copy(original)
    kind: Any = type(original)
    made.__class__ = _quiet(kind)
    made.turnlog_original = original
    wrapped: Any = AsyncTransport if is_async else SyncTransport
    made._transport = wrapped(original._transport, module, way)
    made._mounts = _mounted(original._mounts, lambda one: wrapped(one, module, way))
    return made


def _mounted(mounts: Mapping[Any, Any], wrapped: Callable[[Any], Any]) -> dict[Any, Any]:
    """Return the transports of single hosts, wrapped; None stands for the general one."""
    return {at: one if one is None else wrapped(one) for at, one in mounts.items()}


@cache
def _quiet(kind: type) -> type:
    """Return a class that differs in this: the end of its object closes nothing.

    The connections are the original's, which the object holds, and which closes them at its own.
    """
    return type(kind.__name__, (kind,), {"__del__": _nothing, "__module__": kind.__module__})


def _nothing(self: object) -> None:
    pass
