"""Token classes: disjoint, complete, and the same that the billing oracle says."""

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.providers import CLASSES, Usage, read_source, usage
from turnlog.providers.json_text import loads_exact

GOLDEN = Path(__file__).parents[4] / "shared" / "data" / "usage_golden.jsonl"
AT_US = 1_796_000_000_000_000
IN = ("input_uncached", "cache_read", "cache_write_5m", "cache_write_1h", "audio_in", "image_in", "tool_use")  # fmt: skip  # noqa: E501
OUT = ("output_text", "output_reasoning", "audio_out", "image_out")


def counted(form: str, block: dict[str, Any], provider: str = "") -> dict[str, int]:
    """Return the classes of a usage block that are not 0."""
    extracted = usage.extract(form, loads_exact(json.dumps(block)), provider)
    assert extracted is not None
    counts = usage.classes(usage._reported(extracted))
    assert counts is not None
    assert counts.keys() == set(CLASSES)
    return {name: count for name, count in counts.items() if count}


CHAT_ALL = {
    "prompt_tokens": 100,
    "completion_tokens": 50,
    "prompt_tokens_details": {"cached_tokens": 60, "audio_tokens": 10},
    "completion_tokens_details": {"reasoning_tokens": 30, "audio_tokens": 5},
}
ANTHROPIC_ALL = {
    "input_tokens": 10,
    "cache_read_input_tokens": 100,
    "cache_creation_input_tokens": 30,
    "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
    "output_tokens": 7,
}
GEMINI_ALL = {
    "promptTokenCount": 100,
    "cachedContentTokenCount": 40,
    "candidatesTokenCount": 20,
    "thoughtsTokenCount": 30,
    "toolUsePromptTokenCount": 5,
    "promptTokensDetails": [
        {"modality": "TEXT", "tokenCount": 80},
        {"modality": "AUDIO", "tokenCount": 12},
        {"modality": "IMAGE", "tokenCount": 8},
    ],
    "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 15}],
}
TABLE = [
    ("chat", {"prompt_tokens": 3, "completion_tokens": 4}, {"input_uncached": 3, "output_text": 4}),
    (
        "chat",
        CHAT_ALL,
        {
            "input_uncached": 30,
            "cache_read": 60,
            "audio_in": 10,
            "output_text": 15,
            "output_reasoning": 30,
            "audio_out": 5,
        },
    ),
    (
        "responses",
        {
            "input_tokens": 100,
            "input_tokens_details": {"cached_tokens": 80},
            "output_tokens": 9,
            "output_tokens_details": {"reasoning_tokens": 9},
        },
        {"input_uncached": 20, "cache_read": 80, "output_reasoning": 9},
    ),
    (
        "anthropic",
        ANTHROPIC_ALL,
        {
            "input_uncached": 10,
            "cache_read": 100,
            "cache_write_5m": 10,
            "cache_write_1h": 20,
            "output_text": 7,
        },
    ),
    (
        "anthropic",
        {"input_tokens": 10, "cache_creation_input_tokens": 30, "output_tokens": 7},
        {"input_uncached": 10, "cache_write_5m": 30, "output_text": 7},
    ),
    (
        "gemini",
        GEMINI_ALL,
        {
            "input_uncached": 40,
            "cache_read": 40,
            "tool_use": 5,
            "audio_in": 12,
            "image_in": 8,
            "output_text": 5,
            "output_reasoning": 30,
            "image_out": 15,
        },
    ),
    (
        "bedrock",
        {
            "inputTokens": 9,
            "outputTokens": 4,
            "cacheReadInputTokens": 5,
            "cacheWriteInputTokens": 2,
        },
        {"input_uncached": 9, "cache_read": 5, "cache_write_5m": 2, "output_text": 4},
    ),
    (
        "bedrock",
        {"inputTokens": 9, "outputTokens": 4, "cacheReadInputTokenCount": 5},
        {"input_uncached": 9, "cache_read": 5, "output_text": 4},
    ),
    (
        "bedrock",
        {"inputTextTokenCount": 28.0, "results": [19.0, 1.0]},
        {"input_uncached": 28, "output_text": 20},
    ),
    (
        "bedrock",
        {"prompt_token_count": 8, "generation_token_count": 3},
        {"input_uncached": 8, "output_text": 3},
    ),
    (
        "cohere",
        {
            "billed_units": {"input_tokens": 13.0, "output_tokens": 4},
            "tokens": {"input_tokens": 508, "output_tokens": 4},
        },
        {"input_uncached": 13, "output_text": 4},
    ),
    ("cohere", {"billed_units": {"input_tokens": 13}}, {"input_uncached": 13}),
    (
        "ollama",
        {"prompt_eval_count": 17, "eval_count": 63, "total_duration": 9},
        {"input_uncached": 17, "output_text": 63},
    ),
]


@pytest.mark.parametrize(("form", "block", "expected"), TABLE)
def test_a_usage_block_falls_into_disjoint_classes(
    form: str, block: dict[str, Any], expected: dict[str, int]
) -> None:
    assert counted(form, block) == expected


def test_xai_counts_reasoning_outside_its_completion_tokens() -> None:
    block = {
        "prompt_tokens": 10,
        "completion_tokens": 4,
        "completion_tokens_details": {"reasoning_tokens": 6},
    }
    found = counted("chat", block, "x-ai")
    assert found == {"input_uncached": 10, "output_text": 4, "output_reasoning": 6}


def test_modalities_as_enum_numbers_are_named() -> None:
    block = {
        "promptTokenCount": 10,
        "candidatesTokenCount": 2,
        "promptTokensDetails": [{"modality": 1, "tokenCount": 6}, {"modality": 4, "tokenCount": 4}],
    }
    assert counted("gemini", block) == {"input_uncached": 6, "audio_in": 4, "output_text": 2}


def test_parts_that_exceed_their_total_are_cut_and_never_counted_twice() -> None:
    block = CHAT_ALL | {"prompt_tokens": 65}
    found = counted("chat", block)
    assert {name: found.get(name, 0) for name in IN if found.get(name)} == {
        "cache_read": 60,
        "audio_in": 5,
    }


@pytest.mark.parametrize(
    "block",
    [
        {"prompt_tokens": -1, "completion_tokens": 4},
        {"prompt_tokens": 1.5, "completion_tokens": 4},
        {"prompt_tokens": True, "completion_tokens": 4},
        {"prompt_tokens": "12", "completion_tokens": 4},
        {"prompt_tokens": float("nan"), "completion_tokens": 4},
        {"prompt_tokens": 2**62, "completion_tokens": 4},
        {"completion_tokens": 4},
        {},
    ],
)
def test_numbers_that_are_no_counts_give_unknown_and_not_zero(block: dict[str, Any]) -> None:
    found = measured(block)
    assert (found.quality, found.reason, found.cost_nano_usd) == ("unknown", "invalid", None)


def measured(block: dict[str, Any], host: str = "api.openai.com", **more: Any) -> Usage:
    text = json.dumps({"usage": block})
    source = read_source({"id": "a", "status": 200, "host": host, "path": "/v1/chat/completions"})
    models = (more.get("model", "gpt-4o-mini"),)
    return usage.measure("chat", usage.Block([(text, ("usage",))]), source, models, AT_US, {})


def test_nulls_at_any_depth_count_nothing() -> None:
    nested = {"cached_tokens": None, "audio_tokens": None}
    block = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": nested}
    found = measured(block)
    assert (found.quality, found.classes["input_uncached"], found.classes["output_text"]) == (
        "measured", 9, 4,
    )  # fmt: skip


def test_a_price_is_whole_nano_usd_with_the_version_of_its_book() -> None:
    found = measured({"prompt_tokens": 1, "completion_tokens": 1})
    # 0.15 and 0.60 USD a million: 150 and 600 nano-USD a token.
    assert found.cost_nano_usd == 750
    assert found.price_version == usage.PRICE_VERSION


@pytest.mark.parametrize(
    ("host", "model"),
    [("api.openai.com", "no-such-model"), ("localhost:8000", "gpt-4o-mini"), ("", "gpt-4o-mini")],
)
def test_tokens_without_a_price_have_no_cost(host: str, model: str) -> None:
    found = measured({"prompt_tokens": 1, "completion_tokens": 1}, host, model=model)
    assert (found.quality, found.cost_nano_usd, found.price_version) == ("measured", None, "")


def test_provider_numbers_keep_their_text() -> None:
    text = (
        '{"usage":{"prompt_tokens":18,"completion_tokens":2,"cost":1.230e-05,"time":0.10,'
        '"details":[{"n":7}],"name":"x","bad name":1,"flag":true,"huge":123456789012345678901}}'
    )
    block = usage.Block([(text, ("usage",))])
    assert block.numbers == {
        "prompt_tokens": "18",
        "completion_tokens": "2",
        "cost": "1.230e-05",
        "time": "0.10",
        "details.0.n": "7",
        "huge": "123456789012345678901",
    }


def test_a_later_block_is_laid_over_an_earlier_one_and_nulls_say_nothing() -> None:
    first = '{"usage":{"input_tokens":25,"cache_read_input_tokens":9,"output_tokens":1}}'
    last = '{"usage":{"input_tokens":30,"cache_read_input_tokens":null,"output_tokens":44}}'
    block = usage.Block([(first, ("usage",)), (last, ("usage",))])
    assert block.values == {"input_tokens": 30, "cache_read_input_tokens": 9, "output_tokens": 44}
    assert block.numbers["output_tokens"] == "44"


NAMES = st.sampled_from(
    [
        "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens",
        "cache_write_5m_tokens", "cache_write_1h_tokens", "input_audio_tokens",
        "output_audio_tokens", "input_image_tokens", "output_image_tokens", "input_tool_tokens",
        "input_audio_tool_tokens", "cache_audio_read_tokens", "output_reasoning_tokens",
    ]
)  # fmt: skip


@given(st.dictionaries(NAMES, st.integers(0, 1000)))
def test_classes_always_add_up_to_the_totals(reported: dict[str, int]) -> None:
    counts = usage.classes(reported)
    assert counts is not None
    assert sum(counts[name] for name in IN) == reported.get("input_tokens", 0)
    assert sum(counts[name] for name in OUT) == reported.get("output_tokens", 0)
    assert min(counts.values()) >= 0


# Models whose prices, and fields whose names, changed in the book after the oracle was made.
REPRICED = (
    "gpt-5.6-",
    "openai.gpt-5.6-",
    "claude-sonnet-4-5",
)
# Their prices depend on the date or the hour.
DATED = ("openrouter", "deepseek")
FINER = {
    "cache_write_tokens",
    "cache_write_5m_tokens",
    "cache_write_1h_tokens",
    "output_reasoning_tokens",
}


def golden() -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any], dict[str, Any], str]]:
    """Yield form, provider, usage block, expected usage, expected prices and model."""
    for line in GOLDEN.read_text().splitlines():
        row = json.loads(line)
        block = row["body"].get("usage") or row["body"].get("usageMetadata")
        for found in row["extracted"] if block else ():
            for reader in found["extractors"]:
                form = _form(reader["provider_id"], reader["api_flavor"])
                if form:
                    yield (
                        form, reader["provider_id"], block, found["usage"], reader,
                        row.get("model", ""),
                    )  # fmt: skip


def _form(provider: str, flavour: str) -> str:
    """Return the form that this reader of genai-prices is the first choice for."""
    forms = ("chat", "responses", "anthropic", "gemini", "bedrock", "cohere")
    return next((f for f in forms if usage._readers(f, provider)[0] == (provider, flavour)), "")


@pytest.mark.skipif(not GOLDEN.exists(), reason=f"the billing oracle is not at {GOLDEN}")
def test_usage_and_price_are_those_of_the_billing_oracle() -> None:
    blocks = prices = 0
    for form, provider, block, expected, reader, model in golden():
        extracted = usage.extract(form, block, provider)
        assert extracted is not None
        reported = {name: n for name, n in usage._reported(extracted).items() if n}
        wanted = {name: n for name, n in expected.items() if n}
        assert reported == wanted | {
            n: reported[n] for n in FINER & reported.keys() - wanted.keys()
        }
        blocks += 1
        if not model or model.startswith(REPRICED) or provider in DATED:
            continue
        if FINER & reported.keys() - wanted.keys():
            continue
        cost = usage.price(extracted, provider, (model,), AT_US, {})
        prices += _same_price(cost, reader)
    assert (blocks, prices) > (7000, 1000)


def _same_price(cost: int | None, reader: dict[str, Any]) -> int:
    if "input_price" not in reader:  # the book has grown since: some of these have one now
        return 0
    total = reader.get("total_price")
    usd = (
        Decimal(total)
        if total
        else Decimal(reader["input_price"]) + Decimal(reader["output_price"])
    )
    assert cost is not None
    assert abs(cost - usd * 10**9) <= Decimal("0.5")
    return 1


def test_a_router_that_answers_with_another_model_is_not_priced_as_the_one_asked_for() -> None:
    assert usage.names_to_price(("x-ai/grok-4", "google/gemini-2.0-flash-exp:free")) == [
        "x-ai/grok-4"
    ]
    assert usage.names_to_price(("gpt-4o-mini-2024-07-18", "openai/gpt-4o-mini")) == [
        "gpt-4o-mini-2024-07-18",
        "openai/gpt-4o-mini",
    ]
    assert usage.names_to_price(("", "gpt-4o")) == ["gpt-4o"]
