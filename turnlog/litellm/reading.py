"""What LiteLLM says of a call, in our terms: pure, from what its hooks are given.

The provider's own bytes are not to be seen there. What is stored is the request in OpenAI's terms
and the response object as JSON.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import orjson

from turnlog.producer.ending import text_of
from turnlog.producer.usage import Spoke, source_of
from turnlog.providers import Exchange, Usage, understand
from turnlog.providers.json_text import number_leaves
from turnlog.providers.rates import cost_of_classes
from turnlog.providers.requests import parse
from turnlog.providers.usage import (
    MAX_TOKENS,
    NOTHING,
    PRICE_VERSION,
    classes,
    names_to_price,
    provider_id,
)
from turnlog.providers.usage import unknown as unknown_usage

logger = logging.getLogger(__name__)

# What a request to a model may say. Everything else that LiteLLM's calls take (keys, addresses,
# headers, metadata of the proxy) is left out: an allow-list cannot miss the next secret.
_ASKED = (
    "model", "messages", "input", "prompt", "system", "instructions", "contents", "query",
    "documents", "stream", "stream_options", "temperature", "top_p", "top_k", "n", "stop",
    "max_tokens", "max_completion_tokens", "max_output_tokens", "presence_penalty",
    "frequency_penalty", "logit_bias", "logprobs", "top_logprobs", "seed", "tools", "tool_choice",
    "parallel_tool_calls", "functions", "function_call", "response_format", "text", "modalities",
    "audio", "prediction", "reasoning", "reasoning_effort", "thinking", "verbosity", "store",
    "include", "previous_response_id", "truncation", "service_tier", "web_search_options",
    "encoding_format", "dimensions", "input_type", "top_n", "size", "quality", "style",
    "background", "output_format", "voice", "speed", "language", "user", "safety_identifier",
)  # fmt: skip
_SAID = ("messages", "input", "prompt", "contents")
_OURS = ("user", "conversation", "run_group", "parent_run", "idempotency_key", "versions")
# LiteLLM's names where the price book has others.
_PROVIDERS = {
    "vertex_ai": "vertex_gemini",
    "vertex_ai_beta": "vertex_gemini",
    "xai": "x-ai",
    "together_ai": "together",
    "fireworks_ai": "fireworks",
    "azure_ai": "azure",
    "text-completion-openai": "openai",
}
# Of these it is known that their chat streams have no usage unless `include_usage` is set.
_SILENT = frozenset(("openai", "azure"))
_CHAT = "/chat/completions"
_ROUTES = {"embedding": "/embeddings", "image": "/images/generations", "responses": "/responses"}


class Asked(NamedTuple):
    """One call.

    Attributes:
        fields: fields of its run without the org.
        spoke: with whom, for reading the response.
        request: as it is stored.
        mark: what an attempt, its retry and its fallback have in common.
    """

    fields: dict[str, Any]
    spoke: Spoke
    request: bytes
    mark: tuple[str, int]


def asked(given: Mapping[str, Any], call_type: str = "") -> Asked:
    """Return what a call asks.

    Args:
        given: its arguments, or `model_call_details`, which hold the same and more.
        call_type: LiteLLM's name of it, such as `acompletion`.
    """
    request = {name: given[name] for name in _ASKED if given.get(name) is not None}
    optional = given.get("optional_params")
    if isinstance(optional, Mapping):
        request |= {name: optional[name] for name in _ASKED if optional.get(name) is not None}
    provider, model = _named(given)
    spoke = Spoke(provider, model, "POST", _host(given), _route(call_type))
    body = _packed(request)
    own = {"provider": provider, "model": model, "host": spoke.host, "path": spoke.path}
    who = {name: value for name, value in _who(given).items() if value}
    fields = {name: value for name, value in {**own, **who}.items() if value}
    fields |= {"method": "POST", "request": body, "streaming": request.get("stream") is True}
    said = {name: request[name] for name in _SAID if name in request}
    return Asked(fields, spoke, body, (_text(given.get("litellm_trace_id")), hash(_packed(said))))


def _named(given: Mapping[str, Any]) -> tuple[str, str]:
    model = _text(given.get("model"))
    provider = _text(given.get("custom_llm_provider"))
    before, slash, rest = model.partition("/")
    if slash and provider in ("", before):
        provider, model = before, rest
    return _PROVIDERS.get(provider, provider), model


def _host(given: Mapping[str, Any]) -> str:
    parameters = given.get("litellm_params")
    inner = parameters.get("api_base") if isinstance(parameters, Mapping) else None
    address = _text(given.get("api_base")) or _text(inner)
    return urlsplit(address).netloc.rpartition("@")[2] if "://" in address else ""


def _route(call_type: str) -> str:
    kind = call_type.lower()
    return next((path for part, path in _ROUTES.items() if part in kind), _CHAT)


def _who(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return user, conversation and group: what `metadata.turnlog` says, else LiteLLM's own."""
    said: dict[str, Any] = {}
    for metadata in _metadata(given):
        said |= {
            "user": _text(metadata.get("user_api_key_end_user_id")) or said.get("user", ""),
            "conversation": _text(metadata.get("session_id")) or said.get("conversation", ""),
        }
    said["user"] = _text(given.get("user")) or said.get("user", "")
    said["conversation"] = _text(given.get("litellm_session_id")) or said.get("conversation", "")
    said["run_group"] = _text(given.get("litellm_trace_id"))
    for metadata in _metadata(given):
        own = metadata.get("turnlog")
        if isinstance(own, Mapping):
            said |= {name: own[name] for name in _OURS if _fits(name, own.get(name))}
    return said


def _fits(name: str, value: Any) -> bool:
    if name != "versions":
        return isinstance(value, str)
    return isinstance(value, Mapping) and all(isinstance(p, str) for i in value.items() for p in i)


def _metadata(given: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    parameters = given.get("litellm_params")
    for holder in (given, parameters if isinstance(parameters, Mapping) else {}):
        for name in ("metadata", "litellm_metadata"):
            if isinstance(holder.get(name), Mapping):
                yield holder[name]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _as_json(value: Any) -> Any:
    """Return what orjson does not know as what it does; never an object's own text."""
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(warnings=False)
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, set | tuple) else f"({type(value).__name__})"


def answered(response: Any) -> bytes:
    """Return a response object as JSON, empty where it is none."""
    value = _as_json(response)
    if not isinstance(value, dict):
        return b""
    usage = getattr(response, "usage", None)
    if callable(getattr(usage, "model_dump", None)):
        # Where LiteLLM put a block of another class in, the response itself dumps half of it.
        value["usage"] = _as_json(usage)
    return _packed(value)


def _packed(value: Any) -> bytes:
    """Return JSON; halves of characters, which a provider may send, are kept as escapes.

    Nothing, where it holds itself or is too deep: no provider was sent that.
    """
    try:
        return orjson.dumps(_as_json(value), default=_as_json)
    except TypeError:
        pass
    try:
        return json.dumps(_as_json(value), default=_as_json, separators=(",", ":")).encode()
    except (RecursionError, TypeError, ValueError):
        logger.warning("a body that JSON cannot hold is not kept (%s)", type(value).__name__)
        return b""


def understood(
    asked: Asked, response: bytes, standard: Any, *, cached: bool, left: bool, at_us: int
) -> Exchange:
    """Return what a response object says.

    Args:
        asked: the call.
        response: the response object as JSON.
        standard: LiteLLM's `standard_logging_object`, None where there is none.
        cached: whether LiteLLM had the answer and asked nobody.
        left: whether its reader went away: then LiteLLM makes up the end of the answer, the finish
            reason and the counts too.
        at_us: when, UTC microseconds; prices depend on it.
    """
    spoke = asked.spoke
    exchange = understand(source_of(spoke, 200, asked.request, response), at_us=at_us)
    # The proxy answers under its own name of the model.
    models = names_to_price((spoke.model, exchange.model))
    named = exchange.model if exchange.model in models else spoke.model
    exchange = replace(exchange, model=named, status="completed")
    if left:
        exchange = replace(exchange, status="cancelled", finish_reason="")
    if cached:
        return replace(exchange, usage=Usage("measured", "", NOTHING, 0, PRICE_VERSION))
    block = _usage_block(response)
    if not _is_inclusive(block):
        return exchange
    numbers = number_leaves(response, ("usage",))
    usage = usage_of(block, numbers, spoke, models, standard, at_us)
    if usage.quality == "measured":
        usage = _judged(usage, left or _is_counted(spoke, asked.request))
    return replace(exchange, usage=usage)


def _judged(usage: Usage, counted: bool) -> Usage:
    """Return usage as what it is: none, a count of LiteLLM's, or the provider's."""
    if not any(usage.classes.values()):
        return unknown_usage("no_usage")
    if counted:
        return replace(usage, quality="estimated", reason="counted_by_litellm")
    return usage


def _is_counted(spoke: Spoke, request: bytes) -> bool:
    """Say whether nobody but LiteLLM's tokenizer counted: the provider sent no usage.

    OpenAI's streams have none unless it was asked for, and LiteLLM fills the gap without a word.
    """
    asked = parse(source_of(spoke, 200, request, b""))
    options = asked.get("stream_options")
    wanted = isinstance(options, dict) and options.get("include_usage") is True
    silent = spoke.provider in _SILENT and spoke.path == _CHAT
    return asked.get("stream") is True and silent and not wanted


def _usage_block(response: bytes) -> Mapping[str, Any]:
    try:
        block = orjson.loads(response).get("usage")
    except (orjson.JSONDecodeError, AttributeError):
        return {}
    return block if isinstance(block, dict) else {}


def usage_of(
    block: Mapping[str, Any],
    numbers: Mapping[str, str],
    spoke: Spoke,
    models: list[str],
    standard: Any,
    at_us: int,
) -> Usage:
    """Return LiteLLM's usage block in disjoint classes.

    LiteLLM brings every provider's numbers to OpenAI's convention: `prompt_tokens` (`input_tokens`
    of responses and images) holds what was read from and written to a cache, audio and images too,
    `completion_tokens` the reasoning. Where its own summary of the call counts otherwise, nobody
    knows which is right: then it is unknown.
    """
    if not _agrees(block, standard):
        return unknown_usage("invalid", numbers)
    counts = classes(_inclusive(block, spoke.path))
    if counts is None:
        return unknown_usage("invalid", numbers)
    provider = provider_id(source_of(spoke, 200, b"", b""))
    cost = cost_of_classes(provider, models, counts, at_us)
    version = PRICE_VERSION if cost is not None else ""
    return Usage("measured", "", counts, cost, version, numbers)


def _is_inclusive(block: Mapping[str, Any]) -> bool:
    """Say whether a block is in that convention; Anthropic's own is told by its cache's names."""
    own = block.keys() & {"cache_read_input_tokens", "cache_creation_input_tokens"}
    return "prompt_tokens" in block or ("input_tokens" in block and not own)


def _agrees(block: Mapping[str, Any], standard: Any) -> bool:
    if not isinstance(standard, Mapping):
        return True
    return all(
        standard.get(name) in (None, _total(block, name) or 0)
        for name in ("prompt_tokens", "completion_tokens")
    )


_ALSO = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}


def _total(block: Mapping[str, Any], name: str) -> Any:
    return block.get(name) if name in block else block.get(_ALSO[name])


def _inclusive(block: Mapping[str, Any], path: str) -> dict[str, int]:
    """Return a block in the inclusive terms of `turnlog.providers.usage.classes`."""
    into, out = _details(block, "prompt_tokens"), _details(block, "completion_tokens")
    written = into.get("cache_creation_token_details")
    hours = written if isinstance(written, Mapping) else {}
    total_out = _total(block, "completion_tokens")
    # An image model answers with nothing but images, and does not say so.
    images = total_out if path == _ROUTES["image"] else None
    found = {
        "input_tokens": _total(block, "prompt_tokens"),
        "output_tokens": total_out,
        "cache_read_tokens": into.get("cached_tokens") or block.get("cache_read_input_tokens"),
        "cache_write_tokens": into.get("cache_creation_tokens")
        or block.get("cache_creation_input_tokens"),
        "cache_write_1h_tokens": hours.get("ephemeral_1h_input_tokens"),
        "input_audio_tokens": into.get("audio_tokens"),
        "input_image_tokens": into.get("image_tokens"),
        "output_reasoning_tokens": out.get("reasoning_tokens"),
        "output_audio_tokens": out.get("audio_tokens"),
        "output_image_tokens": out.get("image_tokens") or images,
    }
    return {name: count if _is_count(count) else -1 for name, count in found.items() if count}


def _details(block: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    details = block.get(f"{name}_details") or block.get(f"{_ALSO[name]}_details")
    return details if isinstance(details, Mapping) else {}


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_TOKENS


def failed_with(error: Any) -> tuple[str, int]:
    """Return text and HTTP status of an exception of LiteLLM's; 0 where it says none."""
    status = getattr(error, "status_code", 0)
    if not isinstance(status, int) or not 100 <= status <= 599:
        status = 0
    if not isinstance(error, BaseException):
        return "" if error is None else type(error).__name__, status
    return text_of(error), status
