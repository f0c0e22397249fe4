"""What the end of a run says: the terminal event's fields and content, and what was used."""

import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from turnlog.errors import UsageError
from turnlog.ids import shaped
from turnlog.producer.fields import Began, Content, as_bytes
from turnlog.producer.usage import given_usage, read_response, usage_body
from turnlog.providers import Choice, Exchange, Usage
from turnlog.providers.usage import unknown

_SHAPED = ("finish_reason", "error_code", "model")


class Ending(NamedTuple):
    """The end of a run, before it is written.

    Attributes:
        status: completed, failed, cancelled or interrupted.
        body: fields of the terminal event.
        content: its content, without the output that was shown.
        usage: own fields of the usage event.
    """

    status: str
    body: dict[str, Any]
    content: dict[str, Any]
    usage: dict[str, Any]


def read_ending(
    status: str,
    began: Began,
    own: Mapping[str, Any],
    response: Content | None = None,
    usage: Mapping[str, Any] | None = None,
    error: str = "",
    exchange: Exchange | None = None,
) -> Ending:
    """Put together the end of a run.

    Args:
        status: how it ended.
        began: the run's fields.
        own: fields of the terminal event that the caller gave.
        response: the response as received.
        usage: as the caller gave it; None: it is read from the response.
        error: what went wrong; content.
        exchange: what the response says, where it was read before.

    Raises:
        UsageError: the usage or the response is none.
    """
    at_us = time.time_ns() // 1000
    raw = None if response is None else as_bytes(response, "response")
    if exchange is None and usage is None and raw is not None:
        request = began.request.get("request", b"")
        exchange = read_response(began.spoke, own.get("http_status", 0), request, raw, at_us)
    body = {**began.describes, **own, "status": status}
    said = {"finish_reason": "", "model": ""} if exchange is None else _said(exchange)
    body["finish_reason"] = own.get("finish_reason") or said["finish_reason"]
    body["model"] = own.get("model") or said["model"] or began.spoke.model
    counted = _usage(usage, exchange, began, body["model"], at_us)
    content = _content(body, raw, error)
    if exchange is not None and exchange.choices:
        content["output"] = [_choice(choice) for choice in exchange.choices]
    return Ending(status, body, content, usage_body(counted, began.spoke, body["model"]))


def code_of(http_status: int) -> str:
    """Return the error code of a status of HTTP.

    Raises:
        UsageError: it is none.
    """
    if not isinstance(http_status, int):
        raise UsageError("http_status is a whole number")
    return f"http_{http_status}" if http_status >= 400 else "provider_error"


def text_of(error: str | BaseException) -> str:
    """Return what an error says, with the name of its class; content.

    Raises:
        UsageError: it is neither text nor an exception.
    """
    if isinstance(error, str):
        return error
    if not isinstance(error, BaseException):
        raise UsageError("error is text or an exception")
    # An exception whose own text fails must not cost the run its end: this copes with it.
    return "".join(traceback.format_exception_only(error)).strip()


def _said(exchange: Exchange) -> dict[str, str]:
    return {"finish_reason": exchange.finish_reason, "model": exchange.model}


def _usage(
    usage: Mapping[str, Any] | None, exchange: Exchange | None, began: Began, model: str, at_us: int
) -> Usage:
    if usage is not None:
        return given_usage(usage, began.spoke, model, at_us)
    return unknown("no_usage") if exchange is None else exchange.usage


def _content(body: Mapping[str, Any], raw: bytes | None, error: str) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if raw is not None:
        content["response"] = raw
    if error:
        content["error"] = error
    source = {name: body[name] for name in _SHAPED if _replaced(body.get(name, ""))}
    if source:
        content["source"] = source
    return content


def _replaced(value: Any) -> bool:
    return isinstance(value, str) and shaped(value) != value


def _choice(choice: Choice) -> dict[str, Any]:
    """Return a choice as `output` holds it: what is empty is left out."""
    return {name: value for name, value in asdict(choice).items() if value or name == "index"}
