"""Provider usage onto disjoint token classes, and its price; both by genai-prices.

What the extractor gives is inclusive: its `input_tokens` hold the cached, audio and tool tokens
too, its `output_tokens` the reasoning ones, whatever the provider's own convention was. Classes
are carved out of these two totals one after the other, each at most what is left, so that they
always add up to them and no token is counted twice.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

import genai_prices
from genai_prices import data_snapshot
from genai_prices.types import Usage as Extracted

from turnlog.events.shapes import MAX_COST_NANO_USD
from turnlog.ids import shaped
from turnlog.providers.exchange import CLASSES, Usage
from turnlog.providers.json_text import NotJson, loads_exact, number_leaves
from turnlog.providers.reading import as_dict
from turnlog.providers.source import Source

PRICE_VERSION = f"genai-prices/{genai_prices.__version__}"
NANO_USD = Decimal(1_000_000_000)
# Above a trillion it is no count of tokens, and its cost in nano-USD could pass 64 bits.
MAX_TOKENS = 2**40
NOTHING: Mapping[str, int] = dict.fromkeys(CLASSES, 0)

# Where the form's own provider reads a usage block; used where the host's has no reader for it.
_GENERIC = {
    "chat": ("openai", "chat"),
    "responses": ("openai", "responses"),
    "anthropic": ("anthropic", "default"),
    "gemini": ("google", "default"),
    "bedrock": ("aws", "default"),
    "cohere": ("cohere", "default"),
    "ollama": ("openai", "chat"),
    "embeddings": ("openai", "embeddings"),
    "images": ("openai", "images"),
    "audio": ("openai", "realtime"),
}
# What genai-prices calls the form, and the providers that have it as their default.
_FLAVOUR = {
    "chat": "chat",
    "responses": "responses",
    "anthropic": "anthropic",
    "embeddings": "embeddings",
    "images": "images",
}
_DEFAULT = {
    "chat": frozenset(("groq", "perplexity", "arcee", "x-ai", "ovhcloud", "databricks", "mistral")),
    "responses": frozenset(("openrouter",)),
    "anthropic": frozenset(("anthropic", "minimax")),
    "gemini": frozenset(("google",)),
    "bedrock": frozenset(("aws",)),
    "cohere": frozenset(("cohere",)),
}
_ROOT = {"gemini": "usageMetadata", "audio": "response"}
# Names that recordings give providers, for lines whose host says nothing (a proxy's).
_NAMES = {
    "openai_chat": "openai",
    "openai_responses": "openai",
    "openai_completions_legacy": "openai",
    "azure_openai": "azure",
    "anthropic_messages": "anthropic",
    "gemini": "google",
    "vertex_gemini": "google",
    "openai": "openai",
    "anthropic": "anthropic",
    "azure": "azure",
    "google": "google",
    "groq": "groq",
    "openrouter": "openrouter",
    "deepseek": "deepseek",
    "cerebras": "cerebras",
    "together": "together",
    "fireworks": "fireworks",
    "x-ai": "x-ai",
    "aws": "aws",
    "bedrock": "aws",
    "bedrock_converse": "aws",
    "bedrock_invoke": "aws",
    "cohere": "cohere",
    "mistral": "mistral",
}
# The enum Modality of google.cloud.aiplatform.v1, in the order of its numbers.
_MODALITIES = ("MODALITY_UNSPECIFIED", "TEXT", "IMAGE", "VIDEO", "AUDIO", "DOCUMENT")
# What genai-prices raises over a block that it cannot read: the last two where a value that it
# matches against a pattern is no string.
_REFUSALS = (ValueError, LookupError, AttributeError, TypeError)
_LOCAL = ("localhost", "127.", "[::1]", "0.0.0.0")


def _without_nulls(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object without its nulls: a null counts nothing, and genai-prices refuses it."""
    return {
        key: _without_nulls(item) if isinstance(item, dict) else item
        for key, item in value.items()
        if item is not None
    }


def unknown(reason: str, numbers: Mapping[str, str] | None = None) -> Usage:
    """Return usage that nobody knows; the provider's numbers are kept where there are any."""
    return Usage("unknown", reason, NOTHING, provider_usage=numbers or {})


def provider_id(source: Source) -> str:
    """Return the provider by whose price book an exchange is billed; empty where there is none.

    The address decides; a server on this machine bills nobody, whatever its model is called.
    """
    if source.host.startswith(_LOCAL):
        return ""
    try:
        url = f"https://{source.host}{source.path}"
        found = data_snapshot.get_snapshot().find_provider(None, None, url)
    except LookupError:
        return _NAMES.get(source.provider, "")
    return str(found.id)


class Block:
    """A provider's usage block, merged where it comes in several parts."""

    def __init__(self, parts: Sequence[tuple[str | bytes, tuple[str, ...]]]) -> None:
        self.values: dict[str, Any] = {}
        self.numbers: dict[str, str] = {}
        for text, path in parts:
            self._add(text, path)

    def _add(self, text: str | bytes, path: tuple[str, ...]) -> None:
        try:
            value = loads_exact(text)
            numbers = number_leaves(text, path)
        except NotJson:
            return
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, dict):
            self.values |= _without_nulls(value)
            self.numbers |= numbers


def measure(
    form: str,
    block: Block,
    source: Source,
    models: Sequence[str],
    at_us: int,
    context: Mapping[str, str],
) -> Usage:
    """Return the classes and the cost of a usage block.

    Args:
        form: as `forms.form_of` names it.
        block: the provider's usage block.
        source: where it came from.
        models: names under which the model may stand in the price book, best first.
        at_us: when it was used, UTC microseconds: prices depend on it.
        context: service tier and speed that the provider says it used.
    """
    if block.values.get("type") == "duration":
        return unknown("by_duration", block.numbers)
    provider = provider_id(source)
    extracted = extract(form, block.values, provider)
    counts = classes(_reported(extracted)) if extracted is not None else None
    if extracted is None or counts is None:
        return unknown("invalid", block.numbers)
    if provider == "aws":
        # Bedrock bills the model and region of the path; the body may have a name of the maker's.
        models = models[::-1]
    cost = price(extracted, provider, models, at_us, context)
    version = PRICE_VERSION if cost is not None else ""
    return Usage("measured", "", counts, cost, version, block.numbers)


def extract(form: str, values: Mapping[str, Any], provider: str) -> Extracted | None:
    """Return what genai-prices reads from a usage block, None where it has no answer."""
    named = _NAMED[form](values) if form in _NAMED else values
    body = {_ROOT.get(form, "usage"): named}
    for reader, flavour in _readers(form, provider):
        try:
            found = genai_prices.extract_usage(body, provider_id=reader, api_flavor=flavour)
        except _REFUSALS:
            continue
        return found.usage
    return None


def _named_modalities(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Gemini block with modalities by name: some Vertex clients send the enum's number."""
    named = dict(values)
    for key, details in values.items():
        if key.endswith("TokensDetails") and isinstance(details, list):
            named[key] = [_named(detail) for detail in details if isinstance(detail, dict)]
    return named


def _named(detail: Mapping[str, Any]) -> dict[str, Any]:
    modality = detail.get("modality")
    if isinstance(modality, int) and 0 <= modality < len(_MODALITIES):
        modality = _MODALITIES[modality]
    return {**detail, "modality": str(modality)}


# What the models of Bedrock that have names of their own call Converse's counts.
_BEDROCK = {
    "inputTokens": ("inputTextTokenCount", "prompt_token_count", "inputTokenCount"),
    "outputTokens": ("totalOutputTextTokenCount", "generation_token_count", "outputTokenCount"),
    "cacheReadInputTokens": ("cacheReadInputTokenCount",),
    "cacheWriteInputTokens": ("cacheWriteInputTokenCount",),
}


def _named_bedrock(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a block of Bedrock under Converse's names; Titan counts each of its results."""
    named = dict(values)
    for name, others in _BEDROCK.items():
        found = next((values[other] for other in others if other in values), None)
        if name not in named and found is not None:
            named[name] = _whole(found)
    results = values.get("results")
    if "outputTokens" not in named and isinstance(results, list):
        counts = [_whole(count) for count in results]
        # What is no number makes the block one that cannot be read.
        named["outputTokens"] = sum(counts) if all(type(n) is int for n in counts) else None
    return named


def _named_cohere(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a block of Cohere with an output, which embeddings have none of."""
    units = values.get("billed_units")
    units = units if isinstance(units, dict) else {}
    counted = {name: _whole(count) for name, count in units.items()}
    return {**values, "billed_units": {"output_tokens": 0, **counted}}


def _named_ollama(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return Ollama's counts under OpenAI's names, without the durations."""
    names = {"prompt_tokens": "prompt_eval_count", "completion_tokens": "eval_count"}
    return {name: values.get(other, 0) for name, other in names.items()}


def _named_images(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counts of images with what goes without saying: all that comes out are images."""
    into, out = as_dict(values.get("input_tokens_details")), values.get("output_tokens_details")
    return {
        **values,
        "input_tokens_details": {"text_tokens": 0, "image_tokens": 0, **into},
        "output_tokens_details": {
            "text_tokens": 0,
            **(as_dict(out) or {"image_tokens": values.get("output_tokens")}),
        },
    }


def _named_audio(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counts of a transcript where an event of the realtime API has them."""
    return {"usage": values}


def _whole(value: Any) -> Any:
    """Return a number without its fraction of zero: Titan and Cohere count in `28.0`."""
    return int(value) if isinstance(value, Decimal) and value == value.to_integral() else value


_NAMED: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "gemini": _named_modalities,
    "bedrock": _named_bedrock,
    "cohere": _named_cohere,
    "ollama": _named_ollama,
    "images": _named_images,
    "audio": _named_audio,
}


def _readers(form: str, provider: str) -> list[tuple[str, str]]:
    readers = [_GENERIC[form]]
    if provider in _DEFAULT.get(form, ()):
        readers.insert(0, (provider, "default"))
    if provider and form in _FLAVOUR:
        readers.insert(0, (provider, _FLAVOUR[form]))
    return readers


def _reported(extracted: Extracted) -> dict[str, Any]:
    return {key: value for key, value in vars(extracted).items() if not key.startswith("_")}


def classes(reported: Mapping[str, Any]) -> dict[str, int] | None:
    """Return a count for every class, None where a number is no count of tokens.

    `docs/providers.md` has the rules as a table.
    """
    if any(not _is_count(value) for value in reported.values()):
        return None
    tokens = {key: int(value) for key, value in reported.items()}

    def of(*names: str) -> int:
        return sum(tokens.get(name, 0) for name in names)

    written = max(of("cache_write_tokens"), of("cache_write_5m_tokens", "cache_write_1h_tokens"))
    hour = min(of("cache_write_1h_tokens"), written)
    cached_audio = of("cache_audio_read_tokens", "cache_audio_write_tokens")
    cached_image = of("cache_image_read_tokens", "cache_image_write_tokens")
    wanted_in = {
        "cache_read": of("cache_read_tokens"),
        "cache_write_1h": hour,
        "cache_write_5m": written - hour,
        "tool_use": of("input_tool_tokens"),
        "audio_in": of("input_audio_tokens") - cached_audio - of("input_audio_tool_tokens"),
        "image_in": of("input_image_tokens") - cached_image - of("input_image_tool_tokens"),
    }
    wanted_out = {
        "output_reasoning": of("output_reasoning_tokens"),
        "audio_out": of("output_audio_tokens") - of("output_audio_reasoning_tokens"),
        "image_out": of("output_image_tokens") - of("output_image_reasoning_tokens"),
    }
    counts = _carve(of("input_tokens"), wanted_in, "input_uncached")
    return counts | _carve(of("output_tokens"), wanted_out, "output_text")


def _is_count(value: Any) -> bool:
    return bool(0 <= value <= MAX_TOKENS and value == int(value))


def _carve(total: int, wanted: Mapping[str, int], rest: str) -> dict[str, int]:
    """Cut a total into classes in the order given; what is left is the class `rest`."""
    counts = {}
    for name, count in wanted.items():
        counts[name] = min(max(count, 0), total)
        total -= counts[name]
    return counts | {rest: total}


def names_to_price(models: Sequence[str]) -> list[str]:
    """Return the names of one model: the first that is given, and others that only say less of it.

    A router may answer with another model than was asked for (a free one asked for, a paid one that
    answered): the price of the one asked for is then the price of something else.
    """
    given = [model for model in models if model]
    return [name for name in given if _same_model(given[0], name)]


def _same_model(answered: str, asked: str) -> bool:
    long, short = answered.lower().rpartition("/")[2], asked.lower().rpartition("/")[2]
    return long.startswith(short) or short.startswith(long)


def price(
    extracted: Extracted,
    provider: str,
    models: Sequence[str],
    at_us: int,
    context: Mapping[str, str],
) -> int | None:
    """Return the cost in nano-USD, rounded half to even, None where the book has no price."""
    if not provider:
        return None
    at = datetime.fromtimestamp(at_us // 1_000_000, UTC)
    for model in names_to_price(models):
        try:
            found = genai_prices.calc_price(
                extracted,
                model,
                provider_id=provider,
                genai_request_timestamp=at,
                price_context=dict(context) or None,
            )
        except (LookupError, ValueError):
            continue
        return cost_in_bounds(found.total_price * NANO_USD)
    return None


def cost_in_bounds(nano_usd: Decimal) -> int | None:
    """Return a cost rounded half to even, None where no call costs so much: its counts are none."""
    cost = int(nano_usd.to_integral_value(ROUND_HALF_EVEN))
    return cost if 0 <= cost <= MAX_COST_NANO_USD else None


def public_context(context: Mapping[str, str]) -> dict[str, str]:
    """Return a price context without values that are no names."""
    return {key: value for key, value in context.items() if shaped(value) == value}
