"""Tokens that a span reports, onto the disjoint classes.

The conventions differ in what the count of input tokens holds. `gen_ai.usage.input_tokens` and
OpenInference's `llm.token_count.prompt` include what was read from and written to a cache (so the
specifications say; an instrumentation that passes on the provider's own count of Anthropic or
Bedrock does not). Where the provider's own block stands in the span, it decides. Else the total
does, where there is one: `input + output` says inclusive, `input + output + cache` exclusive. Else
input is inclusive, unless the cache holds more than it: then it cannot be.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from serve.otel.attributes import Attributes, below, first, parsed
from serve.otel.values import whole
from turnlog.ids import SHAPE
from turnlog.providers.exchange import Usage
from turnlog.providers.json_text import MAX_LEAVES
from turnlog.providers.rates import cost_of_classes
from turnlog.providers.usage import MAX_TOKENS, PRICE_VERSION, classes, unknown

_GEN_AI, _OI, _AI = "gen_ai.usage.", "llm.token_count.", "ai.usage."
_INPUT = (
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.prompt_tokens",
    "llm.token_count.prompt",
    "llm.usage.prompt_tokens",
    "ai.usage.inputTokens",
    "ai.usage.promptTokens",
)
_OUTPUT = (
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "llm.token_count.completion",
    "llm.usage.completion_tokens",
    "ai.usage.outputTokens",
    "ai.usage.completionTokens",
)
_TOTAL = (
    "gen_ai.usage.total_tokens",
    "llm.usage.total_tokens",
    "llm.token_count.total",
    "ai.usage.totalTokens",
)
# Before an alias of the same number the name that the specification has: a 0 there is said, too.
_READ = (
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_read_input_tokens",
    "gen_ai.usage.input_cached_tokens",
    "gen_ai.usage.details.cache_read_tokens",
    "gen_ai.usage.details.cache_read_input_tokens",
    "gen_ai.usage.cached_tokens",
    "llm.token_count.prompt_details.cache_read",
    "llm.token_count.prompt_details.cache_input",
    "llm.usage.cache_read_input_tokens",
    "ai.usage.inputTokenDetails.cacheReadTokens",
    "ai.usage.cachedInputTokens",
)
_WRITTEN = (
    "gen_ai.usage.cache_creation.input_tokens",
    "gen_ai.usage.cache_creation_input_tokens",
    "gen_ai.usage.cache_write.input_tokens",
    "gen_ai.usage.input_cache_creation",
    "gen_ai.usage.details.cache_write_tokens",
    "gen_ai.usage.details.cache_creation_input_tokens",
    "llm.token_count.prompt_details.cache_write",
    "llm.usage.cache_creation_input_tokens",
    "ai.usage.inputTokenDetails.cacheWriteTokens",
)
_HOUR = ("gen_ai.usage.cache_creation.ephemeral_1h_input_tokens",)
_REASONING = (
    "gen_ai.usage.reasoning.output_tokens",
    "gen_ai.usage.output_tokens.reasoning",
    "gen_ai.usage.reasoning_tokens",
    "gen_ai.usage.details.reasoning_tokens",
    "llm.token_count.completion_details.reasoning",
    "llm.usage.reasoning_tokens",
    "ai.usage.outputTokenDetails.reasoningTokens",
    "ai.usage.reasoningTokens",
)
_AUDIO_IN = (
    "gen_ai.usage.details.input_audio_tokens",
    "gen_ai.usage.input_audio_tokens",
    "llm.token_count.prompt_details.audio",
)
_AUDIO_OUT = (
    "gen_ai.usage.details.output_audio_tokens",
    "gen_ai.usage.output_audio_tokens",
    "llm.token_count.completion_details.audio",
)
_CACHED_AUDIO = ("gen_ai.usage.details.cache_audio_read_tokens",)


class Counts(NamedTuple):
    """What a source says; None where it says nothing. `inclusive` None: it does not say."""

    input: int | None = None
    output: int | None = None
    total: int | None = None
    read: int = 0
    written: int = 0
    hour: int = 0
    reasoning: int = 0
    audio_in: int = 0
    audio_out: int = 0
    cached_audio: int = 0
    inclusive: bool | None = None


def usage_of(
    attributes: Attributes, embedding: bool, provider: str, models: tuple[str, ...], at_us: int
) -> Usage:
    """Return what a call used.

    Args:
        attributes: the span's.
        embedding: whether it is a call for embeddings, whose total is its input.
        provider: id in the price book, empty where nobody bills.
        models: the model that answered, then the one asked for.
        at_us: when, UTC microseconds; prices depend on it.
    """
    numbers = provider_usage(attributes)
    counts = _counts(attributes, embedding)
    if counts.input is None and counts.output is None and not _details(counts):
        return unknown("no_usage", numbers)
    reported = reported_of(counts)
    found = classes(reported) if all(n >= 0 for n in counts if n is not None) else None
    if found is None:
        return unknown("invalid", numbers)
    if counts.input is None and counts.output is None:
        # A detail alone: of how many, nobody says.
        return unknown("partial", numbers)
    cost = cost_of_classes(provider, models, found, at_us)
    return Usage("measured", "", found, cost, PRICE_VERSION if cost is not None else "", numbers)


def _details(counts: Counts) -> bool:
    return any((counts.read, counts.written, counts.reasoning, counts.audio_in, counts.audio_out))


def reported_of(counts: Counts) -> dict[str, int]:
    """Return counts in the inclusive terms that `turnlog.providers.usage.classes` takes."""
    given, cached = counts.input or 0, counts.read + counts.written
    output = counts.output or 0
    if not _inclusive(counts):
        given += cached
    if counts.reasoning and (
        counts.reasoning > output or counts.total == (counts.input or 0) + output + counts.reasoning
    ):
        output += counts.reasoning
    return {
        "input_tokens": given,
        "cache_read_tokens": counts.read,
        "cache_write_tokens": counts.written,
        "cache_write_1h_tokens": counts.hour,
        "input_audio_tokens": counts.audio_in,
        "cache_audio_read_tokens": counts.cached_audio,
        "output_tokens": output,
        "output_reasoning_tokens": counts.reasoning,
        "output_audio_tokens": counts.audio_out,
    }


def _inclusive(counts: Counts) -> bool:
    """Say whether the input holds what was read from and written to a cache."""
    cached, given, output = counts.read + counts.written, counts.input or 0, counts.output or 0
    if counts.inclusive is not None:
        return counts.inclusive
    if cached > given:
        return False
    if not cached or counts.total is None:
        return True
    apart = (cached, counts.read, counts.written)
    return counts.total not in {given + output + extra for extra in apart if extra}


def _counts(attributes: Attributes, embedding: bool) -> Counts:
    """Return the counts of a span: of the provider's own block, else by the names known."""
    own = next(_blocks(attributes), None)
    if own is not None:
        return _filled(own, attributes)
    counts = _named(attributes)
    if embedding and counts.input is None:
        return counts._replace(input=whole(attributes.get("ai.usage.tokens")))
    return counts


def _filled(own: Counts, attributes: Attributes) -> Counts:
    """Return a provider's block with what it leaves out taken from the span's own names."""
    named = _named(attributes)
    given = own.input if own.input is not None else named.input
    output = own.output if own.output is not None else named.output
    return own._replace(input=given, output=output)


def _named(attributes: Attributes) -> Counts:
    def number(*names: str) -> int | None:
        found = first(attributes, *names)
        count = None if found is None else whole(found)
        # What is there and no number is no usage that could be trusted.
        return -1 if found is not None and count is None else count

    return Counts(
        number(*_INPUT),
        number(*_OUTPUT),
        number(*_TOTAL),
        number(*_READ) or 0,
        number(*_WRITTEN) or 0,
        number(*_HOUR) or 0,
        number(*_REASONING) or 0,
        number(*_AUDIO_IN) or 0,
        number(*_AUDIO_OUT) or 0,
        number(*_CACHED_AUDIO) or 0,
    )


def _blocks(attributes: Attributes) -> Iterator[Counts]:
    """Yield the counts of usage blocks that stand in the span as the provider gave them."""
    metadata = parsed(attributes.get("ai.response.providerMetadata"))
    for name, read in (("anthropic", _anthropic), ("bedrock", _bedrock)):
        said = metadata.get(name) if isinstance(metadata, Mapping) else None
        block = said.get("usage") if isinstance(said, Mapping) else None
        if isinstance(block, Mapping):
            yield read(block)
    block = parsed(attributes.get("langfuse.observation.usage_details"))
    if isinstance(block, Mapping) and block:
        yield _langfuse(block)


def _number(block: Mapping[str, Any], *names: str) -> int | None:
    return next((n for name in names if (n := whole(block.get(name))) is not None), None)


def _anthropic(block: Mapping[str, Any]) -> Counts:
    """Anthropic: input stands beside what was cached."""
    split = block.get("cache_creation")
    hour = _number(split, "ephemeral_1h_input_tokens") if isinstance(split, Mapping) else 0
    return Counts(
        _number(block, "input_tokens"),
        _number(block, "output_tokens"),
        read=_number(block, "cache_read_input_tokens") or 0,
        written=_number(block, "cache_creation_input_tokens") or 0,
        hour=hour or 0,
        inclusive=False,
    )


def _bedrock(block: Mapping[str, Any]) -> Counts:
    """Bedrock Converse: input stands beside what was cached."""
    written = ("cacheWriteInputTokens", "cacheCreationInputTokens")
    return Counts(
        _number(block, "inputTokens"),
        _number(block, "outputTokens"),
        read=_number(block, "cacheReadInputTokens") or 0,
        written=max(_number(block, name) or 0 for name in written),
        inclusive=False,
    )


def _langfuse(block: Mapping[str, Any]) -> Counts:
    """Langfuse: its own names are disjoint by its rule; those of OpenAI are inclusive as there."""
    details = block.get("prompt_tokens_details") or block.get("input_tokens_details")
    details = details if isinstance(details, Mapping) else {}
    ours = "input" in block or "input_cached_tokens" in block
    audio = _number(block, "input_audio_tokens", "input_audio") or 0
    reasoning = _number(block, "output_reasoning_tokens", "output_reasoning") or 0
    given = _number(block, "input", "input_tokens", "prompt_tokens")
    output = _number(block, "output", "output_tokens", "completion_tokens")
    return Counts(
        given + audio if ours and given is not None else given,
        output + reasoning if ours and output is not None else output,
        _number(block, "total", "total_tokens"),
        _number(block, "cache_read_input_tokens", "input_cached_tokens", "input_cache_read")
        or _number(details, "cached_tokens")
        or 0,
        _number(block, "cache_creation_input_tokens", "input_cache_creation") or 0,
        reasoning=reasoning,
        audio_in=audio,
        inclusive=False if ours else None,
    )


def provider_usage(attributes: Attributes) -> dict[str, str]:
    """Return every number that a span says of usage, by its name, as text."""
    found: dict[str, str] = {}
    for prefix in (_GEN_AI, _OI, _AI, "llm.usage.", "langfuse.observation.usage_details"):
        for rest, value in below(attributes, prefix).items():
            value = parsed(value)
            given = value.items() if isinstance(value, Mapping) else [("", value)]
            for name, number in given:
                _keep(found, ".".join(filter(None, (prefix + rest, str(name)))), number)
    return found


def _keep(found: dict[str, str], name: str, value: Any) -> None:
    number = value if isinstance(value, float) else whole(value)
    if number is None or not abs(number) <= MAX_TOKENS or len(found) == MAX_LEAVES:
        return
    if SHAPE.fullmatch(name):
        found[name] = str(number)
