"""What one exchange with a provider says, in the terms that every form has in common."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from turnlog.providers.source import Source

CLASSES = (
    "input_uncached",
    "cache_read",
    "cache_write_5m",
    "cache_write_1h",
    "output_text",
    "output_reasoning",
    "audio_in",
    "audio_out",
    "image_in",
    "image_out",
    "tool_use",
)
"""The disjoint token classes: every token stands in exactly one."""


class Chunk(NamedTuple):
    """A piece of output as it came.

    `kind` is text, reasoning, refusal or tool_call. A tool_call piece is a fragment of arguments;
    `call` says of which call, `id` and `name` stand where the provider gave them (usually in the
    first piece of the call only).
    """

    choice: int
    kind: str
    text: str
    call: int = 0
    id: str = ""
    name: str = ""


@dataclass(slots=True)
class ToolCall:
    """A call that the model asked for; `arguments` is the provider's text, JSON or not."""

    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Choice:
    """One of the answers that a response holds."""

    index: int
    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)


class Message(NamedTuple):
    """The last user or tool message of a request.

    Attributes:
        role: user or tool.
        text: its text; results of tools that are objects as JSON.
        raw: the message as JSON where it holds more than text, else empty.
        name: who said it, where the request says so.
    """

    role: str
    text: str
    raw: bytes = b""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and cost of an exchange.

    Attributes:
        quality: measured or unknown.
        reason: why it is unknown: no_usage, partial, not_understood, invalid; the importer adds
            repeated.
        classes: a count for each of `CLASSES`; all 0 where unknown.
        cost_nano_usd: None where no price is known.
        price_version: package and version of the price book; empty where it had no price.
        provider_usage: every number of the provider's own usage block by its dotted path, as text.
    """

    quality: str
    reason: str
    classes: Mapping[str, int]
    cost_nano_usd: int | None = None
    price_version: str = ""
    provider_usage: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its response, understood as far as their form is known.

    Attributes:
        form: chat, responses, anthropic, gemini, or other for what is only stored.
        model: the response's where it says one, else the request's.
        request_model: what the request asked for, from its body or its path.
        streaming: whether the response came as a stream.
        status: completed, failed, cancelled or interrupted.
        finish_reason: the provider's word as it is; empty where there is none.
        error_code: empty, http_NNN, provider_error, cut_off or cancelled.
        error: the provider's message; content.
        response_id: the first one that is not empty.
        chunks: pieces in order of arrival, of a stream only.
        warnings: what a person should know; free of content.
    """

    source: Source
    form: str
    model: str
    request_model: str
    streaming: bool
    status: str
    finish_reason: str
    error_code: str
    error: str
    response_id: str
    choices: list[Choice]
    chunks: list[Chunk]
    usage: Usage
    message: Message | None
    warnings: list[str]
