"""Token classes are disjoint, whatever an instrumentation's counts hold."""

import json
from typing import Any

import pytest

from tests.serve.otel.made import call, used

G = "gen_ai.usage."
OI = "llm.token_count."


@pytest.mark.parametrize(
    ("given", "classes"),
    [
        (
            {G + "input_tokens": 100, G + "output_tokens": 20},
            {"input_uncached": 100, "output_text": 20},
        ),
        (
            {G + "prompt_tokens": 100, G + "completion_tokens": 20},
            {"input_uncached": 100, "output_text": 20},
        ),
        (
            {G + "input_tokens": "174", G + "output_tokens": "31"},
            {"input_uncached": 174, "output_text": 31},
        ),
        # Inclusive, as the conventions say.
        (
            {G + "input_tokens": 100, G + "cache_read.input_tokens": 60, G + "output_tokens": 5},
            {"input_uncached": 40, "cache_read": 60, "output_text": 5},
        ),
        (
            {
                G + "input_tokens": 100,
                G + "cache_read_input_tokens": 60,
                G + "cache_creation_input_tokens": 30,
                G + "output_tokens": 5,
            },
            {"input_uncached": 10, "cache_read": 60, "cache_write_5m": 30, "output_text": 5},
        ),
        # More cached than input: the provider's own count, which leaves the cache out.
        (
            {G + "input_tokens": 7, G + "cache_read_input_tokens": 60, G + "output_tokens": 5},
            {"input_uncached": 7, "cache_read": 60, "output_text": 5},
        ),
        # The total says which of the two it is.
        (
            {
                OI + "prompt": 100,
                OI + "completion": 5,
                OI + "total": 165,
                OI + "prompt_details.cache_read": 60,
            },
            {"input_uncached": 100, "cache_read": 60, "output_text": 5},
        ),
        (
            {
                OI + "prompt": 100,
                OI + "completion": 5,
                OI + "total": 105,
                OI + "prompt_details.cache_read": 60,
            },
            {"input_uncached": 40, "cache_read": 60, "output_text": 5},
        ),
        (
            {OI + "prompt": 100, OI + "completion": 50, OI + "completion_details.reasoning": 30},
            {"input_uncached": 100, "output_reasoning": 30, "output_text": 20},
        ),
        # Reasoning beside the output: the total holds both.
        (
            {
                "ai.usage.inputTokens": 10,
                "ai.usage.outputTokens": 20,
                "ai.usage.reasoningTokens": 15,
                "ai.usage.totalTokens": 45,
            },
            {"input_uncached": 10, "output_text": 20, "output_reasoning": 15},
        ),
        # The dotted name is the specification's: its 0 counts, an alias does not.
        (
            {
                G + "input_tokens": 100,
                G + "cache_read.input_tokens": 0,
                G + "cache_read_input_tokens": 20,
            },
            {"input_uncached": 100},
        ),
        (
            {
                "langfuse.observation.usage_details": json.dumps(
                    {"input": 10, "output": 20, "cache_read_input_tokens": 5, "total": 35}
                )
            },
            {"input_uncached": 10, "cache_read": 5, "output_text": 20},
        ),
        (
            {
                "langfuse.observation.usage_details": json.dumps(
                    {
                        "prompt_tokens": 10,
                        "completion_tokens": 20,
                        "prompt_tokens_details": {"cached_tokens": 4},
                    }
                )
            },
            {"input_uncached": 6, "cache_read": 4, "output_text": 20},
        ),
    ],
)
def test_classes(given: dict[str, Any], classes: dict[str, int]) -> None:
    assert used(given) == classes


def test_the_provider_s_own_block_decides_over_the_span_s_numbers() -> None:
    own = {
        "anthropic": {
            "usage": {
                "input_tokens": 7,
                "cache_read_input_tokens": 90,
                "output_tokens": 4,
                "cache_creation_input_tokens": 3,
                "cache_creation": {"ephemeral_1h_input_tokens": 2},
            }
        }
    }
    given = {
        "ai.usage.inputTokens": 7,
        "ai.usage.cachedInputTokens": "90",
        "ai.response.providerMetadata": json.dumps(own),
    }
    assert used(given) == {
        "input_uncached": 7,
        "cache_read": 90,
        "cache_write_5m": 1,
        "cache_write_1h": 2,
        "output_text": 4,
    }


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "no_usage"),
        ({G + "reasoning.output_tokens": 25}, "partial"),
        ({G + "input_tokens": -1}, "invalid"),
        ({G + "input_tokens": 1.5}, "invalid"),
        ({G + "input_tokens": "many"}, "invalid"),
        ({G + "input_tokens": 10**15}, "invalid"),
        ({G + "input_tokens": 10, G + "cache_read.input_tokens": -4}, "invalid"),
    ],
)
def test_usage_that_nobody_knows_is_unknown_and_says_why(
    given: dict[str, Any], reason: str
) -> None:
    usage = call({"gen_ai.operation.name": "chat", **given}).exchange.usage
    assert (usage.quality, usage.reason) == ("unknown", reason)


def test_embeddings_count_their_total_as_input() -> None:
    usage = call({"ai.operationId": "ai.embed.doEmbed", "ai.usage.tokens": 10}).exchange.usage
    assert usage.classes["input_uncached"] == 10
    none = call({"gen_ai.operation.name": "embeddings"}).exchange.usage
    assert (none.quality, none.reason) == ("unknown", "no_usage")


@pytest.mark.parametrize(
    ("given", "priced"),
    [
        ({"gen_ai.provider.name": "openai"}, True),
        ({"gen_ai.system": "openai.responses"}, True),
        ({"ai.model.provider": "openai.chat"}, True),
        ({"server.address": "api.openai.com"}, True),
        ({"gen_ai.system": "openai", "server.address": "localhost"}, False),
        ({"gen_ai.system": "ollama"}, False),
        ({}, False),
    ],
)
def test_the_address_prices_first_then_the_name_of_the_provider(
    given: dict[str, Any], priced: bool
) -> None:
    usage = call(
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.response.model": "gpt-4o-mini",
            G + "input_tokens": 1_000_000,
            **given,
        }
    ).exchange.usage
    assert (usage.cost_nano_usd == 150_000_000) is priced
    assert (usage.cost_nano_usd is None) is not priced


def test_the_numbers_of_the_span_are_kept_beside_the_classes() -> None:
    usage = call({G + "input_tokens": 3, G + "cost": 0.25, G + "note": "no"}).exchange.usage
    assert usage.provider_usage == {G + "input_tokens": "3", G + "cost": "0.25"}
