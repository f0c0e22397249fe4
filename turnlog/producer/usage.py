"""What a run used: as the caller says it, or as the response does. Never guessed, never 0 for it.

The provider's own numbers go through `turnlog.providers`, which has genai-prices read them.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from turnlog.errors import UsageError
from turnlog.providers import CLASSES, Exchange, Source, Usage, understand
from turnlog.providers.rates import cost_of_classes
from turnlog.providers.usage import MAX_TOKENS, PRICE_VERSION, Block, measure, provider_id, unknown

_CLASSES = frozenset(CLASSES)
_GEMINI = frozenset(("promptTokenCount", "candidatesTokenCount", "totalTokenCount"))
_CHAT = frozenset(("prompt_tokens", "completion_tokens"))
_ANTHROPIC = frozenset(("cache_creation_input_tokens", "cache_read_input_tokens"))
_OWN = {"inputTokens": "bedrock", "billed_units": "cohere", "prompt_eval_count": "ollama"}


class Spoke(NamedTuple):
    """With whom a run spoke, as far as its caller says.

    Attributes:
        provider: name of the provider, such as `openai`.
        model: model asked for.
        method: HTTP method.
        host: HTTP host.
        path: HTTP path.
    """

    provider: str
    model: str
    method: str = ""
    host: str = ""
    path: str = ""


def source_of(spoke: Spoke, status: int, request: bytes, response: bytes) -> Source:
    """Return the exchange in the form that `turnlog.providers` reads."""
    return Source(
        id="",
        file="",
        n=0,
        provider=spoke.provider,
        method=spoke.method,
        host=spoke.host,
        path=spoke.path,
        status=status or 200,
        streaming=False,
        framing="",
        content_type="",
        request_content_type="",
        request=request,
        response=response,
        response_bytes=None,
    )


def read_response(
    spoke: Spoke, status: int, request: bytes, response: bytes, at_us: int
) -> Exchange:
    """Return what a response says of itself: usage, finish reason, model, output."""
    return understand(source_of(spoke, status, request, response), at_us=at_us)


def given_usage(usage: Mapping[str, Any], spoke: Spoke, model: str, at_us: int) -> Usage:
    """Return usage that the caller gave: the eleven classes, or a provider's usage block.

    Args:
        usage: the mapping.
        spoke: whose numbers they are.
        model: the model that answered.
        at_us: when they were used, UTC microseconds; prices depend on it.

    Raises:
        UsageError: not a mapping, or a class is no count of tokens.
    """
    if not isinstance(usage, Mapping) or not all(isinstance(name, str) for name in usage):
        raise UsageError("usage must be a mapping of names to numbers")
    if not usage:
        return unknown("no_usage")
    if usage.keys() <= _CLASSES:
        return _classes(usage, spoke, model, at_us)
    return _block(usage, spoke, model, at_us)


def _classes(usage: Mapping[str, Any], spoke: Spoke, model: str, at_us: int) -> Usage:
    for name, count in usage.items():
        if type(count) is not int or not 0 <= count <= MAX_TOKENS:
            raise UsageError(f"usage.{name} is not a count of tokens")
    provider = _provider(spoke)
    cost = cost_of_classes(provider, (model, spoke.model), usage, at_us)
    version = PRICE_VERSION if cost is not None else ""
    return Usage("measured", "", usage, cost, version)


@lru_cache(maxsize=1024)
def _provider(spoke: Spoke) -> str:
    return provider_id(source_of(spoke, 200, b"", b""))


def _block(usage: Mapping[str, Any], spoke: Spoke, model: str, at_us: int) -> Usage:
    try:
        block = Block([(orjson.dumps(dict(usage)), ())])
    except TypeError:
        raise UsageError("usage holds what JSON cannot") from None
    form = _form_of(usage, spoke.provider)
    if not form:
        return unknown("not_understood", block.numbers)
    source = source_of(spoke, 200, b"", b"")
    return measure(form, block, source, (model, spoke.model), at_us, {})


def _form_of(usage: Mapping[str, Any], provider: str) -> str:
    """Return the form that a usage block has by its names; it stands without its response."""
    names = usage.keys()
    if own := next((form for name, form in _OWN.items() if name in names), ""):
        return own
    if names & _GEMINI:
        return "gemini"
    if names & _CHAT:
        return "chat"
    if names & _ANTHROPIC or ("input_tokens" in names and "anthropic" in provider):
        return "anthropic"
    return "responses" if "input_tokens" in names else ""


def usage_body(usage: Usage, spoke: Spoke, model: str) -> dict[str, Any]:
    """Return the own fields of `usage.recorded`."""
    return {
        "quality": usage.quality,
        "reason": usage.reason,
        "provider": spoke.provider,
        "model": model or spoke.model,
        **usage.classes,
        "cost_nano_usd": usage.cost_nano_usd,
        "price_version": usage.price_version,
        "provider_usage": usage.provider_usage,
    }
