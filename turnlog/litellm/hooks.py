"""The hooks that LiteLLM calls, and the class of its own that has them.

Of an async call, LiteLLM tells `async_pre_call_deployment_hook` before each attempt and waits for
it; of one that is not, `log_pre_api_call`. Ends are told by several hooks, some of them twice: the
first one counts. Nothing here raises into a call.
"""

import asyncio
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from turnlog.errors import TurnlogError
from turnlog.litellm.calls import Answer, Calls, Key, first_token_ns
from turnlog.litellm.reading import answered, asked
from turnlog.recording import COUNTS

# Parts of LiteLLM's names for calls that ask no model.
_ASKS_NO_MODEL = ("batch", "file", "list", "retrieve", "delete", "cancel", "vector_store", "mcp")
# The marks by which LiteLLM itself tells its async calls.
_ASYNC = (
    "acompletion",
    "atext_completion",
    "aresponses",
    "aembedding",
    "aimage_generation",
    "atranscription",
    "aspeech",
    "arerank",
    "aanthropic_messages",
    "agenerate_content",
    "agenerate_content_stream",
    "allm_passthrough_route",
)


class Hooks:
    """What LiteLLM tells, brought to `Calls`.

    Attributes:
        calls: the runs.
    """

    calls: Calls

    async def async_pre_call_deployment_hook(
        self, kwargs: dict[str, Any], call_type: Any
    ) -> dict[str, Any] | None:
        """Create the run of an attempt before it is sent."""
        owner: Any = kwargs.get("litellm_logging_obj")
        kind = str(getattr(call_type, "value", call_type) or "")
        key = _key_of(owner)
        if key is None or not _is_recorded(kwargs, kind) or self._is_nested(key):
            return None
        try:
            producer = self.calls.producer()
            trace = owner.model_call_details.get("litellm_trace_id")
            begin = self.calls.beginning(key, asked({"litellm_trace_id": trace, **kwargs}, kind))
            await asyncio.wrap_future(producer.begin(begin))
            self.calls.watch(key, owner.model_call_details)
        except TurnlogError as error:
            COUNTS.unrecorded_call(error)
        return None

    def _is_nested(self, key: Key) -> bool:
        """Say whether this is a call that LiteLLM makes for another of the same name."""
        attempt = self.calls.has(key)
        return attempt is not None and not attempt.is_sent

    def log_pre_api_call(self, model: str, messages: Any, kwargs: dict[str, Any]) -> None:
        """Create the run of an attempt that is not async; note that a request goes out."""
        key = _key(kwargs)
        attempt = self.calls.has(key)
        if attempt is not None and (_is_async(kwargs) or not attempt.is_sent):
            attempt.is_sent = True
            return
        kind = str(kwargs.get("call_type") or "")
        if _is_async(kwargs) or not _is_recorded(kwargs, kind):
            return
        try:
            self.calls.producer().wait(self.calls.beginning(key, asked(kwargs, kind)))
        except TurnlogError as error:
            COUNTS.unrecorded_call(error)
            return
        self.calls.watch(key, kwargs)
        if (begun := self.calls.has(key)) is not None:
            begun.is_sent = True

    async def async_post_call_failure_deployment_hook(
        self, request_data: Mapping[str, Any], exception: Exception, call_type: Any, **_: Any
    ) -> None:
        """End the run of an attempt that failed; a retry is a run of its own."""
        key = _key_of(request_data.get("litellm_logging_obj"))
        if key is not None and self.calls.has(key) is not None:
            self._end(key, request_data, Answer(error=exception))

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """End the run of a call."""
        self._succeeded(kwargs, response_obj)

    def log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """End the run of a call."""
        self._succeeded(kwargs, response_obj)

    async def async_log_failure_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """End the run of a call that failed."""
        self._end(_key(kwargs), kwargs, Answer(error=_error(kwargs)))

    def log_failure_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """End the run of a call that failed."""
        self._end(_key(kwargs), kwargs, Answer(error=_error(kwargs)))

    def _succeeded(self, kwargs: dict[str, Any], response: Any) -> None:
        answer = Answer(
            response=answered(response),
            standard=kwargs.get("standard_logging_object"),
            cached=kwargs.get("cache_hit") is True,
            left=_is_left(kwargs),
            first_token_ns=first_token_ns(kwargs),
        )
        self._end(_key(kwargs), kwargs, answer)

    def _end(self, key: Key, kwargs: Mapping[str, Any], answer: Answer) -> None:
        kind = str(kwargs.get("call_type") or "")
        if _is_recorded(kwargs, kind):
            self.calls.end(key, answer, lambda: asked(kwargs, kind))


def make_logger(calls: Calls | None = None) -> Any:
    """Return the logger: of LiteLLM's own class, as it asks for.

    Raises:
        ModuleNotFoundError: LiteLLM is not installed.
    """
    base: Any = import_module("litellm.integrations.custom_logger").CustomLogger
    kind = type("TurnlogLogger", (Hooks, base), {"__doc__": "Records LiteLLM's calls as runs."})
    made = kind()
    made.calls = calls or Calls()
    return made


def _key_of(owner: Any) -> Key | None:
    """Return what tells a call from every other, from the object that LiteLLM keeps for it."""
    details = getattr(owner, "model_call_details", None)
    return _key(details, owner) if isinstance(details, Mapping) else None


def _key(details: Mapping[str, Any], owner: Any = None) -> Key:
    # A client of the proxy may choose the id, so the time stands beside it.
    began = details.get("start_time") or getattr(owner, "start_time", "")
    return str(details.get("litellm_call_id", "")), str(began)


def _error(kwargs: Mapping[str, Any]) -> BaseException:
    error = kwargs.get("exception")
    return error if isinstance(error, BaseException) else RuntimeError("the call failed")


def _is_left(details: Mapping[str, Any]) -> bool:
    """Say whether LiteLLM's proxy noted that the client went away before the answer's end."""
    held = details.get("litellm_params")
    places = (details, held if isinstance(held, Mapping) else {})
    said = [place.get("metadata") for place in places]
    return any(isinstance(one, Mapping) and one.get("client_disconnected") is True for one in said)


def _is_recorded(given: Mapping[str, Any], kind: str) -> bool:
    parameters = given.get("litellm_params")
    silent = parameters.get("no-log") if isinstance(parameters, Mapping) else None
    return not (silent or given.get("no-log") or any(part in kind for part in _ASKS_NO_MODEL))


def _is_async(details: Mapping[str, Any]) -> bool:
    """Say whether a call is async: then its run was created by the hook that may wait."""
    held = details.get("litellm_params")
    return isinstance(held, Mapping) and any(held.get(name) is True for name in _ASYNC)
